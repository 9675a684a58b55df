//! The Python that downloads and unpacks wheels, and the one that has PyTorch.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::OWN_TOOLCHAIN;
use crate::error::{Error, Result};
use crate::process;

/// A Python, by the name of its program.
#[derive(Debug)]
pub struct Python(pub PathBuf);

impl Python {
    /// Where to look: at `WARPWEAVE_PYTHON` if it is set, else at `python3` and `python`.
    pub fn candidates() -> Vec<PathBuf> {
        match std::env::var_os("WARPWEAVE_PYTHON").filter(|name| !name.is_empty()) {
            Some(named) => vec![named.into()],
            None => vec!["python3".into(), "python".into()],
        }
    }

    /// The first of `candidates` that has PyTorch with symmetric memory.
    pub fn with_torch(candidates: Vec<PathBuf>) -> Result<Self> {
        let tried = listed(&candidates);
        let has_torch = |python: &Self| python.runs("import torch.distributed._symmetric_memory");
        let found = candidates.into_iter().map(Self).find(has_torch);
        found.ok_or_else(|| {
            Error::Failed(format!(
                "--peers torch: no Python with a PyTorch that has symmetric memory (tried {tried}): \
                 install PyTorch 2.6 or newer there, name another Python with WARPWEAVE_PYTHON, or give \
                 figures that were measured before, by --peers FILE"
            ))
        })
    }

    /// The first that has pip.
    pub fn with_pip(candidates: Vec<PathBuf>) -> Result<Self> {
        let tried = listed(&candidates);
        let is_recent =
            |python: &Self| python.runs("import sys; sys.exit(sys.version_info < (3, 8))");
        let recent = candidates.into_iter().map(Self).filter(is_recent);
        let mut recent = recent.peekable();
        let python = recent.peek().map(|python| python.0.display().to_string());
        recent.find(|python| python.runs("import pip")).ok_or_else(|| {
            let why = match python {
                Some(python) => format!(
                    "{python} has no pip: install python3-pip, or run `{python} -m ensurepip`"
                ),
                None => format!(
                    "no Python 3.8 or newer (tried {tried}): install python3 with pip, or name one with \
                     WARPWEAVE_PYTHON"
                ),
            };
            Error::Failed(why + OWN_TOOLCHAIN)
        })
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.0);
        command.stdin(Stdio::null());
        command
    }

    fn runs(&self, code: &str) -> bool {
        let mut command = self.command();
        process::succeeds(command.args(["-c", code]).stderr(Stdio::null()))
    }
}

fn listed(programs: &[PathBuf]) -> String {
    let names: Vec<_> = programs.iter().map(|name| name.to_string_lossy()).collect();
    names.join(", ")
}
