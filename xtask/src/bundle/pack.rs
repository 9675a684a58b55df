//! Packs a bundle into one archive.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo::ended;
use crate::error::{Error, Result};

/// One block, so that xz sees all test programs, with a dictionary larger than any of them: what each of them
/// links statically is then stored once.
const XZ: [&str; 3] = ["--threads=1", "--lzma2=preset=6,dict=128MiB", "--stdout"];

/// Writes the bundle in `folder` to `folder.tar.xz`. Returns the archive and its size in bytes.
pub fn pack(folder: &Path) -> Result<(PathBuf, u64)> {
    let whole = folder
        .canonicalize()
        .map_err(Error::file("cannot find", folder))?;
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(Error::option("DIR", "the root folder cannot be packed"));
    };
    let with = |suffix: &str| [name, suffix.as_ref()].into_iter().collect::<OsString>();
    let (archive, part) = (with(".tar.xz"), with(".tar.xz.part"));
    let (archive, part) = (parent.join(archive), parent.join(part));
    let file = std::fs::File::create(&part).map_err(Error::file("cannot write", &part))?;

    // What runs of the bundle left is no part of it.
    let excluded = ["logs", "baselines"].map(|left| {
        let pattern = [name, "/".as_ref(), left.as_ref()];
        [OsString::from("--exclude")]
            .into_iter()
            .chain([pattern.into_iter().collect()])
    });
    let mut tar = Command::new("tar");
    tar.args(excluded.into_iter().flatten())
        .args(["--sort=name", "--owner=0", "--group=0", "-cf", "-"])
        .arg("-C")
        .args([parent.as_os_str(), name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut tar = tar.spawn().map_err(Error::not_started("tar"))?;
    let mut xz = Command::new("xz");
    xz.args(XZ).stdout(file);
    if let Some(pipe) = tar.stdout.take() {
        xz.stdin(pipe);
    }
    let packed = xz.status().map_err(Error::not_started("xz"));
    // The pipe is closed: tar ends, whether xz has started or not.
    drop(xz);
    let tarred = tar.wait().map_err(Error::not_started("tar"))?;
    for (command, status) in [("xz", packed?), ("tar", tarred)] {
        ended(command, status)?;
    }
    std::fs::rename(&part, &archive).map_err(Error::file("cannot write", &archive))?;
    let data = archive
        .metadata()
        .map_err(Error::file("cannot look at", &archive))?;
    Ok((archive, data.len()))
}
