//! What calls cost the host above their bare launches, on GPUs.

use std::fmt::Write;
use std::time::Instant;

use warpweave_comm::nccl::{Element, Launch, ReduceOp};
use warpweave_comm::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_gemm::{GemmOperands, GemmProblem, Layout, PreparedGemm, Provider};
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms;
use warpweave_overlap::plan::Problem;
use warpweave_overlap::schedule::Schedule;
use warpweave_symm_mem::{Backend, Cuda, DType, Memory};

use crate::cuda;
use crate::fixtures::{Rank, on_ranks};
use crate::prepared::{Call, one_gpu};

/// The most µs of a call above its launches.
const MOST: f64 = 5.0;

/// Rows of successive calls, as of a server.
const ROWS: [usize; 4] = [64, 16, 48, 32];

/// Calls of each way that count; the first of them load what they need.
const CALLS: usize = 400;
const FIRST: usize = 40;

/// A layer with NCCL as one writes it without plans: the communicator's call and the GEMM, on the operands of
/// a call.
struct Bare<'a> {
    comm: &'a NcclComm,
    call: &'a Call<Cuda>,
    gemm: PreparedGemm<Cuda>,
    /// A of all ranks; none where K is sharded.
    gathered: Option<<Cuda as Backend>::Memory>,
    counts: Vec<usize>,
}

impl<'a> Bare<'a> {
    fn new(
        rank: &Rank<Cuda>,
        schedule: &Schedule,
        call: &'a Call<Cuda>,
        comm: &'a NcclComm,
    ) -> Self {
        let (me, world) = rank.place();
        let operands = schedule.operands(me, call.m).unwrap();
        let of = |name| operands.iter().find(|o| o.buffer == name).unwrap().stored();
        let ((_, k), b, (_, n)) = (of("a"), of("b"), of("c"));
        let layout = if b == (k, n) {
            Layout::RowMajor
        } else {
            Layout::Transposed
        };
        let problem =
            GemmProblem::new(call.m, n, k, DType::Bf16).with_layouts(Layout::RowMajor, layout);
        let gemm = rank.executor.gemm().prepare(&problem, Provider::CublasLt);
        let is_column = schedule.configuration().operation() == Operation::ColumnParallelLinear;
        let gathered = || rank.backend().allocate(2 * call.m * k).unwrap();
        let problem = schedule.problem_of(call.m).unwrap();
        Bare {
            comm,
            call,
            gemm: gemm.unwrap(),
            gathered: is_column.then(gathered),
            counts: (0..world)
                .map(|r| problem.shard(r, world).len() * k)
                .collect(),
        }
    }

    fn run(&self, rank: &Rank<Cuda>) {
        let at = |name| self.call.named(name).unwrap().address(0);
        let (comm, stream, element) = (self.comm, rank.stream(), Element::Bf16);
        let (a, b, c) = (at("a"), at("b"), at("c"));
        let gemm = |a| {
            let operands = GemmOperands::new(a, b, c);
            // SAFETY: the operands of a call, on its stream.
            unsafe {
                rank.executor
                    .gemm()
                    .launch(stream, &self.gemm, operands)
                    .unwrap()
            };
        };
        match &self.gathered {
            Some(gathered) => {
                let (send, recv) = (a.0, gathered.address().0);
                // SAFETY: as above; all ranks make the same calls.
                let sent = unsafe {
                    comm.all_gather_uneven(send, recv, &self.counts, element, stream.raw())
                };
                sent.unwrap();
                gemm(gathered.address());
            }
            None => {
                gemm(a);
                let count = self.gemm.problem().c_len();
                // SAFETY: as above.
                let sent = unsafe {
                    comm.all_reduce(c.0, c.0, count, element, ReduceOp::Sum, stream.raw())
                };
                sent.unwrap();
            }
        }
    }
}

