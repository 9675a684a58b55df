//! Launching the device code: which kernel, how many blocks, which parameters.
//!
//! Hopper runs machine code; other devices from compute capability 8.0 on run PTX. Kernels that store by
//! multicast run on Hopper only.

mod grid;
mod image;
mod parameters;

use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
use warpweave_symm_mem::{Cuda, DevicePtr};

use crate::backend::KernelBackend;
use crate::descriptor::{GatherMatmul, GatherMode, NaiveRemoteRead};
use crate::error::{Error, Result};
use crate::local_reduce::LocalReduce;
use grid::Limits;
use parameters::Gather;

/// Threads of a block of `naive_remote_read`: `kThreads`.
const NAIVE_THREADS: u32 = 512;
/// Copying threads of a block of a gather without a GEMM: `kGatherThreads`.
const GATHER_THREADS: u32 = 512;
/// The warp of a block of `threadload_gather` that signals and waits.
const SIGNAL_THREADS: u32 = 32;
/// Threads of a block of a gather with a GEMM: `kGemmThreads`.
const GEMM_THREADS: u32 = 256;
/// Threads of a block of `sum`: `kThreads`.
const REDUCE_THREADS: u32 = 256;
/// Vectors that a thread of `sum` loads before it adds: `kLoads`.
const REDUCE_LOADS: usize = 8;
/// Rows that a block copies and multiplies at a time. The larger size is used if it gives every block a
/// chunk, because B is read once per chunk.
const CHUNKS: [usize; 2] = [8, 16];

impl KernelBackend for Cuda {
    fn preload(&self) -> Result<()> {
        for (image, name) in image::all() {
            match self.function(image, name) {
                Err(error) if !error.is_unavailable() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    unsafe fn naive_remote_read(
        &self,
        stream: &CudaStream,
        launch: &NaiveRemoteRead,
    ) -> Result<()> {
        launch.validate()?;
        let name = image::naive_remote_read(launch.dtype);
        let kernel = Kernel {
            image: &image::NAIVE_REMOTE_READ,
            name,
            threads: NAIVE_THREADS,
        };
        let limits = kernel.limits(self, launch.max_blocks)?;
        let blocks = grid::naive_remote_read(launch.m, launch.n, launch.pad.world as usize, limits);
        // SAFETY: the structure is the kernel's parameter; the rest is the caller's obligation.
        unsafe {
            kernel.launch(
                self,
                stream,
                blocks,
                parameters::NaiveRemoteRead::from(launch),
            )
        }
    }

    unsafe fn gather_matmul(&self, stream: &CudaStream, launch: &GatherMatmul) -> Result<()> {
        launch.validate()?;
        if let GatherMode::Multimem {
            address: DevicePtr::NULL,
            ..
        } = launch.mode
        {
            return Err(Error::InvalidLaunch {
                kernel: launch.name(),
                rank: launch.pad.rank as usize,
                what: "address",
                why: "a GPU stores to all ranks through a multicast address, and this is null"
                    .into(),
            });
        }
        let world = launch.pad.world as usize;
        let (kernel, blocks) = if launch.n == 0 {
            let kernel = gather_only(launch);
            let limits = kernel.limits(self, launch.max_blocks)?;
            (
                kernel,
                grid::gather(launch.m, launch.k * launch.dtype.size(), world, limits),
            )
        } else {
            let large = gather_with_gemm(launch, CHUNKS[1])?;
            let limits = large.limits(self, launch.max_blocks)?;
            if launch.m >= CHUNKS[1] * limits.resident as usize {
                (
                    large,
                    grid::gather_matmul(launch.m, world, CHUNKS[1], limits),
                )
            } else {
                let small = gather_with_gemm(launch, CHUNKS[0])?;
                let limits = small.limits(self, launch.max_blocks)?;
                (
                    small,
                    grid::gather_matmul(launch.m, world, CHUNKS[0], limits),
                )
            }
        };
        // SAFETY: the structure is the parameter of the kernels of its mode; the rest is the caller's
        // obligation.
        unsafe {
            match Gather::from(launch) {
                Gather::Threadload(parameters) => kernel.launch(self, stream, blocks, parameters),
                Gather::Multimem(parameters) => kernel.launch(self, stream, blocks, parameters),
            }
        }
    }

    unsafe fn local_reduce(&self, stream: &CudaStream, launch: &LocalReduce) -> Result<()> {
        launch.validate()?;
        let name = image::sum(launch.dtype);
        let kernel = Kernel {
            image: &image::SUM,
            name,
            threads: REDUCE_THREADS,
        };
        let limits = kernel.limits(self, None)?;
        let parameters = parameters::ReduceParams::from(launch);
        if parameters.units == 0 {
            return Ok(());
        }
        let each = match parameters.vectors == 1 {
            true => REDUCE_LOADS / launch.count,
            false => 1,
        };
        let blocks = grid::local_reduce(parameters.units as usize, each, limits);
        // SAFETY: the structure is the kernel's parameter; the rest is the caller's obligation.
        unsafe { kernel.launch(self, stream, blocks, parameters) }
    }
}

/// A kernel of the embedded code and its block.
struct Kernel {
    image: &'static Image,
    name: &'static str,
    threads: u32,
}

impl Kernel {
    fn limits(&self, cuda: &Cuda, max_blocks: Option<u32>) -> Result<Limits> {
        let function = cuda.function(self.image, self.name)?;
        Ok(Limits {
            resident: function.max_resident_blocks(self.threads, 0)?,
            sms: cuda.sms(),
            max_blocks,
        })
    }

    /// # Safety
    /// The kernel takes one parameter, `parameters`, whose pointers are valid as [`KernelBackend`] requires.
    unsafe fn launch<P>(
        &self,
        cuda: &Cuda,
        stream: &CudaStream,
        blocks: u32,
        mut parameters: P,
    ) -> Result<()> {
        let function = cuda.function(self.image, self.name)?;
        let config = LaunchConfig::linear(blocks, self.threads);
        // SAFETY: the caller's obligation.
        unsafe {
            cuda.launch(
                stream,
                &function,
                config,
                &mut [(&raw mut parameters).cast()],
            )?
        };
        Ok(())
    }
}

fn gather_only(launch: &GatherMatmul) -> Kernel {
    match launch.mode {
        GatherMode::ThreadLoad { .. } => Kernel {
            image: &image::THREADLOAD_GATHER,
            name: "threadload_gather",
            threads: GATHER_THREADS + SIGNAL_THREADS,
        },
        GatherMode::Multimem { .. } => Kernel {
            image: &image::MULTIMEM_GATHER,
            name: image::multimem_gather(launch.dtype),
            threads: GATHER_THREADS,
        },
    }
}

fn gather_with_gemm(launch: &GatherMatmul, chunk: usize) -> Result<Kernel> {
    let (image, name) = match launch.mode {
        GatherMode::ThreadLoad { .. } => (
            &image::THREADLOAD_GATHER,
            image::threadload_gather_matmul(launch.dtype, chunk),
        ),
        GatherMode::Multimem { .. } => (
            &image::MULTIMEM_GATHER,
            image::multimem_gather_matmul(launch.dtype, chunk),
        ),
    };
    Ok(Kernel {
        image,
        name,
        threads: GEMM_THREADS,
    })
}
