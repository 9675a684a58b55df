//! `cargo xtask bundle DIR`: build here, run there.

use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Artifact, TargetKind};
use fs_err as fs;

use crate::bundle::{MANIFEST, Manifest, WARPWEAVE};
use crate::cargo::{self, CUDA_FEATURES};
use crate::error::{Error, Result};
use crate::harness::TestProgram;
use crate::{place, process};

/// The packages whose tests and examples may want a GPU.
const DEVICE_PACKAGES: &str = "-p warpweave-symm-mem -p warpweave-comm -p warpweave-kernels \
    -p warpweave-gemm -p warpweave-overlap -p warpweave-bench -p warpweave -p warpweave-example-rotate";

/// One block, so that xz sees all test programs, with a dictionary larger than any of them: what each of them
/// links statically is then stored once.
const XZ: &str = "xz --threads=1 --lzma2=preset=6,dict=128MiB";

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
    let (root, folder) = (place::workspace()?, &options.dir);
    let features: Vec<_> = options
        .features
        .split(',')
        .filter(|name| !name.is_empty())
        .collect();
    if features
        .iter()
        .any(|name| CUDA_FEATURES.split(',').any(|cuda| cuda == *name))
    {
        place::provide_toolchain(&root)?;
    }
    clear(folder)?;
    let build = |line: &str| {
        let mut args: Vec<&str> = line.split_whitespace().collect();
        if !features.is_empty() {
            args.extend(["--features", &options.features]);
        }
        cargo::build(&root, &args)
    };
    let programs = build("build --release -p warpweave-bench -p xtask --bins")?;
    put(&cargo::binary(&programs, "xtask")?, &folder.join("xtask"))?;
    put(
        &cargo::binary(&programs, "warpweave")?,
        &folder.join(WARPWEAVE),
    )?;
    // Makes `bin/KIND/PACKAGE-TARGET` of what cargo made.
    let add = |made: &Artifact, kind: &str| {
        let program = TestProgram::of(made);
        let path = Path::new("bin")
            .join(kind)
            .join(program.name().replace(' ', "-"));
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
    Manifest::new(features.into_iter().map(str::to_owned).collect(), tests).write(folder)?;
    let shown = folder.display();
    println!(
        "{shown}: {}; on the other machine: {shown}/xtask bench",
        size(folder)
    );
    if options.pack {
        let archive = pack(folder)?;
        let shown = archive.display();
        println!(
            "{shown}: {}; on the other machine: tar -xJf {shown}",
            size(&archive)
        );
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
    let (archive, part) = (
        whole.with_added_extension("tar.xz"),
        whole.with_added_extension("tar.xz.part"),
    );
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
    let files = entries
        .filter_entry(|entry| entry.file_name() != "logs")
        .flatten();
    let bytes: u64 = files
        .flat_map(|file| file.metadata())
        .map(|data| data.len())
        .sum();
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
