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

use std::path::{Path, PathBuf};

use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::harness::TestProgram;

/// Raised when an older xtask could not use a newer bundle.
const FORMAT: u32 = 2;
/// The manifest's file.
pub const MANIFEST: &str = "bundle.json";
pub const WARPWEAVE: &str = "bin/warpweave";

/// The contents of a bundle. Paths are relative to its folder.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Manifest {
    format: u32,
    features: Vec<String>,
    tests: Vec<TestProgram>,
}

impl Manifest {
    pub fn new(features: Vec<String>, tests: Vec<TestProgram>) -> Self {
        Self {
            format: FORMAT,
            features,
            tests,
        }
    }

    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(std::io::Error::from)?;
        Ok(fs::write(folder.join(MANIFEST), text + "\n")?)
    }
}

/// A bundle that this program is part of.
#[derive(Debug)]
pub struct Bundle {
    pub root: PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// The bundle whose manifest is in the folder of this program.
    pub fn around_this_program() -> Result<Option<Self>> {
        let program = std::env::current_exe()?;
        program.parent().map_or(Ok(None), Self::in_folder)
    }

    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(MANIFEST);
        if !path.is_file() {
            return Ok(None);
        }
        let refused = |why: String| {
            Error::Failed(format!(
                "{}: {why}; make the bundle again with `cargo xtask bundle DIR`",
                path.display()
            ))
        };
        let text = fs::read_to_string(&path)?;
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|error| refused(format!("not a bundle's manifest: {error}")))?;
        if manifest.format != FORMAT {
            let format = manifest.format;
            return Err(refused(format!(
                "format {format}; this program reads {FORMAT}"
            )));
        }
        let root = folder.to_path_buf();
        Ok(Some(Self { root, manifest }))
    }

    /// Whether its programs contain device code.
    pub fn has_device_code(&self) -> bool {
        let mut features = self.manifest.features.iter();
        features.any(|feature| feature == "nvcc")
    }

    pub fn warpweave(&self) -> PathBuf {
        self.root.join(WARPWEAVE)
    }

    /// The test programs that have tests for GPUs.
    pub fn tests(&self) -> impl Iterator<Item = TestProgram> {
        let tests = self.manifest.tests.iter();
        tests.map(|test| test.below(&self.root))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_of_another_format_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(Bundle::in_folder(root.path()).unwrap().is_none());
        let text = r#"{"format": 99, "features": [], "tests": []}"#;
        for (text, expected) in [(text, "format 99"), ("{}", "not a bundle's manifest")] {
            fs::write(root.path().join(MANIFEST), text).unwrap();
            let message = Bundle::in_folder(root.path()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
