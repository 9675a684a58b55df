//! Kernels whose blocks wait for those of other ranks: all blocks of a launch are resident at once.

use std::fmt;

use warpweave_symm_mem::cuda::{CudaStream, Function, LaunchConfig};
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, PadView};

use super::check_device;
use super::config::{self, Family, THREADS};
use super::prepared::{check_compiled, used_scales};
use crate::all_gather_matmul::GatheredScales;
use crate::capture::Relaxed;
use crate::cutlass::{Config, unsupported};
use crate::launches::Launches;
use crate::{Error, GemmProblem, Peers, Provider};

/// The parameter of a kernel, with the pad of a call in it.
///
/// # Safety
/// The type has the layout of the parameter in device code.
pub(super) unsafe trait Parameter: fmt::Debug + Send {
    fn pad(&mut self) -> &mut PadView;
}

/// What a parameter is made of, but for the pad. What a kernel does not use is null.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Addresses {
    pub peers: [Peers; 2],
    pub staging_stride: usize,
    pub matrices: [DevicePtr; 5],
    pub scales: GatheredScales,
}

/// Scales that no other rank has.
pub(super) fn own_scales(problem: &GemmProblem, scales: [DevicePtr; 2]) -> GatheredScales {
    let [a, b] = used_scales(problem, scales);
    GatheredScales {
        a: a.into(),
        b,
        ..GatheredScales::default()
    }
}

/// Checks that the parameter of each of `others` is told from that of `first`, from which they differ in one
/// address each.
#[cfg(test)]
pub(super) fn assert_told_apart<Operands: fmt::Debug>(
    addresses: impl Fn(&Operands) -> Addresses,
    first: &Operands,
    others: &[Operands],
) {
    for other in others {
        assert_ne!(addresses(other), addresses(first), "{other:?}");
    }
}

/// Such a kernel, with what its launches have encoded.
#[derive(Debug)]
pub(super) struct Resident {
    pub config: &'static Config,
    function: Function,
    launch: LaunchConfig,
    launches: Launches<Addresses, Box<dyn Parameter>>,
}

/// Whether the kernels of `family` are there, and run on the device of `cuda`.
pub(super) fn check_family(cuda: &Cuda, family: Family) -> Result<(), Error> {
    check_compiled(family.image())?;
    check_device(cuda.device())
}

impl Resident {
    /// The kernel of `family` in configuration `index`, in whole clusters, as many as are resident at once,
    /// and of `most` blocks at most: blocks wait for those of other ranks, which wait for blocks of this one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a configuration that the family does not have, or if not one cluster may
    /// run; those of loading the code.
    pub fn new(
        cuda: &Cuda,
        problem: &GemmProblem,
        (family, index): (Family, usize),
        most: u32,
    ) -> Result<Self, Error> {
        let _relaxed = Relaxed::begin()?;
        let (config, image, name) = config::require_kernel(family, problem, index)?;
        let function = cuda.function(image, name)?;
        let cluster = config::blocks(config);
        let mut launch = LaunchConfig {
            shared_bytes: family.shared_bytes(),
            cluster: (cluster > 1).then_some((cluster, 1, 1)),
            ..LaunchConfig::linear(cluster, THREADS)
        };
        let resident = function.max_resident_in_clusters(launch)?;
        let blocks = most.min(resident) / cluster * cluster;
        if blocks == 0 {
            let why = format!(
                "{cluster} blocks must be resident at once, of at most {most} that it may have; \
                 {resident} fit"
            );
            return unsupported(problem, Provider::Sm90, why);
        }
        launch.grid.0 = blocks;
        Ok(Self {
            config,
            function,
            launch,
            launches: Launches::default(),
        })
    }

    pub fn blocks(&self) -> u32 {
        self.launch.grid.0
    }

    /// The same with no more blocks than there are tiles for.
    pub fn with_tiles(mut self, tiles: u32) -> Self {
        self.launch.grid.0 = self.launch.grid.0.min(tiles);
        self
    }

    /// Enqueues the kernel with the parameter for `addresses`, which `encode` makes where it is not kept, and
    /// with `pad`.
    ///
    /// # Safety
    /// `cuda` is the device of [`Resident::new`]. `encode` makes the parameter of its kernel; what it points
    /// to is there until the launch has ended.
    pub unsafe fn launch<P: Parameter + 'static>(
        &self,
        cuda: &Cuda,
        stream: &CudaStream,
        (addresses, pad): (&Addresses, PadView),
        encode: impl FnOnce() -> Result<P, Error>,
    ) -> Result<(), Error> {
        let encode = || Ok(Box::new(encode()?) as Box<dyn Parameter>);
        self.launches.with(addresses, encode, |parameter| {
            *parameter.pad() = pad;
            let parameter: *mut dyn Parameter = &mut **parameter;
            // SAFETY: the caller's obligation; the type has the parameter's layout by its trait. Launching
            // reads it.
            unsafe {
                cuda.launch(stream, &self.function, self.launch, &mut [parameter.cast()])?;
            }
            Ok(())
        })
    }
}
