//! The workspace, and cargo in it: runs it and reads what it made.

use std::ffi::OsStr;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cargo_metadata::{Artifact, Message, MetadataCommand, TargetKind};
use fs_err as fs;

use crate::error::{Error, Result};

/// The features that compile the device code.
pub const CUDA_FEATURES: &str = "nvcc,cutlass";

/// The root of the workspace at or above the current directory.
pub fn workspace() -> Result<PathBuf> {
    let from = std::env::current_dir()?;
    // `cargo run` names the package that it runs: this one, whose parent is the workspace, also when it was
    // started with --manifest-path from elsewhere.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let above_package = package.iter().flat_map(|package| package.ancestors());
    let is_workspace = |folder: &&Path| {
        let has = |package: &str| folder.join(package).join("Cargo.toml").is_file();
        has("xtask") && has("crates/bench")
    };
    let root = from.ancestors().chain(above_package).find(is_workspace);
    root.map(Path::to_path_buf).ok_or_else(|| {
        Error::Failed(format!(
            "no Warpweave workspace at or above {} and no bundle.json next to this program",
            from.display()
        ))
    })
}

/// Cargo's target directory of the workspace at `root`, which variables and cargo's configuration may move.
pub fn target_directory(root: &Path) -> PathBuf {
    let mut metadata = MetadataCommand::new();
    let metadata = metadata.current_dir(root).no_deps().exec();
    metadata.map_or_else(|_| root.join("target"), |of| of.target_directory.into())
}

/// A cargo command in `root`, with this process's input and output: of the cargo that runs us, else of the
/// one in `PATH`.
pub fn command(root: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root);
    command
}

/// Builds and returns the executables that were made or were up to date. Progress and the compiler's messages
/// go to standard error as cargo draws them.
pub fn build(root: &Path, args: &[&str]) -> Result<Vec<Artifact>> {
    let mut command = command(root, args);
    command.arg("--message-format=json-render-diagnostics");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|source| {
        Error::Failed(format!(
            "cannot run `{}`: {source}; install Rust from https://rustup.rs, or run a bundle made with \
             `cargo xtask bundle DIR`",
            Path::new(command.get_program()).display()
        ))
    })?;
    let mut made = Vec::new();
    if let Some(messages) = child.stdout.take() {
        let messages = Message::parse_stream(BufReader::new(messages));
        for message in messages.map_while(|message| message.ok()) {
            if let Message::CompilerArtifact(artifact) = message {
                made.extend(artifact.executable.is_some().then_some(artifact));
            }
        }
    }
    crate::process::succeeded(&format!("cargo {}", args.join(" ")), child.wait()?)?;
    Ok(made)
}

/// A program that cargo made, by a second name next to it that is this process's own: a build with other
/// features puts another program into the place of the first. It is removed with this.
#[derive(Debug)]
pub struct Kept(pub PathBuf);

impl Kept {
    pub fn of(program: &Path) -> Result<Self> {
        for number in 0.. {
            let name = format!("{}-{number}.run", std::process::id());
            let own = program.with_added_extension(name);
            match fs::hard_link(program, &own) {
                Ok(()) => return Ok(Self(own)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // Some file systems have no second names.
                Err(_) => {
                    fs::copy(program, &own)?;
                    return Ok(Self(own));
                }
            }
        }
        unreachable!("some number is free")
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A killed process leaves it: small harm.
        let _ = fs::remove_file(&self.0);
    }
}

/// The path of the program `name` among what a build made.
pub fn binary(made: &[Artifact], name: &str) -> Result<PathBuf> {
    made.iter()
        .filter(|made| made.target.is_kind(TargetKind::Bin) && !made.profile.test)
        .find(|made| made.target.name == name)
        .and_then(|made| made.executable.clone())
        .map(PathBuf::from)
        .ok_or_else(|| Error::Failed(format!("cargo made no program `{name}`")))
}
