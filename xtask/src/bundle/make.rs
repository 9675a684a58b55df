//! Puts a bundle together.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Manifest, Program};
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

/// What to put into a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Cargo features, separated by commas; empty for none.
    pub features: &'a str,
    /// Whether the tests for GPUs go with it.
    pub tests: bool,
    /// Whether debug information is taken out.
    pub strip: bool,
}

/// Builds everything and fills `folder`. Returns the size of the bundle in bytes.
///
/// # Errors
/// Build failures, [`Error::File`], and [`Error::Option`] for a folder that holds something else.
pub fn make(root: &Path, folder: &Path, contents: Contents<'_>) -> Result<u64> {
    clear(folder)?;
    let cargo = Cargo::new(root);
    let features: Vec<String> = contents
        .features
        .split(',')
        .filter(|f| !f.is_empty())
        .map(str::to_owned)
        .collect();
    let with = |args: &[&'static str]| -> Vec<String> {
        let features = (!features.is_empty()).then(|| ["--features".into(), features.join(",")]);
        args.iter()
            .map(|&arg| arg.to_owned())
            .chain(features.into_iter().flatten())
            .collect()
    };
    let build = |args: &[&'static str]| -> Result<Vec<Executable>> {
        let args = with(args);
        cargo.build(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };

    let programs = [
        "build",
        "--release",
        "-p",
        "warpweave-bench",
        "-p",
        "xtask",
        "--bins",
    ];
    let made = build(&programs)?;
    let place = Placing {
        folder,
        strip: contents.strip,
    };
    let program = |name: &str| {
        let found = made
            .iter()
            .find(|made| made.target == name && made.kind == "bin");
        found.ok_or_else(|| Error::NotBuilt {
            command: format!("cargo {}", programs.join(" ")),
            wanted: name.into(),
        })
    };
    place.put(&program("xtask")?.path, Path::new("xtask"))?;
    let warpweave = PathBuf::from("bin/warpweave");
    place.put(&program("warpweave")?.path, &warpweave)?;
    let (commit, dirty) = revision(root);
    let mut manifest = Manifest::new(commit, dirty, features.clone(), warpweave);

    let packages = DEVICE_PACKAGES.iter().flat_map(|package| ["-p", package]);
    let examples: Vec<_> = ["build", "--release", "--examples"]
        .into_iter()
        .chain(packages.clone())
        .collect();
    for example in build(&examples)?
        .into_iter()
        .filter(|made| made.kind == "example")
    {
        manifest
            .examples
            .push(place.program(&example, "bin/examples")?);
    }
    if contents.tests {
        let tests: Vec<_> = ["test", "--release", "--no-run"]
            .into_iter()
            .chain(packages)
            .collect();
        for test in build(&tests)?.into_iter().filter(|made| made.is_test) {
            if !Harness::of(&test).device_tests()?.is_empty() {
                manifest.tests.push(place.program(&test, "bin/tests")?);
            }
        }
        let benches = build(&["bench", "--no-run", "-p", "warpweave-bench"])?;
        for bench in benches.into_iter().filter(|made| made.kind == "bench") {
            place.program(&bench, "bin/benches")?;
        }
    }
    // Last: a bundle that was not finished has no list and is none.
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
        let kind = if made.kind == "lib" {
            "unit".into()
        } else {
            made.target.clone()
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

/// Takes out the bundle that was in `folder` before, and nothing else.
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
        return Err(Error::Option { option: "DIR", why });
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
        let folder =
            std::env::temp_dir().join(format!("warpweave-bundle-clear-{}", std::process::id()));
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
        fs::remove_dir_all(folder).unwrap();
    }
}
