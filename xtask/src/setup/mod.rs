//! `cargo xtask setup`: puts a pinned, hash-checked toolchain into the target directory.
//!
//! A component is made in a staging folder next to its final folder and gets there by a rename, with its pins
//! in a stamp. A run that is killed leaves staging folders, which the next run removes, but never half a
//! component.

pub mod pins;
mod python;

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use fs_err as fs;
use warpweave_nvcc::{Cutlass, Environment, HostCompiler, Nvcc, layout};

use crate::error::{Error, Result};
use crate::output::print;
use crate::{cargo, process};
use pins::Component;
pub use python::Python;

const STAMP: &str = ".pins";
const STAGING: &str = ".staging-";

/// What to do without the downloaded toolchain.
const OWN_TOOLCHAIN: &str = "\nWithout it: install a CUDA toolkit 12.8 to 13.0 and name it with CUDA_HOME \
    (or its nvcc with WARPWEAVE_NVCC), and name a CUTLASS 4.2 checkout with WARPWEAVE_CUTLASS";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Also NCCL and cuBLASLt, for a GPU machine that has neither (1.5 GB of disk)
    #[arg(long)]
    runtime: bool,
    /// Also cuobjdump and nvdisasm, to look at the machine code of kernels
    #[arg(long)]
    inspect: bool,
}

/// Provides the compiler, the CUTLASS headers and the components that were asked for. Skips what is there
/// with the right pins.
pub fn run(options: &Options) -> Result<()> {
    let mut wanted = vec![&pins::CUDA, &pins::CUTLASS];
    wanted.extend(options.runtime.then_some(&pins::RUNTIME));
    wanted.extend(options.inspect.then_some(&pins::INSPECT));
    provide(&toolchain(&cargo::workspace()?), &wanted)
}

/// The folder of the pinned toolchain in the workspace at `root`.
pub fn toolchain(root: &Path) -> PathBuf {
    cargo::target_directory(root).join(layout::TOOLCHAIN)
}

/// Provides what a build would not find: the compiler with its libraries, the CUTLASS headers. What a
/// variable of ours names comes first, so that nothing else helps where it is unusable.
pub fn provide_toolchain(root: &Path) -> Result<()> {
    let target = cargo::target_directory(root);
    let environment = Environment::current().with("CARGO_TARGET_DIR", &target);
    let is_named = |name| environment.get(name).is_some();
    let refused = |error: warpweave_nvcc::Error| Error::Failed(error.to_string());
    // Nothing here provides it, and no device code compiles without.
    HostCompiler::find(&environment).map_err(refused)?;
    let mut wanted = Vec::new();
    match Nvcc::find(&environment) {
        Err(error) if is_named("WARPWEAVE_NVCC") => return Err(refused(error)),
        Ok(found) if is_named("WARPWEAVE_NVCC") || found.library_directory().is_some() => {}
        _ => wanted.push(&pins::CUDA),
    }
    match Cutlass::find(&environment) {
        Ok(_) => {}
        Err(error) if is_named("WARPWEAVE_CUTLASS") => return Err(refused(error)),
        Err(_) => wanted.push(&pins::CUTLASS),
    }
    provide(&target.join(layout::TOOLCHAIN), &wanted)
}

/// Puts the wanted components into the folder `toolchain`, and prints where they are.
pub fn provide(toolchain: &Path, wanted: &[&Component]) -> Result<()> {
    let mut found = None;
    for component in wanted {
        let pins = component.requirements(std::env::consts::ARCH)?;
        let place = toolchain.join(component.name);
        let stamp = place.join(STAMP);
        let is_there = || std::fs::read_to_string(&stamp).is_ok_and(|stamp| stamp == pins);
        let mut state = "up to date";
        if !is_there() {
            fs::create_dir_all(toolchain)?;
            let lock = fs::File::create(toolchain.join(".lock"))?;
            if lock.file().try_lock().is_err() {
                let shown = toolchain.display();
                eprintln!("waiting for another `cargo xtask setup` in {shown}");
                lock.file().lock()?;
            }
            if !is_there() {
                remove_stale(toolchain)?;
                let python = match found.take() {
                    Some(python) => python,
                    None => Python::with_pip(Python::candidates())?,
                };
                make(toolchain, component, &pins, found.insert(python))?;
                state = "provided";
            }
        }
        print(format_args!(
            "{:<12} {state}: {}\n",
            component.name,
            place.display()
        ))?;
    }
    Ok(())
}

