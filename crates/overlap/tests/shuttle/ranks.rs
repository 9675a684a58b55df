//! Ranks as threads of the scheduler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner, thread};
use warpweave_overlap::execute::{Bound, Executor, Result};
use warpweave_overlap::plan::Plan;
use warpweave_symm_mem::{Backend, Exchange, Host, ThreadExchange};

/// The deadline of every wait, in steps of the scheduler: more than any run takes that does not meet it.
const DEADLINE: Duration = Duration::from_micros(60_000);

/// GEMMs want more than shuttle gives.
const STACK: usize = 1 << 20;

/// What is multiplied by more patience.
pub fn effort(default: usize) -> usize {
    default * variable("WARPWEAVE_SHUTTLE_EFFORT").unwrap_or(1) as usize
}

/// What all plans and schedules follow from.
pub fn seed() -> u64 {
    variable("WARPWEAVE_SHUTTLE_SEED").unwrap_or(20_251)
}

/// The one random case that is wanted, if not all are.
pub fn only_case() -> Option<u64> {
    variable("WARPWEAVE_SHUTTLE_CASE")
}

fn variable(name: &str) -> Option<u64> {
    let set = std::env::var(name).ok();
    set.map(|text| text.parse().expect(name))
}

/// Runs `run` on `world` ranks under `schedules` random schedules, and gives what they returned, schedule by
/// schedule.
pub fn explore<T: Send + 'static>(
    seed: u64,
    schedules: usize,
    world: usize,
    run: impl Fn(Rank) -> T + Send + Sync + 'static,
) -> Vec<Vec<T>> {
    let mut config = Config::new();
    config.stack_size = STACK;
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let (run, all) = (Arc::new(run), outcomes.clone());
    Runner::new(RandomScheduler::new_from_seed(seed, schedules), config).run(move || {
        let ranks: Vec<_> = ThreadExchange::group(world)
            .into_iter()
            .map(|exchange| {
                let run = run.clone();
                thread::spawn(move || run(Rank::new(exchange)))
            })
            .collect();
        let outcome = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        all.lock().unwrap().push(outcome);
    });
    std::mem::take(&mut *outcomes.lock().unwrap_or_else(PoisonError::into_inner))
}

/// One rank.
pub struct Rank {
    pub exchange: Arc<dyn Exchange>,
    executor: Executor<Host>,
    stream: <Host as Backend>::Stream,
}

impl Rank {
    fn new(exchange: ThreadExchange) -> Self {
        let device = Host::with_timeout(DEADLINE);
        let exchange: Arc<dyn Exchange> = Arc::new(exchange);
        Rank {
            stream: device.stream(Default::default()).unwrap(),
            executor: Executor::new(&device, &exchange).unwrap(),
            exchange,
        }
    }

    pub fn bind(&self, plan: Plan) -> Result<Bound<Host>> {
        // SAFETY: what races is run on the host backend alone, where it is looked for.
        unsafe { self.executor.bind_unchecked(plan, &self.stream) }
    }

    pub fn index(&self) -> usize {
        self.exchange.rank()
    }
}
