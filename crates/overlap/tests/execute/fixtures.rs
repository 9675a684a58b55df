//! Ranks as threads of this process, and a problem with exact results.

use std::sync::Arc;

use warpweave_overlap::execute::{Bound, ExecuteBackend, Executor, Result};
use warpweave_overlap::plan::{Plan, Problem};
use warpweave_symm_mem::{DType, Exchange, ThreadExchange};

/// One rank of a test.
pub struct Rank<B: ExecuteBackend> {
    pub exchange: Arc<dyn Exchange>,
    pub executor: Executor<B>,
    stream: B::Stream,
}

impl<B: ExecuteBackend> Rank<B> {
    pub fn bind(&self, plan: Plan) -> Result<Bound<B>> {
        // SAFETY: plans of algorithms are proved by the tests of `plans`; the others of these tests do
        // nothing that races.
        unsafe { self.executor.bind_unchecked(plan, &self.stream) }
    }

    pub fn backend(&self) -> &B {
        self.executor.backend()
    }

    pub fn stream(&self) -> &B::Stream {
        &self.stream
    }

    pub fn place(&self) -> (usize, usize) {
        (self.exchange.rank(), self.exchange.world())
    }
}

/// Runs `run` on a thread for each rank, with the device that `device` gives it.
pub fn on_ranks<B: ExecuteBackend, T: Send>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    run: impl Fn(Rank<B>) -> T + Sync,
) -> Vec<T> {
    let (device, run) = (&device, &run);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadExchange::group(world)
            .into_iter()
            .map(|exchange| {
                scope.spawn(move || {
                    let device = device(exchange.rank());
                    let exchange: Arc<dyn Exchange> = Arc::new(exchange);
                    let stream = device.stream(Default::default()).unwrap();
                    let executor = Executor::new(&device, &exchange).unwrap();
                    run(Rank {
                        exchange,
                        executor,
                        stream,
                    })
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Element (row, col) of the matrix `which` in call `call`: small integers, so that GEMMs are exact.
pub fn element(which: usize, call: usize, row: usize, col: usize) -> f32 {
    let mixed = (which * 7919 + call * 104_729 + row * 31 + col * 17).wrapping_mul(2_654_435_761);
    ((mixed >> 13) % 5) as f32 - 2.0
}

pub fn matrix(
    dtype: DType,
    (which, call): (usize, usize),
    rows: std::ops::Range<usize>,
    cols: usize,
) -> Vec<u8> {
    let places = rows.flat_map(|row| (0..cols).map(move |col| (row, col)));
    places
        .flat_map(|(row, col)| encode(dtype, element(which, call, row, col)))
        .collect()
}

pub fn encode(dtype: DType, value: f32) -> Vec<u8> {
    warpweave_symm_mem::host::encode(dtype, &[value])
}

/// C of a call by the definition.
pub fn gemm(problem: &Problem, call: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for row in 0..problem.m {
        for col in 0..problem.n {
            let sum = (0..problem.k)
                .map(|i| element(0, call, row, i) * element(1, 0, i, col))
                .sum();
            bytes.extend(encode(problem.dtype, sum));
        }
    }
    bytes
}

/// Calls `bound` with changing inputs, the even calls as they are and the odd ones as replays, and returns
/// every C.
pub fn calls<B: ExecuteBackend>(
    bound: &mut Bound<B>,
    problem: &Problem,
    calls: usize,
) -> Result<Vec<Vec<u8>>> {
    let plan = bound.plan();
    let shard = problem.shard(plan.rank, plan.world);
    bound.write("b", &matrix(problem.dtype, (1, 0), 0..problem.k, problem.n))?;
    bound.capture()?;
    let mut outputs = Vec::new();
    for call in 0..calls {
        bound.write(
            "a",
            &matrix(problem.dtype, (0, call), shard.clone(), problem.k),
        )?;
        let mut c = vec![0xff; problem.m * problem.n * problem.dtype.size()];
        bound.write("c", &c)?;
        if call % 2 == 0 {
            bound.run()?;
        } else {
            bound.replay()?;
        }
        bound.read("c", &mut c)?;
        outputs.push(c);
    }
    bound.synchronize()?;
    Ok(outputs)
}
