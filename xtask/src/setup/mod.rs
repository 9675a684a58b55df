//! Provides the components of the toolchain.
//!
//! A component is made in a staging folder next to its final folder and appears there by one rename, with its
//! pins in a stamp. A run that is killed leaves staging folders, which the next run removes, but never half a
//! component.

mod assemble;
pub mod pins;
mod pip;
mod python;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::{CWD, FlockOperation, RenameFlags};
use warpweave_nvcc::{Environment, Nvcc, layout};

use crate::error::{Error, Result};
use crate::place::free_space;
use pins::Component;
pub use python::Python;

const STAMP: &str = ".pins";
const STAGING: &str = ".staging-";
/// Space that stays free after unpacking.
const RESERVE: u64 = 64 << 20;
/// Another setup downloads the same wheels; slow networks take long.
const LOCK_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A component that is installed.
#[derive(Debug)]
pub struct Provided {
    pub name: &'static str,
    pub folder: PathBuf,
    /// Whether this run has put it there.
    pub is_new: bool,
}

/// Puts the wanted components into the folder `toolchain`. With `force`, also those that are there.
pub fn provide(
    toolchain: &Path,
    wanted: &[&'static Component],
    force: bool,
) -> Result<Vec<Provided>> {
    let architecture = std::env::consts::ARCH;
    let mut pinned = Vec::new();
    for &component in wanted {
        let requirements = component
            .requirements(architecture)
            .ok_or(Error::NoWheels { architecture })?;
        pinned.push((component, requirements));
    }
    let is_there = |component: &Component, pins: &str| {
        !force
            && fs::read_to_string(toolchain.join(component.name).join(STAMP))
                .is_ok_and(|stamp| stamp == pins)
    };
    let found = |component: &Component, is_new| Provided {
        name: component.name,
        folder: toolchain.join(component.name),
        is_new,
    };
    if pinned
        .iter()
        .all(|(component, pins)| is_there(component, pins))
    {
        return Ok(pinned
            .iter()
            .map(|(component, _)| found(component, false))
            .collect());
    }

    fs::create_dir_all(toolchain).map_err(Error::file("cannot make", toolchain))?;
    let _lock = lock(toolchain)?;
    remove_stale(toolchain)?;
    let missing: Vec<_> = pinned
        .iter()
        .filter(|(component, pins)| !is_there(component, pins))
        .collect();
    check_space(toolchain, missing.iter().map(|(component, _)| *component))?;
    let python = if missing.is_empty() {
        None
    } else {
        Some(Python::find()?)
    };
    let mut provided = Vec::new();
    for (component, pins) in &pinned {
        let is_new = match &python {
            Some(python) if !is_there(component, pins) => {
                make(toolchain, component, pins, python)?;
                true
            }
            _ => false,
        };
        provided.push(found(component, is_new));
    }
    Ok(provided)
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

fn make(
    toolchain: &Path,
    component: &'static Component,
    pins: &str,
    python: &Python,
) -> Result<()> {
    let folder = format!("{STAGING}{}-{}", component.name, std::process::id());
    let staging = Staging(toolchain.join(folder));
    let bar = progress(component);
    let unpacked = pip::unpack(python, &staging.0, component, pins, &bar)?;
    let ready = assemble::assemble(&staging.0, component, &unpacked)?;
    if component.name == layout::CUDA {
        check_compiler(&ready)?;
    }
    let stamp = ready.join(STAMP);
    fs::write(&stamp, pins).map_err(Error::file("cannot write", &stamp))?;
    put_in_place(&ready, &toolchain.join(component.name))?;
    bar.finish_and_clear();
    Ok(())
}

/// A bar on a terminal, nothing in a pipe.
fn progress(component: &Component) -> ProgressBar {
    let template = "{prefix:12} {bar:32} {bytes:>11} / {total_bytes:11} {msg}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(component.download()).with_style(style);
    bar.set_prefix(component.name);
    bar.set_message("downloading");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Finds a compiler that does not start now, and not in the middle of a build.
fn check_compiler(root: &Path) -> Result<()> {
    let environment = Environment::empty().with("WARPWEAVE_NVCC", root.join("bin/nvcc"));
    Nvcc::find(&environment)
        .map(|_| ())
        .map_err(|error| Error::Unpack {
            component: layout::CUDA,
            why: error.to_string(),
        })
}

/// Moves `ready` to `place`, in one step even where an older component is.
fn put_in_place(ready: &Path, place: &Path) -> Result<()> {
    let moved = if place.symlink_metadata().is_ok() {
        rustix::fs::renameat_with(CWD, ready, CWD, place, RenameFlags::EXCHANGE).or_else(|_| {
            // A file system that cannot exchange. The old one goes to the staging folder, which is removed.
            rustix::fs::rename(place, ready.with_extension("old"))?;
            rustix::fs::rename(ready, place)
        })
    } else {
        rustix::fs::rename(ready, place)
    };
    moved.map_err(|errno| Error::file("cannot put in place", place)(errno.into()))
}

fn check_space<'a>(toolchain: &Path, missing: impl Iterator<Item = &'a Component>) -> Result<()> {
    // Wheels are removed with their staging folder, one component after the other.
    let (kept, wheels) = missing.fold((0, 0), |(kept, wheels): (u64, u64), component| {
        (kept + component.unpacked, wheels.max(component.download()))
    });
    if kept == 0 {
        return Ok(());
    }
    let needed = kept + wheels + RESERVE;
    match free_space(toolchain)? {
        Some(available) if available < needed => Err(Error::ToolchainSpace {
            path: toolchain.to_path_buf(),
            needed,
            available: Some(available),
        }),
        _ => Ok(()),
    }
}

fn lock(toolchain: &Path) -> Result<File> {
    let path = toolchain.join(".lock");
    let file = File::create(&path).map_err(Error::file("cannot write", &path))?;
    let start = Instant::now();
    let mut reported = false;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::file("cannot lock", &path)(errno.into())),
        }
        if start.elapsed() > LOCK_LIMIT {
            return Err(Error::SetupBusy {
                path,
                limit: LOCK_LIMIT,
            });
        }
        if !reported {
            eprintln!(
                "another `cargo xtask setup` is running in {}; waiting for it",
                toolchain.display()
            );
            reported = true;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Removes what killed runs left. The lock is ours, so nobody works in these folders.
fn remove_stale(toolchain: &Path) -> Result<()> {
    let entries = fs::read_dir(toolchain).map_err(Error::file("cannot read", toolchain))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(STAGING) {
            fs::remove_dir_all(entry.path()).map_err(Error::file("cannot remove", entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
