//! What cargo reports about the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use cargo_metadata::{Metadata, Package};

/// The packages that others may depend on.
pub fn published() -> impl Iterator<Item = &'static Package> {
    let may = |package: &&Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    metadata().workspace_packages().into_iter().filter(may)
}

/// The folder of a package.
pub fn folder(package: &Package) -> &Path {
    package.manifest_path.parent().unwrap().as_ref()
}

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The files of the repository below `folder` whose names end so.
pub fn files(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let is_ours = |name: &str| name != "target" && !name.starts_with('.');
    let entries = walkdir::WalkDir::new(folder).min_depth(1).into_iter();
    let entries = entries.filter_entry(|entry| entry.file_name().to_str().is_some_and(is_ours));
    let files = entries
        .flatten()
        .filter(|entry| entry.file_type().is_file());
    let has_end = |path: &PathBuf| ends.iter().any(|end| path.to_string_lossy().ends_with(end));
    files.map(|file| file.into_path()).filter(has_end).collect()
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
pub fn output(folder: &Path, args: &[&str]) -> String {
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
        let text = output(root(), &["metadata", "--format-version", "1", "--locked"]);
        serde_json::from_str(&text).unwrap()
    })
}
