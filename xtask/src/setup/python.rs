//! The Python that downloads and unpacks wheels, and the one that has PyTorch.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use super::OWN_TOOLCHAIN;
use crate::error::{Error, Result};
use crate::process;

/// A Python, by the name of its program.
#[derive(Debug)]
pub struct Python(OsString);

impl Python {
    /// Where to look: at `WARPWEAVE_PYTHON` if it is set, else at `python3` and `python`.
    pub fn candidates() -> Vec<OsString> {
        match std::env::var_os("WARPWEAVE_PYTHON").filter(|name| !name.is_empty()) {
            Some(named) => vec![named],
            None => vec!["python3".into(), "python".into()],
        }
    }

    /// The first of `candidates` that has PyTorch with symmetric memory.
    pub fn with_torch(candidates: Vec<OsString>) -> Result<Self> {
        let tried = listed(&candidates);
        let has_torch = |python: &Self| python.runs("import torch.distributed._symmetric_memory");
        let found = candidates.into_iter().map(Self).find(has_torch);
        found.ok_or_else(|| {
            Error::failed(format!(
                "--peers torch: no Python with a PyTorch that has symmetric memory (tried {tried}): \
                 install PyTorch 2.6 or newer there, name another Python with WARPWEAVE_PYTHON, or give \
                 figures that were measured before, by --peers FILE"
            ))
        })
    }

    /// The first that has pip.
    pub fn with_pip(candidates: Vec<OsString>) -> Result<Self> {
        let tried = listed(&candidates);
        let is_recent =
            |python: &Self| python.runs("import sys; sys.exit(sys.version_info < (3, 8))");
        let mut recent = candidates
            .into_iter()
            .map(Self)
            .filter(is_recent)
            .peekable();
        let python = recent.peek().map(Self::name);
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

    pub fn name(&self) -> String {
        self.program().to_string_lossy().into_owned()
    }

    pub fn program(&self) -> &OsStr {
        &self.0
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

fn listed(programs: &[OsString]) -> String {
    let names: Vec<_> = programs.iter().map(|name| name.to_string_lossy()).collect();
    names.join(", ")
}
