//! The Python that downloads and unpacks wheels, and the one that has PyTorch.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// A Python that has pip.
#[derive(Debug)]
pub struct Python {
    program: OsString,
}

impl Python {
    /// Tries `WARPWEAVE_PYTHON` alone if it is set, else `python3` and `python`.
    pub fn find() -> Result<Self> {
        Self::first(candidates())
    }

    /// Tries the same for one that has PyTorch with symmetric memory.
    pub fn with_torch() -> Result<Self> {
        Self::with_torch_of(candidates())
    }

    pub(crate) fn with_torch_of(candidates: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut tried = Vec::new();
        for program in candidates {
            let python = Self { program };
            if python.answers(&["-c", "import torch.distributed._symmetric_memory"]) {
                return Ok(python);
            }
            tried.push(python.name());
        }
        Err(Error::NoTorch {
            tried: tried.join(", "),
        })
    }

    pub(super) fn first(candidates: impl IntoIterator<Item = OsString>) -> Result<Self> {
        let mut tried = Vec::new();
        let mut without_pip = None;
        for program in candidates {
            let python = Self { program };
            if !python.answers(&["-c", "import sys; sys.exit(sys.version_info < (3, 8))"]) {
                tried.push(python.name());
                continue;
            }
            if python.answers(&["-m", "pip", "--version"]) {
                return Ok(python);
            }
            without_pip = without_pip.or(Some(python.name()));
        }
        Err(match without_pip {
            Some(python) => Error::NoPip { python },
            None => Error::NoPython {
                tried: tried.join(", "),
            },
        })
    }

    pub fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    pub fn program(&self) -> &OsStr {
        &self.program
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.stdin(Stdio::null());
        command
    }

    fn answers(&self, args: &[&str]) -> bool {
        let mut command = self.command();
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

fn candidates() -> Vec<OsString> {
    match std::env::var_os("WARPWEAVE_PYTHON").filter(|name| !name.is_empty()) {
        Some(named) => vec![named],
        None => vec!["python3".into(), "python".into()],
    }
}