/// A folder in which a component is made. It is removed after a failure too: its space is worth more than its
/// contents.
struct Staging(PathBuf);

impl Drop for Staging {
    fn drop(&mut self) {
        // The next run removes what this leaves.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn make(toolchain: &Path, component: &Component, pins: &str, python: &Python) -> Result<()> {
    let folder = format!("{STAGING}{}-{}", component.name, std::process::id());
    let staging = Staging(toolchain.join(folder));
    let ready = staging.0.join("ready");
    let unpacked = unpack(python, &staging.0, component, pins)?;
    assemble(component, &unpacked, &ready)?;
    fs::write(ready.join(STAMP), pins)?;
    let place = toolchain.join(component.name);
    if place.exists() {
        fs::rename(&place, staging.0.join("old"))?;
    }
    Ok(fs::rename(&ready, place)?)
}

/// Has pip download the wheels from the index that it is configured for, check their hashes, and unpack them
/// into a folder of `staging`. It reports progress and what went wrong itself.
fn unpack(python: &Python, staging: &Path, component: &Component, pins: &str) -> Result<PathBuf> {
    let (unpacked, scratch) = (staging.join("unpacked"), staging.join("scratch"));
    fs::create_dir_all(&scratch)?;
    let list = staging.join("requirements.txt");
    fs::write(&list, pins)?;
    let options = "-m pip install --require-hashes --no-deps --only-binary=:all: --no-compile --no-input \
        --no-cache-dir --disable-pip-version-check --retries=2 --timeout=30";
    let mut command = python.command();
    command.args(options.split_whitespace()).arg("--target");
    command.arg(&unpacked).arg("-r").arg(&list);
    // What pip has of a wheel is removed with the rest, also when pip is killed.
    command.env("TMPDIR", &scratch);
    // Nothing comes into the system's Python, so nobody needs to be kept out of it.
    command.env("PIP_REQUIRE_VIRTUALENV", "0");
    let status = process::status(command.stdout(io::stderr()))?;
    if status.success() {
        return Ok(unpacked);
    }
    let download: u64 = component.wheels.iter().map(|wheel| wheel.bytes).sum();
    let why = format!(
        "cannot download {}: pip failed with {status}, its message is above\n\
         - no connection, or no such version: check the network, and that pip's index mirrors the Python \
         Package Index (glibc 2.27 or newer is needed)\n\
         - hashes that do not match: what the index offers is not what is pinned, so do not use it\n\
         - no space: {} MB are needed; CARGO_TARGET_DIR moves the target directory{OWN_TOOLCHAIN}",
        component.name,
        (download + component.unpacked) / 1_000_000,
    );
    Err(Error::Failed(why))
}

/// Makes the component in `ready` from the folder of its unpacked wheels.
fn assemble(component: &Component, unpacked: &Path, ready: &Path) -> Result<()> {
    for (from, to) in component.moves {
        put(&unpacked.join(from), &ready.join(to))?;
    }
    // A copy of the toolchain needs the licences.
    for entry in walkdir::WalkDir::new(unpacked).into_iter().flatten() {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let inside = entry.path().strip_prefix(unpacked).ok();
        let wheel =
            inside.and_then(|path| path.iter().next()?.to_str()?.strip_suffix(".dist-info"));
        if let Some(wheel) = wheel
            && name.starts_with("license")
            && entry.file_type().is_file()
        {
            let kept = ready.join("licenses").join(wheel);
            put(entry.path(), &kept.join(entry.file_name()))?;
        }
    }
    for (link, target) in component.links {
        symlink(target, ready.join(link))?;
    }
    let mut missing = component.required.to_vec();
    missing.retain(|file| !ready.join(file).is_file());
    let name = component.name;
    let unusable = |why| {
        let text = format!("cannot make {name} of its wheels: {why}{OWN_TOOLCHAIN}");
        Error::Failed(text)
    };
    if !missing.is_empty() {
        return Err(unusable(format!("they lack {}", missing.join(", "))));
    }
    if component.name == layout::CUDA {
        // Finds a compiler that does not start now, and not in the middle of a build.
        let environment = Environment::empty().with("WARPWEAVE_NVCC", ready.join("bin/nvcc"));
        Nvcc::find(&environment).map_err(|error| unusable(error.to_string()))?;
    }
    Ok(())
}

fn put(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::rename(from, to)
}

/// Removes what killed runs left. The lock is ours, so nobody works in these folders.
fn remove_stale(toolchain: &Path) -> Result<()> {
    for entry in fs::read_dir(toolchain)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(STAGING) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
