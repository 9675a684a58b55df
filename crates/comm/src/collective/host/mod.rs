//! The host backend's collectives: the protocols of the device code, as one block, on the stream's thread.

mod direct;
pub(crate) mod elements;
mod group;
mod norm;
mod packet;
mod packets;
mod push_reduce;
mod sentinel;

#[cfg(all(test, loom))]
mod models;

use warpweave_symm_mem::host::HostStream;
use warpweave_symm_mem::{DevicePtr, Host, Result, with_element};

use super::backend::{CollectiveKernels, Kernel};
use super::launch::{Addresses, Direct, Multimem, ScatterAllGather};
pub(super) use group::of_other_call;

impl CollectiveKernels for Host {
    fn preload_collectives(&self) -> Result<()> {
        Ok(())
    }

    fn resident_blocks(&self) -> Result<u32> {
        // One block: the references are sequential.
        Ok(1)
    }

    fn device_identity(&self) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    unsafe fn launch_collective(
        &self,
        stream: &HostStream,
        launch: Kernel<'_>,
        _blocks: u32,
    ) -> Result<()> {
        /// Enqueues work on elements of a type, or on bytes.
        macro_rules! run {
            ($name:expr, $dtype:expr, $T:ident => $work:expr) => {
                // SAFETY: the caller's obligation, kept until the work has ended.
                self.launch(stream, $name, move || unsafe {
                    with_element!($dtype, $T => { $work; Ok(()) })
                })
            };
            ($name:expr, $work:expr) => {
                self.launch(stream, $name, move || {
                    // SAFETY: as above.
                    unsafe { $work };
                    Ok(())
                })
            };
        }
        match launch {
            Kernel::Barrier(&group) => {
                run!("collective_barrier", direct::barrier(&group))
            }
            Kernel::Packets(kernel, dtype, &launch) => {
                run!(kernel.name(), dtype, T => packets::run::<T>(kernel, &launch))
            }
            Kernel::UnevenPackets(&launch) => {
                run!(
                    "packet_all_to_all_uneven",
                    packets::all_to_all_uneven(&launch)
                )
            }
            Kernel::Sentinel(dtype, &launch) => {
                run!("sentinel_all_reduce", dtype, T => sentinel::all_reduce::<T>(&launch))
            }
            Kernel::Exchange(&launch) => run!("exchange", direct::exchange(&launch)),
            Kernel::ExchangeTma(&launch) => {
                run!("exchange_bulk", direct::exchange(&launch))
            }
            Kernel::MultimemSpread(&Multimem { direct, .. }) => {
                run!("multimem_spread", direct::exchange(&direct))
            }
            Kernel::ScatterAllGather(launch) => {
                let moves = scattered(launch);
                run!("scatter_all_gather", direct::exchange(&moves))
            }
            Kernel::Reduce(dtype, &launch) => {
                run!("reduce", dtype, T => direct::reduce::<T>(&launch))
            }
            Kernel::ReduceTma(dtype, &launch) => {
                run!("reduce_bulk", dtype, T => direct::reduce::<T>(&launch))
            }
            Kernel::MultimemReduce(dtype, &Multimem { direct, .. }) => {
                run!("multimem_reduce", dtype, T => direct::reduce::<T>(&direct))
            }
            Kernel::PushReduce(dtype, &launch) => {
                run!("push_reduce", dtype, T => push_reduce::push_reduce::<T>(&launch))
            }
            Kernel::SentinelNorm(dtype, &launch) => {
                run!("sentinel_norm", dtype, T => norm::sentinel_norm::<T>(&launch))
            }
            Kernel::ReducedNorm(dtype, &launch) => {
                run!("reduced_norm", dtype, T => norm::reduced_norm::<T>(&launch))
            }
            Kernel::AddRmsNorm(dtype, &rows) => {
                run!("add_rms_norm", dtype, T => norm::add_rms_norm::<T>(&rows))
            }
        }
    }
}

/// The result of a scatter and an all-gather, that of the root's message to every rank.
fn scattered(launch: &ScatterAllGather) -> Direct {
    let (root, world) = (launch.root as usize, launch.group.pad.world as usize);
    let gives = launch.group.pad.rank as usize == root;
    let to = |rank: usize| match gives && launch.output.0[rank] != launch.input {
        true => (launch.input, launch.output.0[rank]),
        false => (DevicePtr::NULL, DevicePtr::NULL),
    };
    Direct {
        group: launch.group,
        from: Addresses::by_rank(world, |rank| to(rank).0),
        to: Addresses::by_rank(world, |rank| to(rank).1),
        bytes: launch.total,
        enter: 1,
        leave: 1,
    }
}
