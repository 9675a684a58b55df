//! What no implementation can beat: the GEMM alone, and the fewest bytes into a rank alone, both measured in
//! the same run.

use warpweave_overlap::Operation;
use warpweave_overlap::plan::{Problem, Transport};
use warpweave_report::statistics::{Spread, slowest};
use warpweave_report::{Limit, Links};
use warpweave_symm_mem::BackendKind;

use crate::alone::gemm_of;
use crate::candidate::Candidate;
use crate::clock::Clock;
use crate::error::Result;
use crate::plans::{PlanCandidate, of_ranks};
use crate::probes::{self, Probe};
use crate::session::ExecuteBackend;
use crate::transport;

/// Bytes that a rank pushes to each peer to measure the links: large enough for the latency not to count.
fn piece(kind: BackendKind) -> usize {
    match kind {
        BackendKind::Cuda => 256 << 20,
        BackendKind::Host => 4 << 20,
    }
}

/// The speed of all-gather traffic by copy-engine pushes; `None` for a rank alone, and for ranks in several
/// nodes, where no copy engine reaches all. Collective.
pub fn push_bandwidth<B: ExecuteBackend>(clock: &Clock<'_, B>) -> Result<Option<Links>> {
    let (session, world) = (clock.session, clock.session.world());
    if world == 1 || session.nodes.count() > 1 {
        return Ok(None);
    }
    let (push, piece) = (Probe::Push { streams: false }, piece(B::KIND));
    let plans = of_ranks(world, |rank| probes::plan(push, piece, rank, world))?;
    let pushes = PlanCandidate::of_plans(session, plans)?;
    let calls = clock.capacity().min(5);
    let mine = || {
        pushes.run()?;
        for i in 0..calls {
            let lead = std::time::Duration::from_millis(1);
            clock.time(i, lead, || pushes.run())?;
        }
        pushes.synchronize()?;
        clock.read(calls)
    };
    let ranks = session.agree("copy-engine all-gather", mine())?;
    let ms = Spread::of(&slowest(&ranks)).map_or(f64::NAN, |spread| spread.median);
    Ok(Some(Links {
        bandwidth_gb_s: (world - 1) as f64 * piece as f64 / ms / 1e6,
        transport: transport::name(B::KIND, Transport::CopyEngine),
    }))
}

/// The limit of a problem, from the GEMM's time and the links' bandwidth.
pub fn limit(
    (operation, problem): (Operation, &Problem),
    world: usize,
    (gemm, algorithms): (Spread, Vec<String>),
    links: Option<&Links>,
) -> Limit {
    let bytes = operation.bytes_in(world, problem).round();
    let bandwidth_gb_s = links.map(|links| links.bandwidth_gb_s);
    let transfer_ms = bandwidth_gb_s.map_or(0.0, |rate| bytes / rate / 1e6);
    let size = gemm_of(Some(operation), world, problem);
    Limit {
        ms: gemm.median.max(transfer_ms),
        gemm_tflops: Some(tflops(size, gemm.median)),
        gemm_ms: Some(gemm),
        gemm_algorithms: algorithms,
        bytes: bytes as usize,
        transport: links.map(|links| links.transport.clone()),
        bandwidth_gb_s,
        transfer_ms: Some(transfer_ms),
    }
}

/// Two operations for multiply-add of a GEMM of this size, over a time.
pub fn tflops((m, n, k): (usize, usize, usize), ms: f64) -> f64 {
    2.0 * m as f64 * n as f64 * k as f64 / ms / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::DType;

    #[test]
    fn the_limit_is_the_larger_part() {
        let problem = Problem::new(1000, 1000, 1000, DType::F16);
        let gemm = || (Spread::of(&[2.0]).unwrap(), vec![]);
        let slow = Links {
            bandwidth_gb_s: 0.5,
            transport: "host push".into(),
        };
        let of = |operation, world, links| limit((operation, &problem), world, gemm(), links);
        let gather = of(Operation::AllGatherMatmul, 4, Some(&slow));
        assert_eq!(
            (gather.bytes, gather.transfer_ms, gather.ms),
            (1_500_000, Some(3.0), 3.0)
        );
        let reduce = of(Operation::MatmulAllReduce, 4, Some(&slow));
        assert_eq!((reduce.bytes, reduce.ms), (3_000_000, 6.0));
        // A quarter of the GEMM is each rank's.
        assert_eq!(reduce.gemm_tflops, Some(0.25));
        let alone = of(Operation::AllGatherMatmul, 1, None);
        assert_eq!(
            (alone.bytes, alone.ms, alone.gemm_tflops),
            (0, 2.0, Some(1.0))
        );
    }
}
