//! A fused kernel of a project outside: device code, a host twin, and a plan that is shown, checked,
//! simulated and run.
//!
//! `cuda/rotate.cu` is the device code, which `build.rs` compiles with the feature `nvcc`; `host.rs` is its
//! twin, `launch.rs` what both take, and `kernel.rs` what a plan knows of it. The program runs the plan on
//! all GPUs where there are two or more, else on four ranks of the host backend: calls follow each other with
//! other blocks and no synchronisation between the ranks, and every element is compared.

mod host;
mod kernel;
mod launch;

use std::error::Error;
use std::sync::Arc;

use warpweave_overlap::execute::{ExecuteBackend, Executor};
use warpweave_overlap::{Checked, Machine, Plan, check, show, simulate};
use warpweave_symm_mem::Result as MemoryResult;
use warpweave_symm_mem::{Cuda, Exchange, Host, ThreadExchange};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const COUNT: usize = 10_000;
const CALLS: usize = 20;

fn main() -> Outcome<()> {
    let gpus = Cuda::device_count().unwrap_or(0).min(8);
    let uses_gpus = gpus > 1 && cfg!(feature = "nvcc");
    let world = if uses_gpus { gpus } else { 4 };
    let plans = plans(world)?;
    println!("{}", show(&plans[0]));
    println!("{}", check(&plans, CALLS));
    let predicted = simulate(&plans, &Machine::named("h200x8")?, 1)?;
    println!("predicted on 8 H200s: {:.1} µs", predicted.total());
    let lines = match uses_gpus {
        true => on_ranks(gpus, Cuda::new)?,
        false => on_ranks(world, |_| Ok(Host::new()))?,
    };
    for line in lines {
        println!("{line}");
    }
    Ok(())
}

fn plans(world: usize) -> Outcome<Vec<Plan>> {
    (0..world)
        .map(|rank| kernel::plan(rank, world, COUNT))
        .collect()
}

/// Runs each rank on a thread, with the device that `device` gives it.
fn on_ranks<B: ExecuteBackend>(
    world: usize,
    device: fn(usize) -> MemoryResult<B>,
) -> Outcome<Vec<String>> {
    let threads: Vec<_> = ThreadExchange::group(world)
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || run(device(exchange.rank())?, Arc::new(exchange)))
        })
        .collect();
    let ended = threads.into_iter();
    ended.map(|t| t.join().expect("no rank panics")).collect()
}

fn run<B: ExecuteBackend>(device: B, exchange: Arc<dyn Exchange>) -> Outcome<String> {
    let (rank, world) = (exchange.rank(), exchange.world());
    let left = (rank + world - 1) % world;
    let stream = device.stream(Default::default())?;
    let executor = Executor::new(&device, &exchange)?;
    let plans = (0..world).map(|rank| kernel::plan(rank, world, COUNT));
    let checked = Checked::prove(plans.collect::<Outcome<_>>()?)?;
    let bound = executor.bind(&checked, &stream)?;
    for call in 0..CALLS {
        let mut got = vec![0; 4 * COUNT];
        bound.write("block", &values(rank, call))?;
        bound.run()?;
        bound.read("out", &mut got)?;
        bound.check()?; // did both neighbours come in time?
        if got != values(left, call) {
            return Err(format!("rank {rank}, call {call}: not the block of rank {left}").into());
        }
    }
    bound.synchronize()?;
    exchange.barrier("end")?;
    let name = &device.device().name;
    Ok(format!(
        "rank {rank} on {name}: {CALLS} calls, each with the {COUNT} elements of rank {left}"
    ))
}

