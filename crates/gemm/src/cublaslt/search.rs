//! Where cuBLASLt may be.

use std::path::{Path, PathBuf};

/// Names in order of preference: CUDA 13, CUDA 12, then whatever a development package links.
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];

/// The variable that names the library, and ends the search there.
pub(super) const VARIABLE: &str = "WARPWEAVE_CUBLASLT";

/// Every path to try, the most specific first. Plain names are left to the dynamic loader.
pub(super) fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|p| !p.is_empty()) {
        return vec![path.into()];
    }
    let mut paths = Vec::new();
    for folder in beside_executable() {
        push_existing(&mut paths, &folder);
    }
    paths.extend(NAMES.map(PathBuf::from));
    for packages in site_packages() {
        for layout in ["nvidia/cu13/lib", "nvidia/cublas/lib"] {
            push_existing(&mut paths, &packages.join(layout));
        }
    }
    paths
}

fn push_existing(paths: &mut Vec<PathBuf>, folder: &Path) {
    paths.extend(
        NAMES
            .map(|name| folder.join(name))
            .into_iter()
            .filter(|path| path.exists()),
    );
}

/// The executable's folder, `lib` beside it (a bundle), and the pinned libraries of a cargo target folder above it.
fn beside_executable() -> Vec<PathBuf> {
    let Ok(executable) = std::env::current_exe() else {
        return Vec::new();
    };
    let mut folders = Vec::new();
    if let Some(folder) = executable.parent() {
        folders.push(folder.to_path_buf());
        folders.push(folder.join("lib"));
    }
    folders.extend(
        executable
            .ancestors()
            .skip(1)
            .take(4)
            .map(|folder| folder.join("toolchain/runtime/lib")),
    );
    folders
}

/// The package folders of the Python environments that are active or installed in the usual places.
fn site_packages() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .iter()
        .filter_map(std::env::var_os)
        .map(PathBuf::from)
        .collect();
    if let Some(path) = std::env::var_os("PATH") {
        // The prefix of the first interpreter on the path: its `bin` folder's parent.
        prefixes.extend(
            std::env::split_paths(&path)
                .find(|folder| folder.join("python3").exists())
                .and_then(|folder| folder.parent().map(Path::to_path_buf)),
        );
    }
    if let Some(home) = std::env::var_os("HOME") {
        prefixes.push(Path::new(&home).join(".local"));
    }
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));

    let mut folders = Vec::new();
    for prefix in prefixes {
        let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else {
            continue;
        };
        let mut pythons: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("python3"))
            })
            .collect();
        pythons.sort();
        for python in pythons {
            folders.extend(["site-packages", "dist-packages"].map(|kind| python.join(kind)));
        }
    }
    folders
}
