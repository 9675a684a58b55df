//! Makes a component from what its wheels have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::pins::Component;
use crate::error::{Error, Result};

/// Assembles the component in `staging` from the folder of its unpacked wheels. Returns its folder.
pub fn assemble(staging: &Path, component: &'static Component, unpacked: &Path) -> Result<PathBuf> {
    let ready = staging.join("ready");
    for (from, to) in component.moves {
        let (from, to) = (unpacked.join(from), ready.join(to));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(Error::file("cannot make", parent))?;
        }
        fs::rename(&from, &to).map_err(Error::file("cannot move", &from))?;
    }
    keep_licences(unpacked, &ready)?;
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
