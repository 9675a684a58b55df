//! Where cuBLASLt may be.

use std::path::{Path, PathBuf};

use warpweave_symm_mem::trust::distrust;

/// Names in order of preference: CUDA 13, CUDA 12, then whatever a development package links.
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];

/// The variable that names the library, and ends the search there.
pub(super) const VARIABLE: &str = "WARPWEAVE_CUBLASLT";

/// Every path to try, the most specific first, and what is not to be tried, with the reason. Plain names are
/// left to the dynamic loader.
pub(super) fn paths() -> (Vec<PathBuf>, Vec<String>) {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|p| !p.is_empty()) {
        return (vec![path.into()], Vec::new());
    }
    let (mut paths, refused) = match std::env::current_exe() {
        Ok(executable) => around(&executable),
        Err(_) => Default::default(),
    };
    paths.extend(NAMES.map(PathBuf::from));
    for packages in site_packages() {
        for layout in ["nvidia/cu13/lib", "nvidia/cublas/lib"] {
            push_existing(&mut paths, &packages.join(layout));
        }
    }
    (paths, refused)
}

fn push_existing(paths: &mut Vec<PathBuf>, folder: &Path) {
    paths.extend(
        NAMES
            .map(|name| folder.join(name))
            .into_iter()
            .filter(|path| path.exists()),
    );
}

/// In the executable's folder, `lib` next to it (a bundle), and the pinned libraries of a cargo target folder
/// above it, if no other user may write them.
fn around(executable: &Path) -> (Vec<PathBuf>, Vec<String>) {
    let (mut paths, mut refused) = (Vec::new(), Vec::new());
    if let Some(folder) = executable.parent() {
        push_existing(&mut paths, folder);
        push_existing(&mut paths, &folder.join("lib"));
    }
    let mut pinned = Vec::new();
    for folder in executable.ancestors().skip(1).take(4) {
        push_existing(&mut pinned, &folder.join("toolchain/runtime/lib"));
    }
    for path in pinned {
        match distrust(&path, executable) {
            None => paths.push(path),
            Some(why) => refused.push(format!("{}: {why}", path.display())),
        }
    }
    (paths, refused)
}

/// The package folders of the Python environments that are active or installed in the default places.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn pinned_libraries_that_others_may_write_are_not_loaded() {
        let root = std::env::temp_dir().join(format!("warpweave-cublaslt-{}", std::process::id()));
        let program = root.join("target/debug/deps/program");
        let pinned = root.join("target/toolchain/runtime/lib/libcublasLt.so.13");
        for file in [&program, &pinned] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let trusted = around(&program);
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(root.join("target"), everybody).unwrap();
        let (paths, refused) = around(&program);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(trusted, (vec![pinned], vec![]));
        assert!(paths.is_empty(), "{paths:?}");
        assert!(
            refused[0].contains("can be written by everybody"),
            "{refused:?}"
        );
    }
}
