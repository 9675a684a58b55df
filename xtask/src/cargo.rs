//! Runs cargo in the workspace and reads what it made.

use std::ffi::OsString;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use cargo_metadata::{Message, Metadata, Target, TargetKind};

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
    pub target: Target,
    pub is_test: bool,
    pub path: PathBuf,
}

impl Executable {
    /// Whether it is the program `name`, not its tests.
    pub fn is_binary(&self, name: &str) -> bool {
        self.target.name == name && self.target.is_kind(TargetKind::Bin) && !self.is_test
    }

    /// The name of the package's folder, as `gemm`.
    pub fn package_name(&self) -> String {
        self.package
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
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
        let mut child = command.spawn().map_err(missing)?;
        let mut executables = Vec::new();
        if let Some(messages) = child.stdout.take() {
            let messages = Message::parse_stream(BufReader::new(messages));
            executables.extend(
                messages
                    .map_while(|message| message.ok())
                    .filter_map(executable),
            );
        }
        let status = child.wait().map_err(missing)?;
        if !status.success() {
            return Err(Error::BuildFailed {
                command: command_line(args),
                status,
            });
        }
        Ok(executables)
    }

    /// What it reports of the packages of `manifest`.
    pub fn metadata(&self, manifest: &str) -> Result<Metadata> {
        let args = [
            "metadata",
            "--format-version",
            "1",
            "--manifest-path",
            manifest,
        ];
        let output = self.command(args).stderr(Stdio::inherit()).output();
        let output = output.map_err(missing)?;
        serde_json::from_slice(&output.stdout).map_err(|_| Error::BuildFailed {
            command: command_line(&args),
            status: output.status,
        })
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

/// Runs a command to its end, which must be good.
pub fn run(command: &mut Command, name: &str) -> Result<()> {
    let status = command.status();
    ended(
        name,
        status.map_err(Error::not_started(command.get_program()))?,
    )
}

/// The error of a command that failed.
pub fn ended(name: &str, status: ExitStatus) -> Result<()> {
    let command = name.to_owned();
    match status.success() {
        true => Ok(()),
        false => Err(Error::CommandFailed { command, status }),
    }
}

fn missing(source: std::io::Error) -> Error {
    Error::CargoMissing {
        program: Cargo::program(),
        source,
    }
}

fn command_line(args: &[&str]) -> String {
    format!("cargo {}", args.join(" "))
}

fn executable(message: Message) -> Option<Executable> {
    let Message::CompilerArtifact(made) = message else {
        return None;
    };
    Some(Executable {
        package: made.manifest_path.parent()?.into(),
        target: made.target,
        is_test: made.profile.test,
        path: made.executable?.into(),
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
            "debug_assertions":false,"overflow_checks":false,"test":false},
            "features":[],"filenames":["/w/target/release/warpweave"],
            "executable":"/w/target/release/warpweave",
            "fresh":true}"#;
        let executable = |line: &str| {
            let message = Message::parse_stream(line.as_bytes()).next().unwrap();
            message.ok().and_then(executable)
        };
        let line = &line.replace('\n', "");
        let made = executable(line).unwrap();
        assert!(made.is_binary("warpweave"));
        assert!(!made.is_binary("xtask"));
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
