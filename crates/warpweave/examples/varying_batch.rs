//! Several layers of one shape, called with 1 to 64 rows at random: what a server does.
//!
//! One layer object serves all of them, because weights are operands of the call. The program prints what it
//! holds, counts the allocations of device memory during the calls, times the calls on the host, and compares
//! every row with the same row computed alone. `--tune` first measures the schedules on this machine; where
//! figures are kept (on the host backend if `WARPWEAVE_CACHE_DIR` is set), later runs choose by them.
//!
//! Ranks are threads here: one for each GPU, or four on the host backend.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use warpweave::overlap::execute::{DeviceSlice, ExecuteBackend, Executor};
use warpweave::overlap::layers::{Layers, Options, Output, RowParallelLinear};
use warpweave::overlap::plan::{Problem, shard};
use warpweave::symm_mem::{Cuda, DType, Exchange, Host, Memory, ThreadExchange};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const LAYERS: usize = 4;
const MOST: usize = 64;
const N: usize = 64;
const K: usize = 256;
const STEPS: usize = 100;
/// Different rows of x.
const ROWS: usize = 8;

fn main() -> Outcome<()> {
    let tune = std::env::args().any(|argument| argument == "--tune");
    let gpus = Cuda::device_count().unwrap_or(0).min(8);
    let on_gpus = gpus > 1 && cfg!(feature = "nvcc");
    let ranks: Vec<_> = ThreadExchange::group(if on_gpus { gpus } else { 4 })
        .into_iter()
        .map(|exchange| {
            std::thread::spawn(move || match on_gpus {
                true => rank(Cuda::new(exchange.rank())?, Arc::new(exchange), tune),
                false => rank(Host::new(), Arc::new(exchange), tune),
            })
        })
        .collect();
    for (rank, thread) in ranks.into_iter().enumerate() {
        let report = thread.join().expect("no rank panics")?;
        if rank == 0 {
            print!("{report}");
        }
    }
    Ok(())
}

fn rank<B: Counted>(device: B, exchange: Arc<dyn Exchange>, tune: bool) -> Outcome<String> {
    let (me, world) = (exchange.rank(), exchange.world());
    let columns = shard(K, me, world);
    let dtype = DType::Bf16;
    let stream = device.stream(Default::default())?;
    let executor = Executor::new(&device, &exchange)?;
    let layers = Layers::new(&executor)?;
    let shape = Problem::new(MOST, N, K, dtype);
    let mut linear = RowParallelLinear::new(&layers, &shape, Output::Reduced, &Options::default())?;

    let bytes = |elements: usize| elements * dtype.size();
    let upload = |at: &B::Memory, values: &mut dyn Iterator<Item = f32>| {
        let bytes: Vec<u8> = values.flat_map(bf16).collect();
        // SAFETY: every memory here is as large as what is written to it, and the stream orders all work.
        unsafe { device.upload(&stream, at.address(), &bytes) }
    };
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        let weight = device.allocate(bytes(N * columns.len()))?;
        let places = (0..N).flat_map(|row| columns.clone().map(move |col| row * K + col));
        upload(&weight, &mut places.map(|place| real(layer, place)))?;
        weights.push(weight);
    }
    let x = device.allocate(bytes(MOST * columns.len()))?;
    let y = device.allocate(bytes(MOST * N))?;
    if tune {
        linear.tune(
            &stream,
            DeviceSlice::of(&x),
            DeviceSlice::of(&weights[0]),
            DeviceSlice::of(&y),
        )?;
    }
    linear.warm(&stream, 1..=MOST)?;

    // Rows of x by their numbers, all layers one after the other; the rows of y of each.
    let mut host_times = Vec::new();
    let mut call = |rows: &[usize]| -> Outcome<Vec<Vec<u8>>> {
        let places = rows
            .iter()
            .flat_map(|row| columns.clone().map(move |col| row * K + col));
        upload(&x, &mut places.map(|place| real(LAYERS, place)))?;
        let mut all = Vec::new();
        for weight in &weights {
            let begin = Instant::now();
            linear.forward(
                &stream,
                DeviceSlice::of(&x),
                DeviceSlice::of(weight),
                None,
                DeviceSlice::of(&y),
                rows.len(),
            )?;
            host_times.push(begin.elapsed());
            let mut got = vec![0; bytes(rows.len() * N)];
            // SAFETY: y has so many bytes.
            unsafe { device.download(&stream, y.address(), &mut got)? };
            linear.synchronize(&stream)?;
            all.push(got);
        }
        Ok(all)
    };
    let alone: Vec<_> = (0..ROWS).map(|row| call(&[row])).collect::<Outcome<_>>()?;
    let before = device.allocated()?;
    let mut seen = [false; MOST];
    for step in 0..STEPS {
        // Any number of rows, the same on all ranks.
        let m = 1 + (step * 0x9e37_79b9) % MOST;
        seen[m - 1] = true;
        let rows: Vec<usize> = (0..m).map(|at| (at * 5 + step) % ROWS).collect();
        for (layer, got) in call(&rows)?.iter().enumerate() {
            for (at, got) in got.chunks(bytes(N)).enumerate() {
                if got != alone[rows[at]][layer] {
                    return Err(
                        format!("rank {me}: row {at} of {m} has other bits than alone").into(),
                    );
                }
            }
        }
    }
    let allocated = device.allocated()? - before;
    host_times.sort();
    let (median, worst) = (
        host_times[host_times.len() / 2],
        host_times[host_times.len() - 1],
    );
    exchange.barrier("done")?; // nobody frees what a peer still reads

    let sizes = seen.iter().filter(|seen| **seen).count();
    let schedules: Vec<String> = linear
        .choices()
        .iter()
        .map(|choice| {
            format!(
                "{}..{} {}",
                choice.ms.start(),
                choice.ms.end(),
                choice.configuration
            )
        })
        .collect();
    Ok(format!(
        "{world} ranks on {}, {LAYERS} layers of {N}x{K} {dtype}, {sizes} batch sizes\n\
         schedules: {}\n\
         weights: {} bytes on each rank, held once\n\
         arena: {} bytes on each rank, and {} of this layer's own\n\
         device allocations during {} calls: {allocated}\n\
         host time of a call: median {:.1} us, worst {:.1} us\n\
         rows: bit-equal at every m\n",
        device.device().name,
        schedules.join(", "),
        weights.iter().map(Memory::bytes).sum::<usize>(),
        layers.arena_bytes().0,
        linear.own_bytes(),
        STEPS * LAYERS,
        median.as_secs_f64() * 1e6,
        worst.as_secs_f64() * 1e6,
    ))
}

/// What tells whether device memory was allocated.
trait Counted: ExecuteBackend {
    /// Grows with every allocation.
    fn allocated(&self) -> Outcome<u64>;
}

impl Counted for Host {
    fn allocated(&self) -> Outcome<u64> {
        Ok(self.allocations())
    }
}

impl Counted for Cuda {
    /// Bytes of the device in use.
    fn allocated(&self) -> Outcome<u64> {
        let (free, total) = cudarc::driver::result::mem_get_info()?;
        Ok((total - free) as u64)
    }
}

/// A number with all its bits, from -1 to 1.
fn real(matrix: usize, place: usize) -> f32 {
    let mixed = (matrix * 1_000_003 + place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Truncated to bf16.
fn bf16(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_ne_bytes()
}
