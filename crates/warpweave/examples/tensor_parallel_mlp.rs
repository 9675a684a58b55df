//! A tensor-parallel MLP, y = relu(x · W₁ᵀ + b₁) · W₂ᵀ: a column-parallel linear layer, then a row-parallel
//! one.
//!
//! The rows of x are sharded over the ranks. Each rank holds its columns of the hidden layer: its rows of W₁
//! and b₁, and its columns of W₂. The first layer gathers x while it multiplies what has arrived; the second
//! adds the ranks' parts of y while it multiplies the rest. The result is compared, element by element, with
//! the definition computed on one rank.
//!
//! Ranks are threads here: one for each GPU, or four on the host backend.

use std::error::Error;
use std::sync::Arc;

use warpweave::overlap::algorithms;
use warpweave::overlap::execute::{ExecuteBackend, Executor};
use warpweave::overlap::plan::{Problem, shard};
use warpweave::symm_mem::{Cuda, DType, Exchange, Host, ThreadExchange};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Rows of x, its columns, and those of the hidden layer.
const TOKENS: usize = 30;
const MODEL: usize = 24;
const HIDDEN: usize = 4 * MODEL;
const STEPS: usize = 3;

fn main() -> Outcome<()> {
    let gpus = Cuda::device_count().unwrap_or(0).min(8);
    let on_gpus = gpus > 1 && cfg!(feature = "nvcc");
    let ranks: Vec<_> = ThreadExchange::group(if on_gpus { gpus } else { 4 })
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || match on_gpus {
                true => rank(Cuda::new(exchange.rank())?, Arc::new(exchange)),
                false => rank(Host::new(), Arc::new(exchange)),
            })
        })
        .collect();
    for thread in ranks {
        println!("{}", thread.join().expect("no rank panics")?);
    }
    Ok(())
}

fn rank<B: ExecuteBackend>(device: B, exchange: Arc<dyn Exchange>) -> Outcome<String> {
    let (me, world) = (exchange.rank(), exchange.world());
    let hidden = shard(HIDDEN, me, world);
    let stream = device.stream(Default::default())?;
    let executor = Executor::new(&device, &exchange)?;

    // N of the first is this rank's part of the hidden layer, K of the second all of it, which the ranks
    // share.
    let first = Problem::new(TOKENS, hidden.len(), MODEL, DType::F32);
    let second = Problem::new(TOKENS, MODEL, HIDDEN, DType::F32);
    let up = algorithms::find("columnParallelLinear:gather=push")?.plan(me, world, &first)?;
    let down = algorithms::find("rowParallelLinearPipeline")?.plan(me, world, &second)?;
    let (up, down) = (executor.bind(up, &stream)?, executor.bind(down, &stream)?);

    // Weights are stored with a row for each output.
    let w1 = hidden.clone().flat_map(|h| (0..MODEL).map(move |i| (h, i)));
    let w2 = (0..MODEL).flat_map(|o| hidden.clone().map(move |h| (o, h)));
    up.write("b", &bytes(w1.map(|(h, i)| weight(1, h, i))))?;
    up.write("bias", &bytes(hidden.clone().map(|h| weight(2, h, 0))))?;
    down.write("b", &bytes(w2.map(|(o, h)| weight(3, o, h))))?;

    for step in 0..STEPS {
        let mine = shard(TOKENS, me, world).flat_map(|t| (0..MODEL).map(move |i| (t, i)));
        up.write("a", &bytes(mine.map(|(t, i)| input(step, t, i))))?;
        up.run()?;
        // The activation stands for a kernel of the project's own on the same stream.
        let mut activations = vec![0; 4 * TOKENS * hidden.len()];
        up.read("c", &mut activations)?;
        down.write("a", &bytes(floats(&activations).map(|x| x.max(0.0))))?;
        down.run()?;
        let mut y = vec![0; 4 * TOKENS * MODEL];
        down.read("c", &mut y)?;
        up.synchronize()?;
        down.synchronize()?;

        let wrong = floats(&y)
            .zip(reference(step))
            .position(|(got, want)| got != want);
        if let Some(place) = wrong {
            return Err(format!("rank {me}, step {step}: element {place} is wrong").into());
        }
    }
    exchange.barrier("done")?; // nobody frees what a peer still reads
    Ok(format!(
        "rank {me} of {world} on {}: {STEPS} steps, all {} elements of y as on one rank",
        device.device().name,
        TOKENS * MODEL
    ))
}

/// y by the definition, all of it.
fn reference(step: usize) -> impl Iterator<Item = f32> {
    (0..TOKENS).flat_map(move |t| {
        let hidden: Vec<f32> = (0..HIDDEN)
            .map(|h| {
                let sum: f32 = (0..MODEL)
                    .map(|i| input(step, t, i) * weight(1, h, i))
                    .sum();
                (sum + weight(2, h, 0)).max(0.0)
            })
            .collect();
        (0..MODEL).map(move |o| (0..HIDDEN).map(|h| hidden[h] * weight(3, o, h)).sum())
    })
}

/// Small integers, so that every sum is exact in whatever order it is taken.
fn weight(matrix: usize, row: usize, col: usize) -> f32 {
    ((matrix * 31 + row * 7 + col * 13) % 5) as f32 - 2.0
}

fn input(step: usize, token: usize, col: usize) -> f32 {
    ((step * 17 + token * 11 + col * 3) % 7) as f32 - 3.0
}

fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_ne_bytes).collect()
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().copied().map(f32::from_ne_bytes)
}
