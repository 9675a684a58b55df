//! Where this program runs: in a workspace that cargo builds, or in a bundle of what was built elsewhere.

use std::path::{Path, PathBuf};

use crate::bundle::Bundle;
use crate::error::{Error, Result};

/// What a command works in.
#[derive(Debug)]
pub enum Place {
    Workspace(PathBuf),
    /// Programs built elsewhere, in the folder of this one.
    Bundle(Bundle),
}

impl Place {
    /// Looks for a bundle around this program, then for a workspace around the current directory.
    pub fn find() -> Result<Self> {
        if let Some(bundle) = Bundle::around_this_program()? {
            return Ok(Place::Bundle(bundle));
        }
        workspace().map(Place::Workspace)
    }

    pub fn baselines(&self) -> PathBuf {
        match self {
            Place::Workspace(root) => target_directory(root).join("warpweave/baselines"),
            Place::Bundle(bundle) => bundle.root().join("baselines"),
        }
    }

    pub fn logs(&self) -> PathBuf {
        match self {
            Place::Workspace(root) => target_directory(root).join("warpweave/logs"),
            Place::Bundle(bundle) => bundle.root().join("logs"),
        }
    }
}

/// The root of the workspace at or above the current directory.
pub fn workspace() -> Result<PathBuf> {
    let from = std::env::current_dir().map_err(Error::file("cannot enter", "."))?;
    // `cargo run` names the package that it runs: this one, whose parent is the workspace, also when it was
    // started with --manifest-path from elsewhere.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    from.ancestors()
        .chain(package.iter().flat_map(|package| package.ancestors()))
        .find(|folder| is_workspace(folder))
        .map(Path::to_path_buf)
        .ok_or_else(|| Error::NoWorkspace { from: from.clone() })
}

fn is_workspace(folder: &Path) -> bool {
    folder.join("xtask/Cargo.toml").is_file() && folder.join("crates/bench/Cargo.toml").is_file()
}

/// Bytes that are free where `path` is; `None` where the file system knows no limits.
pub fn free_space(path: &Path) -> Result<Option<u64>> {
    let failed = |errno: rustix::io::Errno| {
        Error::file("cannot measure the free space of", path)(errno.into())
    };
    let space = rustix::fs::statvfs(path).map_err(failed)?;
    Ok((space.f_blocks > 0).then(|| space.f_bavail.saturating_mul(space.f_frsize)))
}

/// Cargo's target directory of the workspace at `root`.
pub fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |target| root.join(target))
}
