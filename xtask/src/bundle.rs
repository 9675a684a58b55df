//! `cargo xtask bundle DIR`: a folder of programs built here that runs on a machine without a Rust toolchain.
//!
//! ```text
//! DIR/xtask           this program, with `bench`, `test`, `plan`, `launch` and others
//! DIR/bundle.json     the manifest, by which xtask knows that it is part of a bundle
//! DIR/bin/warpweave   the program that runs on every rank
//! DIR/bin/tests/…     the test programs that have tests for GPUs
//! DIR/bin/benches/…   the benches of criterion, to be started with `--bench`
//! DIR/bin/examples/…  example programs
//! ```
//!
//! Run-time libraries (the driver, NCCL, cuBLASLt) are not part of it: the programs look for them where they
//! run.

use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Artifact, TargetKind};
use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::cargo::{self, CUDA_FEATURES};
use crate::error::{Error, Result};
use crate::harness::TestProgram;
use crate::output::print;
use crate::{process, setup};

/// Raised when an older xtask could not use a newer bundle.
const FORMAT: u32 = 2;
const MANIFEST: &str = "bundle.json";
pub const WARPWEAVE: &str = "bin/warpweave";

/// The packages whose tests and examples may want a GPU.
const DEVICE_PACKAGES: &str = "-p warpweave-symm-mem -p warpweave-comm -p warpweave-kernels \
    -p warpweave-gemm -p warpweave-overlap -p warpweave-bench -p warpweave -p warpweave-example-rotate";

/// One block, so that xz sees all test programs, with a dictionary larger than any of them: what each of them
/// links statically is then stored once.
const XZ: &str = "xz --threads=1 --lzma2=preset=6,dict=128MiB";

/// A bundle, as its manifest describes it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Bundle {
    /// Its folder, to which the paths of the manifest are relative.
    #[serde(skip)]
    pub root: PathBuf,
    format: u32,
    features: Vec<String>,
    tests: Vec<TestProgram>,
}

impl Bundle {
    /// Writes the manifest, which makes `folder` a bundle.
    pub fn write(folder: &Path, features: Vec<String>, tests: Vec<TestProgram>) -> Result<()> {
        let bundle = Self {
            root: folder.into(),
            format: FORMAT,
            features,
            tests,
        };
        let text = serde_json::to_string_pretty(&bundle).map_err(std::io::Error::from)?;
        Ok(fs::write(folder.join(MANIFEST), text + "\n")?)
    }

    /// The bundle whose manifest is in the folder of this program.
    pub fn around_this_program() -> Result<Option<Self>> {
        let program = std::env::current_exe()?;
        program.parent().map_or(Ok(None), Self::in_folder)
    }

    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(MANIFEST);
        if !path.is_file() {
            return Ok(None);
        }
        let shown = path.display();
        let refused = |why: String| {
            let advice = "make the bundle again with `cargo xtask bundle DIR`";
            Error::Failed(format!("{shown}: {why}; {advice}"))
        };
        let text = fs::read_to_string(&path)?;
        let bundle: Self = serde_json::from_str(&text)
            .map_err(|error| refused(format!("not a bundle's manifest: {error}")))?;
        let format = bundle.format;
        if format != FORMAT {
            let why = format!("format {format}; this program reads {FORMAT}");
            return Err(refused(why));
        }
        let root = folder.into();
        Ok(Some(Self { root, ..bundle }))
    }

    /// Whether its programs contain device code.
    pub fn has_device_code(&self) -> bool {
        self.features.iter().any(|feature| feature == "nvcc")
    }

    pub fn warpweave(&self) -> PathBuf {
        self.root.join(WARPWEAVE)
    }

    /// The test programs that have tests for GPUs.
    pub fn tests(&self) -> Vec<TestProgram> {
        let whole = |test: &TestProgram| TestProgram {
            path: self.root.join(&test.path),
            folder: self.root.join(&test.folder),
            ..test.clone()
        };
        self.tests.iter().map(whole).collect()
    }
}

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The folder to fill: an empty one, or an older bundle
    dir: PathBuf,
    /// Cargo features of the programs; empty for the host only
    #[arg(long, default_value = CUDA_FEATURES)]
    features: String,
    /// Leave the tests for GPUs out
    #[arg(long)]
    no_tests: bool,
    /// Write the bundle to DIR.tar.xz too, at a small part of its size. Needs tar and xz, here and there, and
    /// 1.5 GB of memory here
    #[arg(long)]
    pack: bool,
}

