//! A plan of one's own: written, printed, proved, broken on purpose, and run.
//!
//! Every rank puts its block into the receive buffer of its right neighbour, and copies the block from its
//! left neighbour to its output. Calls follow each other with no synchronisation between the ranks, so a
//! receive buffer must be empty before the next block comes. The credit ensures that, and *check* shows what
//! goes wrong without it.
//!
//! Ranks are threads here: one for each GPU, or four on the host backend.

use std::error::Error;
use std::sync::Arc;

use warpweave::overlap::execute::{ExecuteBackend, Executor};
use warpweave::overlap::plan::{Placement, Plan, PlanBuilder, Role, StreamId};
use warpweave::overlap::{Checked, PlanError, check, show};
use warpweave::symm_mem::{Cuda, DType, Exchange, Host, ThreadExchange};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ROWS: usize = 16;
const COLS: usize = 64;
const CALLS: usize = 5;

/// The program of one rank.
fn shift(rank: usize, world: usize, credit: bool) -> Result<Plan, PlanError> {
    let mut plan = PlanBuilder::new("shift", rank, world);
    let (shape, main) = ((ROWS, COLS), StreamId::MAIN);
    let block = plan.buffer("block", Placement::Local, Role::Input, DType::F32, shape);
    let recv = plan.buffer(
        "recv",
        Placement::Symmetric,
        Role::Staging,
        DType::F32,
        shape,
    );
    let out = plan.buffer("out", Placement::Local, Role::Output, DType::F32, shape);
    let (sent, taken) = (plan.slot("sent"), plan.slot("taken"));
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);

    if credit {
        plan.wait_credit(main, taken, [right]); // of the previous call; the first has it
    }
    let [source, arrived, result] = [block, recv, out].map(|buffer| plan.whole(buffer));
    let there = plan.on(right, recv, 0..ROWS, 0..COLS);
    plan.copy(main, source, there)
        .signal(main, sent, [right])
        .wait(main, sent, [left])
        .copy(main, arrived, result);
    if credit {
        plan.signal(main, taken, [left]);
    }
    plan.finish()
}

fn main() -> Outcome<()> {
    let plans = |world: usize, credit: bool| -> Result<Vec<_>, _> {
        (0..world).map(|rank| shift(rank, world, credit)).collect()
    };
    print!("{}", show(&shift(0, 4, true)?));
    for world in [2, 4, 8] {
        let report = check(&plans(world, true)?, 3);
        if !report.holds() {
            return Err(report.to_string().into());
        }
        println!("{report}");
    }
    let report = check(&plans(4, false)?, 3);
    println!(
        "without the credit: {}",
        report.violations.first().ok_or("not found")?
    );

    let gpus = Cuda::device_count().unwrap_or(0).min(8);
    let on_gpus = gpus > 1 && cfg!(feature = "nvcc");
    let ranks: Vec<_> = ThreadExchange::group(if on_gpus { gpus } else { 4 })
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || match on_gpus {
                true => run(Cuda::new(exchange.rank())?, Arc::new(exchange)),
                false => run(Host::new(), Arc::new(exchange)),
            })
        })
        .collect();
    for thread in ranks {
        println!("{}", thread.join().expect("no rank panics")?);
    }
    Ok(())
}

/// Runs the plan with another block in each call.
fn run<B: ExecuteBackend>(device: B, exchange: Arc<dyn Exchange>) -> Outcome<String> {
    let (me, world) = (exchange.rank(), exchange.world());
    let left = (me + world - 1) % world;
    let stream = device.stream(Default::default())?;
    let executor = Executor::new(&device, &exchange)?;
    let plans = (0..world).map(|rank| shift(rank, world, true));
    let checked = Checked::prove(plans.collect::<Result<_, _>>()?)?;
    let bound = executor.bind(&checked, &stream)?;
    let block = |rank: usize, call: usize| {
        let element = move |i: usize| (rank * 1000 + call * 100_000 + i) as f32;
        (0..ROWS * COLS)
            .flat_map(|i| element(i).to_ne_bytes())
            .collect::<Vec<u8>>()
    };
    for call in 0..CALLS {
        bound.write("block", &block(me, call))?;
        bound.run()?;
        let mut out = vec![0; 4 * ROWS * COLS];
        bound.read("out", &mut out)?;
        if out != block(left, call) {
            return Err(format!("rank {me}, call {call}: not the block of rank {left}").into());
        }
    }
    bound.synchronize()?;
    exchange.barrier("done")?; // nobody frees what a peer still writes
    Ok(format!(
        "rank {me}: {CALLS} calls, each with the block of rank {left}"
    ))
}
