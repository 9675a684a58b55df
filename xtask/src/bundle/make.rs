//! Builds a bundle.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Manifest, Program};
use cargo_metadata::TargetKind;

use crate::cargo::{Cargo, Executable};
use crate::error::{Error, Result};
use crate::harness::Harness;

/// The packages whose tests and examples may want a GPU.
const DEVICE_PACKAGES: [&str; 8] = [
    "warpweave-symm-mem",
    "warpweave-comm",
    "warpweave-kernels",
    "warpweave-gemm",
    "warpweave-overlap",
    "warpweave-bench",
    "warpweave",
    "warpweave-example-rotate",
];

/// The contents of a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Cargo features, separated by commas; empty for none.
    pub features: &'a str,
    pub tests: bool,
    pub strip: bool,
}

/// Builds everything and fills `folder`, which is empty or holds an older bundle. Returns the bundle's size
/// in bytes.
pub fn make(root: &Path, folder: &Path, contents: Contents<'_>) -> Result<u64> {
    clear(folder)?;
    let build = |line: &str| {
        let mut args: Vec<&str> = line.split_whitespace().collect();
        if !contents.features.is_empty() {
            args.extend(["--features", contents.features]);
        }
        Cargo::new(root).build(&args)
    };
    let place = Placing {
        folder,
        strip: contents.strip,
    };
    let programs = build("build --release -p warpweave-bench -p xtask --bins")?;
    let put = |name: &str, to: &str| {
        let found = programs.iter().find(|made| made.is_binary(name));
        let program = found.ok_or_else(|| Error::NotBuilt {
            command: "cargo build --bins".into(),
            wanted: name.into(),
        })?;
        place.put(&program.path, Path::new(to))
    };
    put("xtask", "xtask")?;
    put("warpweave", "bin/warpweave")?;
    let (commit, dirty) = revision(root);
    let features = contents
        .features
        .split(',')
        .filter(|feature| !feature.is_empty());
    let features = features.map(str::to_owned).collect();
    let mut manifest = Manifest::new(commit, dirty, features, "bin/warpweave".into());

    let packages = format!("-p {}", DEVICE_PACKAGES.join(" -p "));
    for example in build(&format!("build --release --examples {packages}"))? {
        if example.target.is_kind(TargetKind::Example) {
            manifest
                .examples
                .push(place.program(&example, "bin/examples")?);
        }
    }
    if contents.tests {
        for test in build(&format!("test --release --no-run {packages}"))? {
            if test.is_test && !Harness::of(&test).device_tests()?.is_empty() {
                manifest.tests.push(place.program(&test, "bin/tests")?);
            }
        }
        for bench in build("bench --no-run -p warpweave-bench")? {
            if bench.target.is_kind(TargetKind::Bench) {
                place.program(&bench, "bin/benches")?;
            }
        }
    }
    // Last: a folder without a manifest is not a bundle.
    manifest.write(folder)?;
    size(folder)
}

struct Placing<'a> {
    folder: &'a Path,
    strip: bool,
}

impl Placing<'_> {
    fn program(&self, made: &Executable, under: &str) -> Result<Program> {
        let package = made.package_name();
        let kind = if made.target.is_kind(TargetKind::Lib) {
            "unit".into()
        } else {
            made.target.name.clone()
        };
        let path = Path::new(under).join(format!("{package}-{kind}"));
        self.put(&made.path, &path)?;
        Ok(Program {
            package,
            name: kind,
            path,
        })
    }

    fn put(&self, from: &Path, to: &Path) -> Result<()> {
        let to = self.folder.join(to);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(Error::file("cannot make", parent))?;
        }
        fs::copy(from, &to).map_err(Error::file("cannot write", &to))?;
        if self.strip {
            let stripped = Command::new("strip").arg(&to).stdin(Stdio::null()).status();
            if !stripped.is_ok_and(|status| status.success()) {
                eprintln!(
                    "warning: `strip` did not work on {}: it keeps its debug information",
                    to.display()
                );
            }
        }
        Ok(())
    }
}

/// Removes an older bundle from `folder`, and nothing else.
fn clear(folder: &Path) -> Result<()> {
    let empty = match fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => true,
        Err(e) => return Err(Error::file("cannot read", folder)(e)),
    };
    if empty {
        return fs::create_dir_all(folder).map_err(Error::file("cannot make", folder));
    }
    // A bundle that was broken off has the program and no list.
    let list = Manifest::path(folder);
    if !list.is_file() && !folder.join("bin/warpweave").is_file() {
        let why = format!(
            "{} holds something that is no bundle; choose an empty folder",
            folder.display()
        );
        return Err(Error::option("DIR", why));
    }
    for path in [list, folder.join("xtask")] {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("cannot remove", &path)(e));
            }
            _ => {}
        }
    }
    let programs = folder.join("bin");
    match fs::remove_dir_all(&programs) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("cannot remove", &programs)(e))
        }
        _ => Ok(()),
    }
}

/// The commit that is checked out, and whether the sources differ from it.
fn revision(root: &Path) -> (Option<String>, bool) {
    let git = |args: &[&str]| {
        let answer = Command::new("git")
            .args(args)
            .current_dir(root)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        answer
            .status
            .success()
            .then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"]);
    let dirty = git(&["status", "--porcelain"]).is_none_or(|changes| !changes.is_empty());
    (commit, dirty)
}

fn size(folder: &Path) -> Result<u64> {
    let entries = fs::read_dir(folder).map_err(Error::file("cannot read", folder))?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .try_fold(0, |sum, path| {
            let is_log_folder = path.ends_with("logs");
            Ok(
                match path
                    .metadata()
                    .map_err(Error::file("cannot look at", &path))?
                {
                    _ if is_log_folder => sum,
                    entry if entry.is_dir() => sum + size(&path)?,
                    entry => sum + entry.len(),
                },
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_folder_or_a_bundle_is_filled() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("bundle");
        clear(&folder).unwrap();
        fs::write(folder.join("thesis.tex"), "years of work").unwrap();
        let error = clear(&folder).unwrap_err();
        assert!(matches!(error, Error::Option { .. }), "{error}");
        assert!(folder.join("thesis.tex").is_file());

        fs::create_dir_all(folder.join("bin/tests")).unwrap();
        Manifest::new(None, true, Vec::new(), "bin/warpweave".into())
            .write(&folder)
            .unwrap();
        clear(&folder).unwrap();
        assert!(folder.join("thesis.tex").is_file());
        assert!(!folder.join("bin").exists() && !Manifest::path(&folder).exists());
    }
}