/// Times bare launches, calls of a bound plan and calls of a schedule, alternating, and returns what exceeds
/// [`MOST`].
fn objections(rank: &Rank<Cuda>, name: &str, comm: Option<&NcclComm>) -> String {
    let (_, world) = rank.place();
    let stream = rank.stream();
    let schedule = algorithms::find(name).unwrap();
    let schedule = Schedule::new(schedule, world, Problem::new(64, 256, 256, DType::Bf16)).unwrap();
    let prepared = rank.executor.prepare(&schedule).unwrap();
    let calls = ROWS.map(|m| Call::new(rank, &schedule, m, 0));
    let bound = ROWS.map(|m| {
        let checked = schedule.checked(m).unwrap();
        rank.executor.bind(&checked, stream).unwrap()
    });
    let bare = comm.map(|comm| {
        calls
            .each_ref()
            .map(|call| Bare::new(rank, &schedule, call, comm))
    });
    prepared.warm(stream, ROWS).unwrap();

    let mut objections = String::new();
    for (rows, some) in [("the same M", 1), ("changing M", ROWS.len())] {
        let mut times = [(); 3].map(|()| Vec::new());
        for call in 0..FIRST + CALLS {
            let at = call % some;
            let mut time = |way: usize, run: &dyn Fn()| {
                rank.executor.synchronize(stream).unwrap();
                rank.exchange.barrier("a call").unwrap();
                let start = Instant::now();
                run();
                let took = start.elapsed().as_secs_f64() * 1e6;
                if call >= FIRST {
                    times[way].push(took);
                }
            };
            if let Some(bare) = &bare {
                time(0, &|| bare[at].run(rank));
            }
            time(1, &|| bound[at].run().unwrap());
            let operands = calls[at].operands();
            time(2, &|| prepared.run(stream, &operands, calls[at].m).unwrap());
        }
        rank.executor.synchronize(stream).unwrap();
        let [bare, bound, prepared] = times.map(|mut of_way| {
            of_way.sort_by(f64::total_cmp);
            of_way.get(of_way.len() / 2).copied()
        });
        let line = format!(
            "{name}, {rows}, rank {}: {:.1} us bare, {:.1} bound, {:.1} prepared",
            rank.place().0,
            bare.unwrap_or(f64::NAN),
            bound.unwrap(),
            prepared.unwrap()
        );
        println!("{line}");
        if prepared > bare.or(bound).map(|launches| launches + MOST) {
            writeln!(objections, "{line}").unwrap();
        }
    }
    objections
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn gpus_cost_the_host_little_more_than_their_launches() {
    let names = [
        "fusedAllGather",
        "rowParallelLinear",
        "columnParallelLinear:chunks=1:streams=1",
    ];
    let wrong = on_ranks(1, one_gpu, |rank| {
        names.map(|name| objections(&rank, name, None)).concat()
    });
    assert!(wrong.concat().is_empty(), "{}", wrong.concat());
}

/// The bare launches of fused kernels, and of plans of several pieces, are those of the bound plan.
#[test]
#[ignore = "needs two GPUs of compute capability 9.0, NCCL and the feature `nvcc`"]
fn gpus_with_peers_cost_the_host_little_more_than_their_launches() {
    let library = NcclLibrary::load().unwrap();
    let wrong = on_ranks(cuda::world(), cuda::gpu, |rank| {
        rank.backend().bind().unwrap();
        let options = NcclOptions {
            launch: Launch::Blocking,
            ..NcclOptions::default()
        };
        let comm = NcclComm::init(&library, rank.exchange.as_ref(), options).unwrap();
        let names = [
            ("columnParallelLinear:chunks=1:streams=1", Some(&comm)),
            ("rowParallelLinear:chunks=1:streams=1", Some(&comm)),
            ("columnParallelLinear", None),
            ("rowParallelLinear", None),
            ("rowParallelLinearPipeline", None),
            ("fusedColumnParallelLinear", None),
            ("fusedColumnParallelLinear:protocol=eager", None),
            ("fusedRowParallelLinear", None),
            ("fusedRowParallelLinear:shots=1", None),
        ];
        let wrong = names
            .map(|(name, comm)| objections(&rank, name, comm))
            .concat();
        rank.exchange.barrier("end").unwrap();
        wrong
    });
    assert!(wrong.concat().is_empty(), "{}", wrong.concat());
}