/// The block of a rank in a call: other values each time.
fn values(rank: usize, call: usize) -> Vec<u8> {
    let element = |i: usize| (rank * 1_000_000 + call * 20_000 + i) as f32;
    (0..COUNT).flat_map(|i| element(i).to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_overlap::kernels::twin::departures;
    use warpweave_overlap::plan::{Effect, OpKind};
    use warpweave_symm_mem::Backend;

    #[test]
    fn worlds_of_the_host_rotate_their_blocks() {
        for world in [1, 2, 3, 8] {
            let lines = on_ranks(world, |_| Ok(Host::new())).unwrap();
            assert_eq!(lines.len(), world);
        }
    }

    #[test]
    #[ignore = "needs two GPUs and the feature nvcc"]
    fn cuda_ranks_rotate_their_blocks() {
        let gpus = Cuda::device_count().unwrap().min(8);
        assert!(gpus > 1, "two GPUs at least, not {gpus}");
        assert_eq!(on_ranks(gpus, Cuda::new).unwrap().len(), gpus);
    }

    #[test]
    fn the_host_twin_keeps_to_its_lane() {
        let world = 3;
        let threads: Vec<_> = ThreadExchange::group(world)
            .into_iter()
            .map(|exchange| {
                std::thread::spawn(move || {
                    let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                    let device = Host::new();
                    let stream = device.stream(Default::default()).unwrap();
                    let executor = Executor::new(&device, &exchange).unwrap();
                    let plans = (0..world).map(|rank| kernel::plan(rank, world, 5).unwrap());
                    let checked = Checked::prove(plans.collect()).unwrap();
                    let plan = checked.plan(exchange.rank());
                    let OpKind::Kernel { lanes, .. } = plan.ops[0].kind.clone() else {
                        panic!("{plan:?}");
                    };
                    let bound = executor.bind(&checked, &stream).unwrap();
                    let trace = bound.run_recorded().unwrap().remove(0);
                    exchange.barrier("end").unwrap();
                    (lanes, trace)
                })
            })
            .collect();
        for thread in threads {
            let (lanes, trace) = thread.join().unwrap();
            let none: [String; 0] = [];
            assert_eq!(departures(world, &lanes, &trace), none);
            for index in 0..lanes[0].len() {
                let mut changed = lanes.clone();
                changed[0].remove(index);
                assert_ne!(departures(world, &changed, &trace), none, "without {index}");
            }
        }
    }

    #[test]
    fn the_plan_shows_the_kernel_and_its_lane() {
        let shown = show(&plans(3).unwrap()[0]).to_string();
        for line in [
            "kernel rotate(block, receive, out; sent, taken) m=1 n=0 k=10000 f32",
            "wait taken from 1, lag 1",
            "signal sent to 1",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
    }

    #[test]
    fn the_plans_hold_back_to_back_and_no_signal_or_wait_is_idle() {
        for world in 1..=4 {
            let plans = plans(world).unwrap();
            let report = check(&plans, 3);
            assert!(report.holds(), "world {world}: {report}");
        }
        let is_sync =
            |effect: &Effect| matches!(effect, Effect::Signal { .. } | Effect::Wait { .. });
        let sound = plans(3).unwrap();
        for index in 0..8 {
            let mut plans = sound.clone();
            let mut dropped = 0;
            for plan in &mut plans {
                let OpKind::Kernel { lanes, .. } = &mut plan.ops[0].kind else {
                    panic!("{plan:?}");
                };
                if is_sync(&lanes[0][index]) {
                    lanes[0].remove(index);
                    dropped += 1;
                }
            }
            assert_eq!(check(&plans, 3).holds(), dropped == 0, "without {index}");
        }
    }

    #[test]
    fn a_simulated_call_costs_a_launch_and_a_link_crossing() {
        let machine = Machine::named("h200x4").unwrap();
        let total = |count: usize| {
            let plans: Vec<Plan> = (0..4)
                .map(|rank| kernel::plan(rank, 4, count).unwrap())
                .collect();
            simulate(&plans, &machine, 1).unwrap().total()
        };
        let (small, large) = (total(100), total(100_000_000));
        assert!(
            (machine.latency.launch_us..50.0).contains(&small),
            "{small}"
        );
        // The block crosses one link.
        let crossing = 4e8 / (machine.link.gbs * 1e3);
        assert!((crossing..3.0 * crossing).contains(&large), "{large}");
    }

    #[test]
    fn a_plan_read_from_json_is_the_same() {
        let plan = plans(3).unwrap().remove(1);
        let json = serde_json::to_string(&plan).unwrap();
        assert!(json.contains(r#""name":"rotate""#), "{json}");
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
        let unknown = json.replace(r#"{"name":"rotate","par"#, r#"{"name":"spin","par"#);
        let error = serde_json::from_str::<Plan>(&unknown).unwrap_err();
        assert!(error.to_string().contains("`spin`"), "{error}");
    }
}
