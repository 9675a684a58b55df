//! Ranks as threads of this process, and a problem with exact results.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use warpweave_gemm::{SCALE_BLOCK, Scaling};
use warpweave_overlap::execute::{Bound, ExecuteBackend, Executor, Result};
use warpweave_overlap::plan::{Plan, Problem, Scales};
use warpweave_symm_mem::{DType, Exchange, ThreadExchange};

/// One rank of a test.
pub struct Rank<B: ExecuteBackend> {
    pub exchange: Arc<dyn Exchange>,
    pub executor: Executor<B>,
    pub stream: B::Stream,
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
    on_ranks_by(world, |exchange| Arc::new(exchange), device, run)
}

/// The same with another exchange, which `by` makes of that of the threads.
pub fn on_ranks_by<B: ExecuteBackend, T: Send>(
    world: usize,
    by: impl Fn(ThreadExchange) -> Arc<dyn Exchange> + Sync,
    device: impl Fn(usize) -> B + Sync,
    run: impl Fn(Rank<B>) -> T + Sync,
) -> Vec<T> {
    let (by, device, run) = (&by, &device, &run);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = ThreadExchange::group(world)
            .into_iter()
            .map(|exchange| {
                scope.spawn(move || {
                    let device = device(exchange.rank());
                    let exchange = by(exchange);
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
    encode(
        dtype,
        places.map(|(row, col)| element(which, call, row, col)),
    )
}

/// The elements of `dtype` nearest to `values`, as they lie in memory.
pub fn encode(dtype: DType, values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    warpweave_symm_mem::host::encode(dtype, &values.into_iter().collect::<Vec<_>>())
}

/// The scale of line `line` of the matrix `which` in call `call`, or of a block of it: a power of two, so
/// that GEMMs stay exact.
fn scale(problem: &Problem, which: usize, call: usize, (line, block): (usize, usize)) -> f32 {
    match problem.scaling {
        Scaling::None => 1.0,
        Scaling::Tensor => [0.5, 4.0][(which + call) % 2],
        _ => [0.5, 1.0, 2.0, 4.0][(3 * which + call + line + block + block / 3) % 4],
    }
}

/// Those of some rows of A (`which` is 0), or of B.
fn scales(problem: &Problem, which: usize, call: usize, rows: std::ops::Range<usize>) -> Vec<u8> {
    let (lines, cols) = Scales::shapes(problem.scaling, (problem.m, problem.n, problem.k))[which];
    let lines = match (which, problem.scaling) {
        (0, Scaling::Row | Scaling::Block) => rows,
        _ => 0..lines,
    };
    let places = lines.flat_map(|line| (0..cols).map(move |col| (line, col)));
    encode(DType::F32, places.map(|at| scale(problem, which, call, at)))
}

/// What `make` gives for `key`, made once: ranks and algorithms of one problem compare with the same bytes.
pub fn remembered(key: impl Debug, make: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    /// Entries; small ones, but for tests that run for long.
    const MOST: usize = 20_000;
    static KNOWN: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let key = format!("{key:?}");
    if let Some(bytes) = known().get(&key) {
        return bytes.clone();
    }
    let made = make();
    let mut known = known();
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(key, made.clone());
    made
}

/// C of a call by the definition.
pub fn gemm(problem: &Problem, call: usize) -> Vec<u8> {
    remembered(("gemm", problem, call), || defined(problem, call))
}

fn defined(problem: &Problem, call: usize) -> Vec<u8> {
    let places = (0..problem.m).flat_map(|row| (0..problem.n).map(move |col| (row, col)));
    let values = places.map(|(row, col)| {
        let (line, size) = match problem.scaling {
            Scaling::Block => (col / SCALE_BLOCK, SCALE_BLOCK),
            _ => (col, problem.k),
        };
        let terms = (0..problem.k).map(|i| {
            let scales =
                scale(problem, 0, call, (row, i / size)) * scale(problem, 1, 0, (line, i / size));
            element(0, call, row, i) * element(1, 0, i, col) * scales
        });
        terms.sum()
    });
    encode(problem.output(), values)
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
    let is_narrow = problem.scaling != Scaling::None;
    if is_narrow {
        // Stored n × k.
        let places = (0..problem.n).flat_map(|col| (0..problem.k).map(move |i| (i, col)));
        let b = places.map(|(i, col)| element(1, 0, i, col));
        bound.write("b", &encode(problem.dtype, b))?;
        bound.write("scales_b", &scales(problem, 1, 0, 0..problem.n))?;
    } else {
        bound.write("b", &matrix(problem.dtype, (1, 0), 0..problem.k, problem.n))?;
    }
    bound.capture()?;
    let mut outputs = Vec::new();
    for call in 0..calls {
        bound.write(
            "a",
            &matrix(problem.dtype, (0, call), shard.clone(), problem.k),
        )?;
        if is_narrow {
            bound.write("scales_a", &scales(problem, 0, call, shard.clone()))?;
        }
        let mut c = vec![0xff; problem.m * problem.n * problem.output().size()];
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
