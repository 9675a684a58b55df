//! What cargo reports about the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde::Deserialize;

#[derive(Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    id: String,
    pub license: Option<String>,
    pub description: Option<String>,
    pub repository: Option<String>,
    /// The registry; none for a path.
    pub source: Option<String>,
    /// The registries that it may go to; none for all.
    publish: Option<Vec<String>>,
    pub features: std::collections::BTreeMap<String, Vec<String>>,
    pub targets: Vec<Target>,
    pub rust_version: Option<String>,
    pub manifest_path: PathBuf,
}

/// A program or library that cargo builds of a package.
#[derive(Deserialize)]
pub struct Target {
    pub name: String,
    /// `lib`, `bin`, `bench` and so on; a library has one for each of its crate types.
    pub kind: Vec<String>,
}

impl Package {
    pub fn folder(&self) -> &Path {
        self.manifest_path.parent().unwrap()
    }

    pub fn readme(&self) -> String {
        let path = self.folder().join("README.md");
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

impl Metadata {
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        let member = |package: &&Package| self.workspace_members.contains(&package.id);
        self.packages.iter().filter(member)
    }

    /// The packages that others may depend on.
    pub fn published(&self) -> impl Iterator<Item = &Package> {
        self.members()
            .filter(|package| package.publish.as_ref().is_none_or(|to| !to.is_empty()))
    }
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The output of a cargo command that uses no network.
pub fn cargo(folder: &Path, args: &[&str], env: &[(&str, &Path)]) -> Output {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(args)
        .current_dir(folder)
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("CARGO_MANIFEST_DIR")
        .envs(env.iter().copied());
    command.output().expect("cargo starts")
}

/// The standard output of a cargo command that must end well.
pub fn said(folder: &Path, args: &[&str]) -> String {
    let output = cargo(folder, args, &[]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "cargo {}: {errors}",
        args.join(" ")
    );
    String::from_utf8(output.stdout).unwrap()
}

pub fn metadata() -> &'static Metadata {
    static METADATA: OnceLock<Metadata> = OnceLock::new();
    METADATA.get_or_init(|| {
        let text = said(root(), &["metadata", "--format-version", "1", "--locked"]);
        serde_json::from_str(&text).unwrap()
    })
}
