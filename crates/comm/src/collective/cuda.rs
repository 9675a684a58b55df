//! The launches of collectives on GPUs.

use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::{Cuda, DType, Error, Result, device_image};

use super::backend::{CollectiveKernels, Kernel, Move};
use super::enqueue::{DIRECT_THREADS, PACKET_THREADS, vector};
use super::launch::{Group, MAX_WORLD, Multimem, PacketKernel};
use super::push_reduce::vector as push_vector;
use super::scatter_all_gather::vector as scatter_vector;
use super::sentinel::threads as sentinel_threads;

static PACKETS: Image = device_image!("packets", sm_90a, compute_80);
static SENTINEL: Image = device_image!("sentinel", sm_90a, compute_80);
static DIRECT: Image = device_image!("direct", sm_90a, compute_80);
static SCATTER_ALL_GATHER: Image = device_image!("scatter_all_gather", sm_90a, compute_80);
static PUSH_REDUCE: Image = device_image!("push_reduce", sm_90a, compute_80);

/// The world sizes for which kernels are compiled: the smallest that holds all ranks is taken.
const WORLDS: [usize; 4] = [2, 4, 8, MAX_WORLD];

/// The element types of reductions.
const DTYPES: [DType; 3] = DType::ARITHMETIC;

/// A kernel name, a constant for each kernel.
macro_rules! by_world {
    ($world:expr, $($part:expr),+) => {
        match $world {
            ..=2 => concat!($($part),+, "_2"),
            3..=4 => concat!($($part),+, "_4"),
            5..=8 => concat!($($part),+, "_8"),
            _ => concat!($($part),+, "_16"),
        }
    };
}

macro_rules! by_dtype_and_world {
    ($dtype:expr, $world:expr, $name:expr) => {
        Some(match $world {
            ..=2 => warpweave_symm_mem::kernel_name!($dtype, $name, "_2"),
            3..=4 => warpweave_symm_mem::kernel_name!($dtype, $name, "_4"),
            5..=8 => warpweave_symm_mem::kernel_name!($dtype, $name, "_8"),
            _ => warpweave_symm_mem::kernel_name!($dtype, $name, "_16"),
        })
    };
}

// After the macros, which they use.
mod bulk;
mod multimem;
mod norm;

/// `words`: for messages of whole 32-bit words, as those of f32 always are.
fn packet_kernel(
    kernel: PacketKernel,
    dtype: DType,
    world: usize,
    words: bool,
) -> Option<&'static str> {
    macro_rules! moves {
        ($name:literal) => {
            Some(match words {
                true => by_world!(world, $name),
                false => by_world!(world, $name, "_halves"),
            })
        };
    }
    macro_rules! sums {
        ($name:literal) => {
            match words || dtype == DType::F32 {
                true => by_dtype_and_world!(dtype, world, $name),
                false => by_dtype_and_world!(dtype, world, concat!($name, "_halves")),
            }
        };
    }
    match kernel {
        PacketKernel::AllGather => moves!("packet_all_gather"),
        PacketKernel::AllToAll => moves!("packet_all_to_all"),
        PacketKernel::Broadcast => moves!("packet_broadcast"),
        PacketKernel::ReduceScatter => sums!("packet_reduce_scatter"),
        PacketKernel::AllReduce => sums!("packet_all_reduce"),
    }
}

fn sentinel_kernel(dtype: DType, world: usize, aligned: bool) -> Option<&'static str> {
    match aligned {
        true => by_dtype_and_world!(dtype, world, "sentinel_16"),
        false => by_dtype_and_world!(dtype, world, "sentinel_1"),
    }
}

fn uneven_kernel(world: usize, words: bool) -> &'static str {
    match words {
        true => by_world!(world, "packet_all_to_all_uneven"),
        false => by_world!(world, "packet_all_to_all_uneven", "_halves"),
    }
}

fn exchange_kernel(world: usize, vector: usize) -> &'static str {
    match vector {
        16 => by_world!(world, "exchange_16"),
        4 => by_world!(world, "exchange_4"),
        _ => by_world!(world, "exchange_2"),
    }
}

fn reduce_kernel(dtype: DType, world: usize, vector: usize) -> Option<&'static str> {
    match vector {
        16 => by_dtype_and_world!(dtype, world, "reduce_16"),
        _ => by_dtype_and_world!(dtype, world, "reduce_1"),
    }
}

fn push_reduce_kernel(dtype: DType, world: usize, vector: usize) -> Option<&'static str> {
    match vector {
        16 => by_dtype_and_world!(dtype, world, "push_reduce_16"),
        _ => by_dtype_and_world!(dtype, world, "push_reduce_1"),
    }
}

fn scatter_all_gather_kernel(world: usize, vector: usize) -> &'static str {
    match vector {
        16 => by_world!(world, "scatter_all_gather_16"),
        4 => by_world!(world, "scatter_all_gather_4"),
        _ => by_world!(world, "scatter_all_gather_2"),
    }
}

