//! Checks wheels and makes a component from them.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::{Digest, Sha256};

use super::pins::Component;
use super::python::Python;
use crate::error::{Error, Result};

/// Finds every pinned wheel among `files` by its hash. pip has checked them too.
pub fn verify(
    component: &'static Component,
    architecture: &str,
    files: &[PathBuf],
) -> Result<Vec<PathBuf>> {
    let mut hashed = Vec::new();
    for file in files {
        hashed.push((sha256(file)?, file));
    }
    let mut found = Vec::new();
    for wheel in component.wheels {
        let expected = wheel.sha256(architecture).unwrap_or_default();
        match hashed.iter().position(|(hash, _)| hash == expected) {
            Some(index) => found.push(hashed.swap_remove(index).1.clone()),
            None => {
                return Err(Error::WheelHash {
                    wheel: format!("{} {}", wheel.name, wheel.version),
                    expected,
                    found: hashed
                        .iter()
                        .map(|(hash, _)| hash.as_str())
                        .collect::<Vec<_>>()
                        .join(", "),
                });
            }
        }
    }
    Ok(found)
}

fn sha256(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    File::open(path)
        .and_then(|mut file| io::copy(&mut file, &mut hash))
        .map_err(Error::file("cannot read", path))?;
    Ok(hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Unpacks the wheels in `staging` and assembles the component. Returns its folder.
pub fn assemble(
    python: &Python,
    staging: &Path,
    component: &'static Component,
    wheels: &[PathBuf],
) -> Result<PathBuf> {
    let unpacked = staging.join("unpacked");
    for wheel in wheels {
        unzip(python, wheel, &unpacked, component)?;
    }
    let ready = staging.join("ready");
    for (from, to) in component.moves {
        let (from, to) = (unpacked.join(from), ready.join(to));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(Error::file("cannot make", parent))?;
        }
        fs::rename(&from, &to).map_err(Error::file("cannot move", &from))?;
    }
    keep_licences(&unpacked, &ready)?;
    // The unpacker forgets which files are programs.
    for folder in ["bin", "nvvm/bin"] {
        for entry in fs::read_dir(ready.join(folder))
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            if path.is_file() {
                fs::set_permissions(&path, Permissions::from_mode(0o755))
                    .map_err(Error::file("cannot change", &path))?;
            }
        }
    }
    for (link, target) in component.links {
        let link = ready.join(link);
        symlink(target, &link).map_err(Error::file("cannot link", &link))?;
    }
    let missing: Vec<&str> = component
        .required
        .iter()
        .copied()
        .filter(|file| !ready.join(file).is_file())
        .collect();
    if missing.is_empty() {
        return Ok(ready);
    }
    Err(Error::Unpack {
        component: component.name,
        why: format!("the wheels lack {}", missing.join(", ")),
    })
}

fn unzip(python: &Python, wheel: &Path, to: &Path, component: &'static Component) -> Result<()> {
    let mut command = python.command();
    command
        .args(["-m", "zipfile", "-e"])
        .arg(wheel)
        .arg(to)
        .stdout(Stdio::null());
    let done = command
        .output()
        .map_err(Error::not_started(python.name()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("No space left on device") {
        return Err(Error::ToolchainSpace {
            path: to.to_path_buf(),
            needed: component.unpacked,
            available: None,
        });
    }
    Err(Error::Unpack {
        component: component.name,
        why: said
            .lines()
            .last()
            .unwrap_or("Python's zipfile failed")
            .to_owned(),
    })
}

/// Keeps the licences, which a copy of the toolchain needs.
fn keep_licences(unpacked: &Path, ready: &Path) -> Result<()> {
    for entry in fs::read_dir(unpacked).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(wheel) = name
            .to_str()
            .and_then(|name| name.strip_suffix(".dist-info"))
        else {
            continue;
        };
        let kept = ready.join("licenses").join(wheel);
        for folder in [entry.path(), entry.path().join("licenses")] {
            for file in fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = file.file_name();
                if file.path().is_file()
                    && name.to_string_lossy().to_lowercase().starts_with("license")
                {
                    fs::create_dir_all(&kept).map_err(Error::file("cannot make", &kept))?;
                    fs::rename(file.path(), kept.join(&name))
                        .map_err(Error::file("cannot move", file.path()))?;
                }
            }
        }
    }
    Ok(())
}
