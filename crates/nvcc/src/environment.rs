//! The environment variables of a build, as a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// A snapshot of environment variables.
///
/// The search for compilers reads this instead of the process environment, so a test or a tool can ask what
/// it would find under other settings.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// The variables of this process.
    pub fn current() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
        }
    }

    /// An empty environment.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The same environment with one variable set.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables
            .insert(name.into(), value.as_ref().to_owned());
        self
    }

    /// A variable's value; an empty value counts as unset.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        let value = self.variables.get(OsStr::new(name))?;
        (!value.is_empty()).then_some(value.as_os_str())
    }

    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0")
    }

    /// The first file called `program` in the folders of `PATH`.
    pub fn program(&self, program: &str) -> Option<PathBuf> {
        if program.contains('/') {
            let path = PathBuf::from(program);
            return is_executable(&path).then_some(path);
        }
        let path = self.get("PATH")?;
        std::env::split_paths(path)
            .map(|folder| folder.join(program))
            .find(|file| is_executable(file))
    }
}

pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
