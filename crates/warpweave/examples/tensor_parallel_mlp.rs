//! A tensor-parallel MLP, y = relu(x · W₁ᵀ + b₁) · W₂ᵀ + b₂, on batches of 1 to 64 tokens at random: a
//! column-parallel linear layer, then a row-parallel one.
//!
//! The rows of x are sharded over the ranks. Each rank holds its columns of the hidden layer: its rows of W₁
//! and b₁, and its columns of W₂. The first layer gathers x while it multiplies what has arrived; the second
//! reduces the ranks' partials of y. Weights and activations are memory of this program, allocated once; the
//! layers own neither, and a call only enqueues. Each y is compared, element by element, with the definition
//! computed on one rank.
//!
//! Ranks are threads here: one for each GPU, or four on the host backend. The activation is a kernel of this
//! program's own on the host; on GPUs it goes through the host, where a project would launch its kernel.

use std::error::Error;
use std::sync::Arc;

use warpweave::overlap::execute::{DeviceSlice, ExecuteBackend, Executor};
use warpweave::overlap::layers::{
    ColumnParallelLinear, Input, Layers, Options, Output, RowParallelLinear,
};
use warpweave::overlap::plan::{Problem, shard};
use warpweave::symm_mem::host::record;
use warpweave::symm_mem::{
    Backend, Cuda, DType, DevicePtr, Exchange, Host, Memory, ThreadExchange,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The most rows of x, its columns, and those of the hidden layer.
const TOKENS: usize = 64;
const MODEL: usize = 24;
const HIDDEN: usize = 4 * MODEL;
const STEPS: usize = 12;

fn main() -> Outcome<()> {
    let gpus = match Cuda::device_count().unwrap_or(0) {
        8.. => 8, // the hidden layer is split evenly
        4.. => 4,
        gpus => gpus,
    };
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

fn rank<B: Activation>(device: B, exchange: Arc<dyn Exchange>) -> Outcome<String> {
    let (me, world) = (exchange.rank(), exchange.world());
    let hidden = shard(HIDDEN, me, world);
    let stream = device.stream(Default::default())?;
    let executor = Executor::new(&device, &exchange)?;

    // The layers are shapes. N of the first is this rank's part of the hidden layer, K of the second all of
    // it.
    let layers = Layers::new(&executor)?;
    let options = B::options().with_bias();
    let first = Problem::new(TOKENS, hidden.len(), MODEL, DType::F32);
    let up = ColumnParallelLinear::new(&layers, &first, Input::SequenceSharded, &options)?;
    let second = Problem::new(TOKENS, MODEL, HIDDEN, DType::F32);
    let down = RowParallelLinear::new(&layers, &second, Output::Reduced, &options)?;
    up.warm(&stream, 1..=TOKENS)?;
    down.warm(&stream, 1..=TOKENS)?;

    // Weights are stored with a row for each output.
    let upload = |at: &B::Memory, values: Vec<f32>| {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_ne_bytes).collect();
        // SAFETY: every memory here is as large as what is written to it, and the stream orders all work.
        unsafe { device.upload(&stream, at.address(), &bytes) }
    };
    let floats = |count: usize| device.allocate(4 * count);
    let [w1, b1] = [floats(hidden.len() * MODEL)?, floats(hidden.len())?];
    let [w2, b2] = [floats(MODEL * hidden.len())?, floats(MODEL)?];
    let rows_of_w1 = hidden
        .clone()
        .flat_map(|h| (0..MODEL).map(move |i| weight(1, h, i)));
    upload(&w1, rows_of_w1.collect())?;
    upload(&b1, hidden.clone().map(|h| weight(2, h, 0)).collect())?;
    let columns_of_w2 = (0..MODEL).flat_map(|o| hidden.clone().map(move |h| weight(3, o, h)));
    upload(&w2, columns_of_w2.collect())?;
    upload(&b2, (0..MODEL).map(|o| weight(4, o, 0)).collect())?;
    let [x, activations, y] = [MODEL, hidden.len(), MODEL].map(|columns| floats(TOKENS * columns));
    let [x, activations, y] = [x?, activations?, y?];

    let mut tokens = 0;
    for step in 0..STEPS {
        // Any number of rows, the same on all ranks.
        let m = 1 + (step * 0x9e37_79b9) % TOKENS;
        let mine = shard(m, me, world).flat_map(|t| (0..MODEL).map(move |i| input(step, t, i)));
        upload(&x, mine.collect())?;

        up.forward(
            &stream,
            DeviceSlice::of(&x),
            DeviceSlice::of(&w1),
            Some(DeviceSlice::of(&b1)),
            DeviceSlice::of(&activations),
            m,
        )?;
        device.relu(&stream, activations.address(), m * hidden.len())?;
        down.forward(
            &stream,
            DeviceSlice::of(&activations),
            DeviceSlice::of(&w2),
            Some(DeviceSlice::of(&b2)),
            DeviceSlice::of(&y),
            m,
        )?;

        let mut got = vec![0; 4 * m * MODEL];
        // SAFETY: y has so many bytes.
        unsafe { device.download(&stream, y.address(), &mut got)? };
        up.synchronize(&stream)?;
        down.synchronize(&stream)?;
        let (got, _) = got.as_chunks::<4>();
        let got = got.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        if let Some(place) = got
            .zip(reference(step, m))
            .position(|(got, want)| got != want)
        {
            return Err(format!("rank {me}, step {step}: element {place} is wrong").into());
        }
        tokens += m;
    }
    exchange.barrier("done")?; // nobody frees what a peer still reads
    Ok(format!(
        "rank {me} of {world} on {}: {STEPS} steps of {tokens} tokens, all {} elements of y as on one \
         rank; {}",
        device.device().name,
        tokens * MODEL,
        B::RELU,
    ))
}

/// relu in place, on a stream.
trait Activation: ExecuteBackend {
    /// Where it is computed.
    const RELU: &str;

    fn options() -> Options;

    fn relu(&self, stream: &Self::Stream, at: DevicePtr, elements: usize) -> Outcome<()>;
}

impl Activation for Host {
    const RELU: &str = "relu is a kernel of this program";

    fn options() -> Options {
        Options::default()
    }

    fn relu(&self, stream: &Self::Stream, at: DevicePtr, elements: usize) -> Outcome<()> {
        let kernel = move || {
            // SAFETY: the activations have so many elements, and only this stream's work uses them.
            let values = unsafe { record::write(at.as_host::<f32>(), elements) };
            values.iter_mut().for_each(|value| *value = value.max(0.0));
            Ok(())
        };
        Ok(self.launch(stream, "relu", kernel)?)
    }
}

impl Activation for Cuda {
    const RELU: &str = "relu goes through the host, for want of a kernel of this program";

    /// GPUs have no batch-invariant GEMM of f32.
    fn options() -> Options {
        Options::default().not_reproducible()
    }

    fn relu(&self, stream: &Self::Stream, at: DevicePtr, elements: usize) -> Outcome<()> {
        let mut bytes = vec![0; 4 * elements];
        // SAFETY: the activations have so many elements, and only this stream's work uses them.
        unsafe { self.download(stream, at, &mut bytes)? };
        self.synchronize(stream)?;
        for value in bytes.as_chunks_mut::<4>().0 {
            *value = f32::from_ne_bytes(*value).max(0.0).to_ne_bytes();
        }
        // SAFETY: as above.
        unsafe { self.upload(stream, at, &bytes)? };
        Ok(())
    }
}

/// y by the definition, all of it.
fn reference(step: usize, m: usize) -> impl Iterator<Item = f32> {
    (0..m).flat_map(move |t| {
        let hidden: Vec<f32> = (0..HIDDEN)
            .map(|h| {
                let sum: f32 = (0..MODEL)
                    .map(|i| input(step, t, i) * weight(1, h, i))
                    .sum();
                (sum + weight(2, h, 0)).max(0.0)
            })
            .collect();
        (0..MODEL).map(move |o| {
            let sum: f32 = (0..HIDDEN).map(|h| hidden[h] * weight(3, o, h)).sum();
            sum + weight(4, o, 0)
        })
    })
}

/// Small integers, so that every sum is exact in whatever order it is taken.
fn weight(matrix: usize, row: usize, col: usize) -> f32 {
    ((matrix * 31 + row * 7 + col * 13) % 5) as f32 - 2.0
}

fn input(step: usize, token: usize, col: usize) -> f32 {
    ((step * 17 + token * 11 + col * 3) % 7) as f32 - 3.0
}
