//! `cargo xtask candle`: builds and links a project that has candle, a step of `cargo xtask ci` that runs by
//! name only.
//!
//! candle compiles its kernels with nvcc, and cudarc links the libraries of CUDA. The pinned toolchain has
//! all of them except libcuda, which comes with the driver: a stub replaces it. The program is linked,
//! not run.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use cargo_metadata::MetadataCommand;
use fs_err as fs;
use warpweave_nvcc::layout;

use crate::error::{Error, Result};
use crate::setup::{self, pins};
use crate::{cargo, process};

/// The project, from the workspace's root.
const MANIFEST: &str = "examples/with-candle/Cargo.toml";

/// Provides what is linked, and builds the project.
pub fn run() -> Result<()> {
    let root = cargo::workspace()?;
    let toolchain = setup::toolchain(&root);
    setup::provide(&toolchain, &[&pins::CUDA, &pins::LINK])?;
    let own = cargo::target_directory(&root).join("with-candle");
    stub(&bindings(&root)?, &own.join("stub/lib"))?;

    let mut command = cargo::command(&root, &["build", "--manifest-path", MANIFEST]);
    command.arg("--target-dir").arg(&own);
    // Where cudarc and candle's kernels look for CUDA, cudarc in each of these.
    command
        .env("CUDA_HOME", toolchain.join(layout::CUDA))
        .env("CUDA_PATH", toolchain.join(layout::CUDA))
        .env("CUDA_TOOLKIT_ROOT_DIR", toolchain.join(layout::LINK))
        .env("CUDA_ROOT", own.join("stub"))
        .env("CUDA_COMPUTE_CAP", "90");
    process::run(&mut command, "cargo build of examples/with-candle")
}

/// cudarc's bindings of libcuda, in the version that the project has.
fn bindings(root: &Path) -> Result<String> {
    let mut command = MetadataCommand::new();
    let metadata = command.manifest_path(root.join(MANIFEST)).exec();
    let metadata = metadata.map_err(|error| Error::Failed(error.to_string()))?;
    let mut packages = metadata.packages.iter();
    let Some(cudarc) = packages.find(|package| *package.name == "cudarc") else {
        let why = format!("{MANIFEST} does not depend on cudarc");
        return Err(Error::Failed(why));
    };
    let path = cudarc.manifest_path.with_file_name("src/driver/sys/mod.rs");
    Ok(fs::read_to_string(path)?)
}

/// The functions of libcuda that `bindings` declare, each once.
fn functions(bindings: &str) -> BTreeSet<&str> {
    let declared = bindings.split("fn cu").skip(1);
    let names = declared.filter_map(|rest| Some(rest.split_once('(')?.0));
    // `fn culib()` is cudarc's own.
    let is_cuda = |name: &&str| name.starts_with(|c: char| c.is_ascii_uppercase());
    names.filter(is_cuda).collect()
}

/// Makes a libcuda in `folder` that has the functions of `bindings` and does nothing, to be linked and never
/// run.
fn stub(bindings: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let source = folder.join("libcuda.c");
    let empty = |name| format!("void cu{name}(void) {{}}\n");
    let text: String = functions(bindings).into_iter().map(empty).collect();
    fs::write(&source, text)?;
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    command.arg(folder.join("libcuda.so")).arg(&source);
    process::run(&mut command, "cc of a stub of libcuda")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_of_the_bindings_are_found() {
        let bindings = "pub unsafe fn cuInit(Flags: u32) -> CUresult {\n unsafe extern \"C\" {\n fn \
            cuInit(Flags: u32) -> CUresult;\n}}\npub unsafe fn cuMemAlloc_v2(p: *mut u64)\npub unsafe \
            fn culib() -> &'static L";
        assert_eq!(functions(bindings), BTreeSet::from(["Init", "MemAlloc_v2"]));
    }
}