/// Every kernel with the image that holds it.
fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    use PacketKernel::*;
    let kernels = [AllGather, AllToAll, Broadcast, ReduceScatter, AllReduce];
    let packets = WORLDS.into_iter().flat_map(move |world| {
        kernels.into_iter().flat_map(move |kernel| {
            let dtypes = if kernel.reduces() {
                &DTYPES[..]
            } else {
                &DTYPES[..1]
            };
            let names: Vec<_> = dtypes
                .iter()
                .flat_map(|&dtype| {
                    [true, false].map(|words| packet_kernel(kernel, dtype, world, words))
                })
                .flatten()
                .collect();
            names.into_iter().map(|name| (&PACKETS, name))
        })
    });
    let uneven = WORLDS
        .into_iter()
        .flat_map(|world| [true, false].map(|words| (&PACKETS, uneven_kernel(world, words))));
    let sentinels = WORLDS.into_iter().flat_map(move |world| {
        let names = DTYPES.into_iter().flat_map(move |dtype| {
            [true, false].map(|aligned| sentinel_kernel(dtype, world, aligned))
        });
        names.flatten().map(|name| (&SENTINEL, name))
    });
    let direct = WORLDS.into_iter().flat_map(move |world| {
        let moves = [16, 4, 2].map(|vector| exchange_kernel(world, vector));
        let sums = DTYPES
            .into_iter()
            .flat_map(move |dtype| [16, 1].map(|vector| reduce_kernel(dtype, world, vector)));
        moves
            .into_iter()
            .chain(sums.flatten())
            .map(|name| (&DIRECT, name))
    });
    let pushed = WORLDS.into_iter().flat_map(move |world| {
        let names = DTYPES
            .into_iter()
            .flat_map(move |dtype| [16, 1].map(|vector| push_reduce_kernel(dtype, world, vector)));
        names.flatten().map(|name| (&PUSH_REDUCE, name))
    });
    let scattered = WORLDS.into_iter().flat_map(|world| {
        let names = [16, 4, 2].map(|vector| scatter_all_gather_kernel(world, vector));
        names.map(|name| (&SCATTER_ALL_GATHER, name))
    });
    packets
        .chain(uneven)
        .chain(sentinels)
        .chain(direct)
        .chain(pushed)
        .chain(scattered)
        .chain([(&DIRECT, "collective_barrier")])
        .chain(bulk::all())
        .chain(multimem::all())
        .chain(norm::all())
}

