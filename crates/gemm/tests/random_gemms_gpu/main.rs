//! Random GEMMs with communication, back to back, every element compared: on GPUs, one for each rank or all
//! ranks on one, and on the host.
//!
//! A problem follows from its number. `WARPWEAVE_RANDOM_PROBLEMS` says how many are played on GPUs,
//! `WARPWEAVE_RANDOM_FIRST` which is the first and `WARPWEAVE_RANDOM_RANKS` by how many ranks, so that what
//! has failed can be played alone.

mod play;
mod problem;
mod random;
mod rank;
mod values;

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use warpweave_symm_mem::{Backend, Cuda, Exchange, Host, ThreadExchange};

use problem::{Limits, Operation, Problem};
use rank::{Kernels, Played, Rank, on_rank};

const TIMEOUT: Duration = Duration::from_secs(20);
/// Under compute-sanitizer everything takes its time.
const PATIENCE: Duration = Duration::from_secs(200);

/// Plays problems on `limits.world` ranks, threads of this process.
fn play<B: Kernels, E: Display>(
    limits: Limits,
    timeout: Duration,
    device: impl Fn(usize) -> Result<B, E> + Sync,
    numbers: Range<u64>,
    stale: Option<u64>,
) -> Played {
    let run = |exchange: Arc<dyn Exchange>| {
        let me = exchange.rank();
        let backend = device(me).map_err(on_rank(me))?;
        let mut rank = Rank::new(backend, exchange, limits, timeout).map_err(on_rank(me))?;
        rank.play(numbers.clone(), stale)?;
        rank.close().map_err(on_rank(me))
    };
    // A round on a loaded machine takes longer than one wait of it.
    let group = ThreadExchange::group_with_timeout(limits.world, 6 * timeout);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let run = &run;
        let start = |exchange| scope.spawn(move || run(Arc::new(exchange)));
        let ranks: Vec<_> = group.into_iter().map(start).collect();
        let ends = ranks.into_iter().map(|rank| rank.join());
        ends.filter_map(|end| end.unwrap_or_else(|_| Err("a rank panicked".into())).err())
            .collect()
    });
    match failures.is_empty() {
        true => Ok(()),
        false => Err(failures.join("\n")),
    }
}

fn on_host(world: usize) -> Limits {
    Limits {
        world,
        extents: [40, 90],
        work: 1 << 16,
        group_rows: 7,
        blocks: 132,
    }
}

fn host(world: usize, numbers: Range<u64>, stale: Option<u64>) -> Played {
    let device = |_| Ok::<_, String>(Host::with_timeout(TIMEOUT));
    play(on_host(world), TIMEOUT, device, numbers, stale)
}

#[test]
fn random_gemms_are_exact() {
    for (world, numbers) in [
        (1, 0..20),
        (2, 20..60),
        (3, 60..110),
        (4, 110..190),
        (8, 190..200),
    ] {
        host(world, numbers, None).unwrap();
    }
}

#[test]
fn a_stale_row_is_found() {
    let mut seen = std::collections::HashSet::new();
    for number in 0..120 {
        let problem = Problem::draw(number, &on_host(3));
        // With fewer terms the row of the call before may be the same.
        let is_clear = problem.gemms.iter().all(|gemm| gemm.k >= 12);
        if is_clear && seen.insert((problem.operation, problem.real, problem.replayed)) {
            let why = host(3, number..number + 1, Some(number)).unwrap_err();
            assert!(why.contains(&format!("problem {number}, rank ")), "{why}");
        }
    }
    for operation in [
        Operation::AllGatherMatmul,
        Operation::MatmulReduceScatter,
        Operation::MatmulAllReduce,
        Operation::OneShotAllReduce,
    ] {
        assert!(seen.contains(&(operation, false, false)), "{seen:?}");
    }
    assert!(seen.iter().any(|(_, real, _)| *real) && seen.iter().any(|(.., replayed)| *replayed));
}

/// SMs of a shared GPU that no GEMM takes.
const LEFT_FREE: u32 = 8;

fn devices() -> usize {
    Cuda::device_count().expect("a GPU")
}

/// Plays problems on `world` GPUs, or on parts of the first.
fn gpus(world: usize, timeout: Duration, numbers: Range<u64>) {
    let alone = devices() >= world;
    let device = |rank: usize| {
        let cuda = Cuda::new(if alone { rank } else { 0 })?;
        Ok::<_, warpweave_symm_mem::Error>(cuda.with_timeout(timeout))
    };
    let all = device(0).expect("a GPU").device().sms;
    let limits = Limits {
        world,
        extents: [600, 2048],
        work: 1 << 26,
        group_rows: 128,
        blocks: match alone {
            true => all,
            false => (all - LEFT_FREE) / world as u32,
        },
    };
    if let Err(why) = play(limits, timeout, device, numbers, None) {
        panic!("{why}");
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    )
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_gpus_ten_thousand_random_gemms_are_exact() {
    let devices = devices();
    let world = number("WARPWEAVE_RANDOM_RANKS")
        .map_or(if devices == 1 { 4 } else { devices.min(8) }, |n| {
            n as usize
        });
    let first = number("WARPWEAVE_RANDOM_FIRST").unwrap_or(0);
    let count = number("WARPWEAVE_RANDOM_PROBLEMS").unwrap_or(10_000);
    gpus(world, TIMEOUT, first..first + count);
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_gpus_random_gemms_of_every_world_are_exact() {
    for world in 1..=devices().clamp(4, 8) {
        gpus(world, TIMEOUT, 0..200);
    }
}

#[test]
#[ignore = "needs a GPU of compute capability 9.0 and the feature `nvcc`"]
fn on_gpus_a_few_random_gemms_for_compute_sanitizer() {
    let count = number("WARPWEAVE_RANDOM_PROBLEMS").unwrap_or(20);
    gpus(devices().clamp(2, 4), PATIENCE, 0..count);
}
