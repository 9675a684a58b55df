//! Where this program runs: in a workspace that cargo builds, or in a bundle of what was built elsewhere.

use std::path::PathBuf;

use crate::bundle::Bundle;
use crate::cargo::{self, CUDA_FEATURES, target_directory, workspace};
use crate::device::{self, Asked, Chosen, Gpus};
use crate::error::{Error, Result};
use crate::setup;

/// What a command works in.
#[derive(Debug)]
pub enum Place {
    Workspace(PathBuf),
    /// Programs built elsewhere, in the folder of this one.
    Bundle(Bundle),
}

/// Names the profile of `warpweave`: `dev` for the one that `cargo test` builds, else `release`.
pub const PROFILE: &str = "WARPWEAVE_PROFILE";

impl Place {
    /// Looks for a bundle around this program, then for a workspace around the current directory.
    pub fn find() -> Result<Self> {
        if let Some(bundle) = Bundle::around_this_program()? {
            return Ok(Place::Bundle(bundle));
        }
        workspace().map(Place::Workspace)
    }

    /// The folder for what runs leave under `name`: logs, baselines.
    pub fn results(&self, name: &str) -> PathBuf {
        match self {
            Place::Workspace(root) => target_directory(root).join("warpweave").join(name),
            Place::Bundle(bundle) => bundle.root.join(name),
        }
    }

    /// Chooses device and ranks, on this machine or `hosts` others; GPUs are the default where `warpweave`
    /// has device code, or can be built with it.
    pub fn choose(&self, asked: Asked, hosts: usize) -> Result<Chosen> {
        let has_device_code = match self {
            Place::Workspace(_) => true,
            Place::Bundle(bundle) => bundle.has_device_code(),
        };
        device::choose(asked, hosts, &Gpus::find(), has_device_code)
    }

    /// The program that runs on every rank. With `cuda` it has the device code, for which the toolchain is
    /// set up first where it is missing.
    pub fn warpweave(&self, cuda: bool) -> Result<PathBuf> {
        let root = match self {
            Place::Bundle(bundle) if cuda && !bundle.has_device_code() => {
                return Err(Error::usage(
                    "--device cuda: this bundle was made without device code; make it with --features \
                     nvcc,cutlass",
                ));
            }
            Place::Bundle(bundle) => return Ok(bundle.warpweave()),
            Place::Workspace(root) => root,
        };
        let line = match std::env::var(PROFILE).is_ok_and(|profile| profile == "dev") {
            // The bench has cargo choose the features of dependencies as it does for tests.
            true => "build --bin warpweave --bench layers",
            false => "build --release -p warpweave-bench --bin warpweave",
        };
        let mut args: Vec<_> = line.split(' ').collect();
        if cuda {
            setup::provide_toolchain(root)?;
            args.extend(["--features", CUDA_FEATURES]);
        }
        cargo::binary(&cargo::build(root, &args)?, "warpweave")
    }

    /// The program that reads recorded results: built without the layers, and in a bundle `warpweave`.
    pub fn report(&self) -> Result<PathBuf> {
        let root = match self {
            Place::Bundle(bundle) => return Ok(bundle.warpweave()),
            Place::Workspace(root) => root,
        };
        let args = ["build", "--release", "-p", "warpweave-report"];
        cargo::binary(&cargo::build(root, &args)?, "warpweave-report")
    }
}