impl CollectiveKernels for Cuda {
    fn preload_collectives(&self) -> Result<()> {
        for (image, name) in all() {
            match self.function(image, name) {
                Err(error) if !error.is_unavailable() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn resident_blocks(&self) -> Result<u32> {
        // A block of each kernel fits on an SM: their launch bounds allow as many threads.
        Ok(self.sms())
    }

    fn device_identity(&self) -> Result<Option<Vec<u8>>> {
        let uuid = self.context().uuid().map_err(|error| Error::Stream {
            device: self.name().into(),
            cause: error.to_string(),
        })?;
        Ok(Some(uuid.bytes.iter().map(|&byte| byte as u8).collect()))
    }

    unsafe fn launch_collective(
        &self,
        stream: &CudaStream,
        launched: Kernel<'_>,
        blocks: u32,
    ) -> Result<()> {
        let world = |group: &Group| group.pad.world as usize;
        let known = |name: Option<_>, dtype| name.ok_or_else(|| unknown(dtype));
        let grid = (blocks, DIRECT_THREADS as u32);
        // SAFETY: the kernels take their structures by value, those of packets wait for their predecessors,
        // and what takes another kernel's place synchronizes as that does; the rest is the caller's
        // obligation.
        unsafe {
            match launched {
                Kernel::Barrier(&group) => {
                    launch(self, stream, &DIRECT, "collective_barrier", (1, 32), group)
                }
                Kernel::Packets(kernel, dtype, &packets) => {
                    let (world, words) = (world(&packets.group), packets.aligned != 0);
                    let name = known(packet_kernel(kernel, dtype, world, words), dtype)?;
                    let config = packet_config(blocks, PACKET_THREADS);
                    launch_shared(self, stream, &PACKETS, name, config, packets)
                }
                Kernel::Sentinel(dtype, &packets) => {
                    let (world, aligned) = (world(&packets.group), packets.aligned != 0);
                    let name = known(sentinel_kernel(dtype, world, aligned), dtype)?;
                    let config = packet_config(blocks, sentinel_threads(&packets, blocks));
                    launch_shared(self, stream, &SENTINEL, name, config, packets)
                }
                Kernel::UnevenPackets(&uneven) => {
                    let packets = &uneven.packets;
                    let name = uneven_kernel(world(&packets.group), packets.aligned != 0);
                    let config = packet_config(blocks, PACKET_THREADS);
                    launch_shared(self, stream, &PACKETS, name, config, uneven)
                }
                Kernel::ExchangeTma(direct) if vector(direct, 0) == 16 => {
                    bulk::exchange(self, stream, direct, blocks)
                }
                Kernel::MultimemSpread(multimem) if multimem::is_aligned(multimem) => {
                    multimem::spread(self, stream, multimem, blocks)
                }
                Kernel::Exchange(&direct)
                | Kernel::ExchangeTma(&direct)
                | Kernel::MultimemSpread(&Multimem { direct, .. }) => {
                    let name = exchange_kernel(world(&direct.group), vector(&direct, 0));
                    launch(self, stream, &DIRECT, name, grid, direct)
                }
                Kernel::ReduceTma(dtype, direct) if bulk::reduces(direct, dtype) => {
                    bulk::reduce(self, stream, dtype, direct, blocks)
                }
                Kernel::MultimemReduce(dtype, multimem) if multimem::is_aligned(multimem) => {
                    multimem::reduce(self, stream, dtype, multimem, blocks)
                }
                Kernel::Reduce(dtype, &direct)
                | Kernel::ReduceTma(dtype, &direct)
                | Kernel::MultimemReduce(dtype, &Multimem { direct, .. }) => {
                    let vector = vector(&direct, dtype.size());
                    let name = known(reduce_kernel(dtype, world(&direct.group), vector), dtype)?;
                    launch(self, stream, &DIRECT, name, grid, direct)
                }
                Kernel::PushReduce(dtype, &push) => {
                    let vector = push_vector(&push, dtype.size());
                    let name = push_reduce_kernel(dtype, world(&push.group), vector);
                    launch(self, stream, &PUSH_REDUCE, known(name, dtype)?, grid, push)
                }
                Kernel::ScatterAllGather(&scatter) => {
                    let vector = scatter_vector(&scatter);
                    let name = scatter_all_gather_kernel(world(&scatter.group), vector);
                    launch(self, stream, &SCATTER_ALL_GATHER, name, grid, scatter)
                }
                Kernel::SentinelNorm(dtype, norm) => {
                    norm::sentinel_norm(self, stream, dtype, norm, blocks)
                }
                Kernel::ReducedNorm(dtype, norm) => {
                    norm::reduced_norm(self, stream, dtype, norm, blocks)
                }
                Kernel::AddRmsNorm(dtype, rows) => norm::add_rms_norm(self, stream, dtype, rows),
            }
        }
    }

    unsafe fn batched_copies(&self, stream: &CudaStream, moves: &[Move]) -> Result<()> {
        let batch: Vec<_> = moves
            .iter()
            .map(|copy| (copy.dst, copy.src, copy.bytes))
            .collect();
        // SAFETY: the caller's obligation.
        unsafe { self.copy_batch(stream, &batch) }
    }
}

/// The launch of a kernel of packets or sentinels, which waits for its predecessor on the device.
fn packet_config(blocks: u32, threads: usize) -> LaunchConfig {
    LaunchConfig {
        programmatic: true,
        ..LaunchConfig::linear(blocks, threads as u32)
    }
}

/// # Safety
/// The kernel takes one parameter, the twin of this type; the rest is as [`CollectiveKernels`] asks.
unsafe fn launch<P>(
    cuda: &Cuda,
    stream: &CudaStream,
    image: &'static Image,
    name: &'static str,
    (blocks, threads): (u32, u32),
    parameter: P,
) -> Result<()> {
    let config = LaunchConfig::linear(blocks, threads);
    // SAFETY: the caller's obligation.
    unsafe { launch_shared(cuda, stream, image, name, config, parameter) }
}

/// As [`launch`], with dynamic shared memory.
///
/// # Safety
/// As for [`launch`].
unsafe fn launch_shared<P>(
    cuda: &Cuda,
    stream: &CudaStream,
    image: &'static Image,
    name: &'static str,
    config: LaunchConfig,
    mut parameter: P,
) -> Result<()> {
    let function = cuda.function(image, name)?;
    // SAFETY: the caller's obligation.
    unsafe {
        cuda.launch(
            stream,
            &function,
            config,
            &mut [(&raw mut parameter).cast()],
        )
    }
}

fn unknown(dtype: DType) -> Error {
    Error::Unavailable {
        what: format!("reductions of {dtype}"),
        why: "the kernels know f32, f16 and bf16".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_device_code_is_preloaded() {
        let mut names: Vec<_> = all().map(|(_, name)| name).collect();
        names.sort_unstable();
        names.dedup();
        // For each world: by packets four that move (words and halves) and two that reduce (words of three
        // types, halves of two); by sentinels (vectors and elements of three types); moves of three widths;
        // reductions in two widths of three types, and the same for what was pushed; reductions of three
        // types by bulk copies; broadcasts of three widths. Then the barrier, moves by bulk copies,
        // reductions of three types through multicast addresses, and stores to these. RMSNorm after packets
        // (words of three types, halves of two), after sentinels, and alone (vectors, elements, and vectors
        // of many rows).
        let by_world = 3 * 2 + 2 * 5 + 2 * 3 + 3 + 3 * 2 + 3 * 2 + 3 + 3 + 5 + 3 + 2;
        assert_eq!(names.len(), 4 * by_world + 2 + 3 + 1 + 3 * 3, "{names:?}");
        #[cfg(feature = "nvcc")]
        for (image, name) in all() {
            let name = name.as_bytes();
            let known = image.sm_90a().windows(name.len()).any(|part| part == name);
            assert!(known, "{} of `{}`", name.escape_ascii(), image.name());
        }
    }
}
