//! A folder of programs built here that runs on a machine without a Rust toolchain.
//!
//! ```text
//! DIR/xtask           this program, with `bench`, `test`, `plan`, `launch` and others
//! DIR/bundle.json     the manifest, by which xtask knows that it is part of a bundle
//! DIR/bin/warpweave   the program that runs on every rank
//! DIR/bin/tests/…     the test programs that have tests for GPUs
//! DIR/bin/benches/…   the benches of criterion, to be started with `--bench`
//! DIR/bin/examples/…  example programs
//! ```
//!
//! Run-time libraries (the driver, NCCL, cuBLASLt) are not part of it: the programs look for them where they
//! run.

mod make;
mod pack;

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
pub use make::{Contents, make};
pub use pack::pack;

/// Raised when an older xtask could not use a newer bundle.
const FORMAT: u32 = 1;
const FILE: &str = "bundle.json";

/// The contents of a bundle. Paths are relative to its folder.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Manifest {
    format: u32,
    /// The commit that was built; `None` where the sources were not under version control.
    pub commit: Option<String>,
    pub dirty: bool,
    pub features: Vec<String>,
    pub warpweave: PathBuf,
    /// Test programs that have tests for GPUs.
    pub tests: Vec<Program>,
    pub examples: Vec<Program>,
}

/// A test or an example.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Program {
    /// The crate's folder, as `gemm`.
    pub package: String,
    /// The target, as `cuda`.
    pub name: String,
    pub path: PathBuf,
}

impl Manifest {
    /// The manifest of a build of `commit` with `features`, without tests and examples.
    pub fn new(
        commit: Option<String>,
        dirty: bool,
        features: Vec<String>,
        warpweave: PathBuf,
    ) -> Self {
        Self {
            format: FORMAT,
            commit,
            dirty,
            features,
            warpweave,
            tests: Vec::new(),
            examples: Vec::new(),
        }
    }

    /// The path of the manifest in `folder`.
    pub fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = Self::path(folder);
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::file("cannot write", &path)(e.into()))?;
        fs::write(&path, text + "\n").map_err(Error::file("cannot write", &path))
    }

    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::file("cannot read", path))?;
        let bad = |why: String| Error::Bundle {
            manifest: path.to_path_buf(),
            why,
        };
        let manifest: Self =
            serde_json::from_str(&text).map_err(|e| bad(format!("not a bundle's list: {e}")))?;
        if manifest.format != FORMAT {
            return Err(bad(format!(
                "format {}; this program reads {FORMAT}",
                manifest.format
            )));
        }
        Ok(manifest)
    }
}

/// A bundle that this program is part of.
#[derive(Debug)]
pub struct Bundle {
    root: PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// The bundle whose manifest is in the folder of this program.
    pub fn around_this_program() -> Result<Option<Self>> {
        let program =
            std::env::current_exe().map_err(Error::file("cannot find", "this program"))?;
        program.parent().map_or(Ok(None), Self::in_folder)
    }

    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        let path = Manifest::path(folder);
        if !path.is_file() {
            return Ok(None);
        }
        Ok(Some(Self {
            root: folder.to_path_buf(),
            manifest: Manifest::read(&path)?,
        }))
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether its programs contain device code.
    pub fn has_device_code(&self) -> bool {
        self.manifest
            .features
            .iter()
            .any(|feature| feature == "nvcc")
    }

    pub fn warpweave(&self) -> PathBuf {
        self.root.join(&self.manifest.warpweave)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_bundle_is_found_again() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        assert!(Bundle::in_folder(folder).unwrap().is_none());
        let mut manifest = Manifest::new(
            Some("abc".into()),
            true,
            vec!["nvcc".into()],
            "bin/warpweave".into(),
        );
        manifest.tests.push(Program {
            package: "gemm".into(),
            name: "cuda".into(),
            path: "bin/tests/gemm-cuda".into(),
        });
        manifest.write(folder).unwrap();
        let bundle = Bundle::in_folder(folder).unwrap().unwrap();
        assert_eq!(bundle.manifest(), &manifest);
        assert!(bundle.has_device_code());
        assert_eq!(bundle.warpweave(), folder.join("bin/warpweave"));
    }

    #[test]
    fn a_bundle_of_another_format_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let manifest = Manifest {
            format: 99,
            ..Manifest::new(None, false, Vec::new(), "bin/warpweave".into())
        };
        manifest.write(folder).unwrap();
        let error = Bundle::in_folder(folder).unwrap_err().to_string();
        assert!(error.contains("format 99"), "{error}");
        fs::write(Manifest::path(folder), "{}").unwrap();
        assert!(matches!(
            Bundle::in_folder(folder),
            Err(Error::Bundle { .. })
        ));
    }
}
