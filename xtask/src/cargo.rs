//! Runs cargo in the workspace and reads what it made.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Error, Result};

/// The features that compile the device code.
pub const CUDA_FEATURES: &str = "nvcc,cutlass";

/// Cargo, run in the root of a workspace.
#[derive(Debug)]
pub struct Cargo {
    root: PathBuf,
}

/// An executable that cargo made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executable {
    pub package: PathBuf,
    pub target: String,
    /// Its kind: `bin`, `lib`, `test`, `example`, …
    pub kind: String,
    pub is_test: bool,
    pub path: PathBuf,
}

impl Executable {
    /// Whether it is the program `name`, not its tests.
    pub fn is_binary(&self, name: &str) -> bool {
        self.target == name && self.kind == "bin" && !self.is_test
    }

    /// The name of the package's folder, as `gemm`.
    pub fn package_name(&self) -> String {
        self.package
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Cargo {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// The program: the cargo that runs us, else the one in `PATH`.
    pub fn program() -> PathBuf {
        std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
    }

    /// A cargo command in the workspace's root, with this process's input and output.
    pub fn command<A: Into<OsString>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(Self::program());
        command
            .args(args.into_iter().map(Into::into))
            .current_dir(&self.root);
        command
    }

    /// Builds and returns the executables that were made or were up to date. Progress and the compiler's
    /// messages go to standard error as cargo draws them.
    pub fn build(&self, args: &[&str]) -> Result<Vec<Executable>> {
        // The separator of `cargo test ARGS -- HARNESS` never occurs in a build.
        let mut command = self.command(args.iter().copied());
        command
            .arg("--message-format=json-render-diagnostics")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let started = |source| Error::CargoMissing {
            program: Self::program(),
            source,
        };
        let mut child = command.spawn().map_err(started)?;
        let mut executables = Vec::new();
        if let Some(messages) = child.stdout.take() {
            for line in BufReader::new(messages).lines().map_while(|line| line.ok()) {
                executables.extend(executable(&line));
            }
        }
        let status = child.wait().map_err(started)?;
        if !status.success() {
            return Err(Error::BuildFailed {
                command: command_line(args),
                status,
            });
        }
        Ok(executables)
    }

    /// Builds with `args`, and returns the program `name` that this makes.
    pub fn build_binary(&self, args: &[&str], name: &str) -> Result<PathBuf> {
        let made = self
            .build(args)?
            .into_iter()
            .find(|made| made.is_binary(name));
        made.map(|made| made.path).ok_or_else(|| Error::NotBuilt {
            command: command_line(args),
            wanted: name.into(),
        })
    }
}

fn command_line(args: &[&str]) -> String {
    format!("cargo {}", args.join(" "))
}

fn executable(line: &str) -> Option<Executable> {
    let message: Message = serde_json::from_str(line).ok()?;
    let target = message
        .target
        .filter(|_| message.reason == "compiler-artifact")?;
    Some(Executable {
        package: message.manifest_path?.parent()?.to_path_buf(),
        target: target.name,
        kind: target.kind.into_iter().next()?,
        is_test: message.profile.is_some_and(|profile| profile.test),
        path: message.executable?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_the_messages() {
        let line = r#"{"reason":"compiler-artifact",
            "package_id":"path+file:///w/crates/bench#warpweave-bench@0.1.0",
            "manifest_path":"/w/crates/bench/Cargo.toml","target":{"kind":["bin"],"crate_types":["bin"],
            "name":"warpweave","src_path":"/w/crates/bench/src/main.rs"},"profile":{"opt_level":"3",
            "test":false},
            "features":[],"filenames":["/w/target/release/warpweave"],
            "executable":"/w/target/release/warpweave",
            "fresh":true}"#;
        let made = executable(line).unwrap();
        assert_eq!(
            (made.target.as_str(), made.kind.as_str(), made.is_test),
            ("warpweave", "bin", false)
        );
        assert_eq!(made.package_name(), "bench");
        assert_eq!(made.path, Path::new("/w/target/release/warpweave"));
        let library = line.replace(
            r#""executable":"/w/target/release/warpweave""#,
            r#""executable":null"#,
        );
        assert_eq!(executable(&library), None);
        assert_eq!(
            executable(r#"{"reason":"build-finished","success":true}"#),
            None
        );
        assert_eq!(executable("not a message"), None);
    }
}