/// Builds the bundle and prints its size, and how to unpack it if it is packed.
pub fn run(options: &Options) -> Result<()> {
    let (root, folder) = (cargo::workspace()?, &options.dir);
    let mut features: Vec<_> = options.features.split(',').map(str::to_owned).collect();
    features.retain(|name| !name.is_empty());
    clear(folder)?;
    let is_wanted = |cuda| features.iter().any(|name| name == cuda);
    if CUDA_FEATURES.split(',').any(is_wanted) {
        setup::provide_toolchain(&root)?;
    }
    let build = |line: &str| {
        let mut args: Vec<&str> = line.split_whitespace().collect();
        if !features.is_empty() {
            args.extend(["--features", &options.features]);
        }
        cargo::build(&root, &args)
    };
    let programs = build("build --release -p warpweave-bench -p xtask --bins")?;
    put(&cargo::binary(&programs, "xtask")?, &folder.join("xtask"))?;
    let warpweave = cargo::binary(&programs, "warpweave")?;
    put(&warpweave, &folder.join(WARPWEAVE))?;
    // Makes `bin/KIND/PACKAGE-TARGET` of what cargo made.
    let add = |made: &Artifact, kind: &str| {
        let program = TestProgram::of(made);
        let name = program.name().replace(' ', "-");
        let path = Path::new("bin").join(kind).join(name);
        put(&program.path, &folder.join(&path))?;
        Ok::<_, Error>(TestProgram {
            path,
            folder: PathBuf::new(),
            ..program
        })
    };
    for made in build(&format!("build --release --examples {DEVICE_PACKAGES}"))? {
        if made.target.is_kind(TargetKind::Example) {
            add(&made, "examples")?;
        }
    }
    let mut tests = Vec::new();
    if !options.no_tests {
        for made in build(&format!("test --release --no-run {DEVICE_PACKAGES}"))? {
            if made.profile.test && !TestProgram::of(&made).device_tests()?.is_empty() {
                tests.push(add(&made, "tests")?);
            }
        }
        for made in build("bench --no-run -p warpweave-bench")? {
            if made.target.is_kind(TargetKind::Bench) {
                add(&made, "benches")?;
            }
        }
    }
    // Last: a folder without a manifest is not a bundle.
    Bundle::write(folder, features, tests)?;
    let (shown, bytes) = (folder.display(), size(folder));
    print(format_args!(
        "{shown}: {bytes}; on the other machine: {shown}/xtask bench\n"
    ))?;
    if options.pack {
        let archive = pack(folder)?;
        let (shown, bytes) = (archive.display(), size(&archive));
        print(format_args!(
            "{shown}: {bytes}; on the other machine: tar -xJf {shown}\n"
        ))?;
    }
    Ok(())
}

fn put(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to)?;
    if !process::succeeds(Command::new("strip").arg(to)) {
        let shown = to.display();
        eprintln!("warning: `strip` did not work on {shown}: it keeps its debug information");
    }
    Ok(())
}

/// Removes an older bundle from `folder`, and nothing else.
fn clear(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let owned = [MANIFEST, "xtask", "bin"].map(|name| folder.join(name));
    // A bundle that was broken off has the program and no manifest.
    let is_bundle = owned[0].is_file() || folder.join(WARPWEAVE).is_file();
    if !is_bundle && fs::read_dir(folder)?.next().is_some() {
        return Err(Error::usage(format!(
            "DIR: {} holds something that is no bundle; choose an empty folder",
            folder.display()
        )));
    }
    for path in owned {
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else if path.exists() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Writes the bundle in `folder` to `folder.tar.xz`, without what its runs left.
fn pack(folder: &Path) -> Result<PathBuf> {
    let whole = fs::canonicalize(folder)?;
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(Error::usage("DIR: the root folder cannot be packed"));
    };
    let archive = whole.with_added_extension("tar.xz");
    let part = archive.with_added_extension("part");
    let mut tar = Command::new("tar");
    tar.args(["-I", XZ, "--exclude=*/logs", "--exclude=*/baselines"]);
    tar.args(["--sort=name", "--owner=0", "--group=0", "-cf"]);
    tar.arg(&part).arg("-C").args([parent.as_os_str(), name]);
    process::run(&mut tar, "tar")?;
    fs::rename(part, &archive)?;
    Ok(archive)
}

/// The size of a file, or of all files below a folder but for what runs left, as text.
fn size(path: &Path) -> String {
    let entries = walkdir::WalkDir::new(path).into_iter();
    let files = entries.filter_entry(|entry| entry.file_name() != "logs");
    let data = files.flatten().flat_map(|file| file.metadata());
    let bytes: u64 = data.map(|data| data.len()).sum();
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_of_another_format_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert!(Bundle::in_folder(root.path()).unwrap().is_none());
        let text = r#"{"format": 99, "features": [], "tests": []}"#;
        for (text, expected) in [(text, "format 99"), ("{}", "not a bundle's manifest")] {
            fs::write(root.path().join(MANIFEST), text).unwrap();
            let message = Bundle::in_folder(root.path()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
