//! Where this program runs: in a workspace that cargo builds, or in a bundle of what was built elsewhere.

use std::path::{Path, PathBuf};

use warpweave_nvcc::layout;

use crate::bundle::Bundle;
use crate::cargo::{self, CUDA_FEATURES};
use crate::device::{self, Asked, Chosen, Gpus};
use crate::error::{Error, Result};
use crate::setup::{self, pins};

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

    /// Chooses device and ranks; GPUs are the default where `warpweave` has device code, or can be built with
    /// it.
    pub fn choose(&self, asked: Asked) -> Result<Chosen> {
        let has_device_code = match self {
            Place::Workspace(_) => true,
            Place::Bundle(bundle) => bundle.has_device_code(),
        };
        device::choose(asked, &Gpus::find(), has_device_code)
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
            provide_toolchain(root)?;
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

/// The root of the workspace at or above the current directory.
pub fn workspace() -> Result<PathBuf> {
    let from = std::env::current_dir()?;
    // `cargo run` names the package that it runs: this one, whose parent is the workspace, also when it was
    // started with --manifest-path from elsewhere.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let above_package = package.iter().flat_map(|package| package.ancestors());
    let is_workspace = |folder: &&Path| {
        let has = |package: &str| folder.join(package).join("Cargo.toml").is_file();
        has("xtask") && has("crates/bench")
    };
    let root = from.ancestors().chain(above_package).find(is_workspace);
    root.map(Path::to_path_buf).ok_or_else(|| {
        Error::Failed(format!(
            "no Warpweave workspace at or above {} and no bundle.json next to this program",
            from.display()
        ))
    })
}

/// Cargo's target directory of the workspace at `root`.
pub fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |target| root.join(target))
}

/// The folder of the pinned toolchain in the workspace at `root`.
pub fn toolchain(root: &Path) -> PathBuf {
    target_directory(root).join(layout::TOOLCHAIN)
}

/// Sets the toolchain up unless it is there, or others were named.
pub fn provide_toolchain(root: &Path) -> Result<()> {
    let is_named = |name| std::env::var_os(name).is_some();
    let toolchain = toolchain(root);
    let is_there = toolchain.join(layout::CUDA).join("bin/nvcc").exists()
        && toolchain.join(layout::CUTLASS).join("include").exists();
    if is_there || (is_named("WARPWEAVE_NVCC") && is_named("WARPWEAVE_CUTLASS")) {
        return Ok(());
    }
    setup::provide(&toolchain, &[&pins::CUDA, &pins::CUTLASS])
}
