//! The program `warpweave`: built from the workspace, or taken from the bundle.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{CUDA_FEATURES, Cargo};
use crate::error::{Error, Result};
use crate::place::{Place, target_directory};

/// Whether the program has device code, or can be built with it.
pub fn has_device_code(place: &Place) -> bool {
    match place {
        Place::Workspace(_) => true,
        Place::Bundle(bundle) => bundle.has_device_code(),
    }
}

/// Names the profile of the program: `dev` for the one that `cargo test` builds, else `release`.
pub const PROFILE: &str = "WARPWEAVE_PROFILE";

/// The program that runs on every rank. With `cuda` it has the device code, for which the toolchain is set up
/// first where it is missing.
pub fn warpweave(place: &Place, cuda: bool) -> Result<PathBuf> {
    match place {
        Place::Workspace(root) => {
            if cuda {
                provide_toolchain(root)?;
            }
            let mut args = match std::env::var(PROFILE).is_ok_and(|profile| profile == "dev") {
                // The bench has cargo choose the features of dependencies as it does for tests.
                true => vec!["build", "--bin", "warpweave", "--bench", "layers"],
                false => vec![
                    "build",
                    "--release",
                    "-p",
                    "warpweave-bench",
                    "--bin",
                    "warpweave",
                ],
            };
            args.extend(
                cuda.then_some(["--features", CUDA_FEATURES])
                    .into_iter()
                    .flatten(),
            );
            Cargo::new(root).build_binary(&args, "warpweave")
        }
        Place::Bundle(bundle) if cuda && !bundle.has_device_code() => {
            let why =
                "this bundle was made without device code; make it with --features nvcc,cutlass";
            Err(Error::option("--device cuda", why))
        }
        Place::Bundle(bundle) => Ok(bundle.warpweave()),
    }
}

/// Runs `xtask setup` unless the toolchain is there, or others were named.
pub fn provide_toolchain(root: &Path) -> Result<()> {
    let named = ["WARPWEAVE_NVCC", "WARPWEAVE_CUTLASS"]
        .iter()
        .all(|name| std::env::var_os(name).is_some());
    if named || has_toolchain(&target_directory(root)) {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(Error::file("cannot find", "this program"))?;
    let mut setup = Command::new(program);
    crate::cargo::run(setup.arg("setup").current_dir(root), "cargo xtask setup")
}

fn has_toolchain(target: &Path) -> bool {
    let holds = |prefix: &str, file: &str| {
        let entries = std::fs::read_dir(target.join("toolchain")).ok();
        entries.into_iter().flatten().flatten().any(|entry| {
            entry.file_name().to_string_lossy().starts_with(prefix)
                && entry.path().join(file).exists()
        })
    };
    holds("cuda-", "bin/nvcc") && holds("cutlass-", "include")
}
