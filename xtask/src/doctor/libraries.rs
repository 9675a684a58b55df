//! NCCL and cuBLASLt, which programs open at run time.

use std::path::{Path, PathBuf};

use warpweave_nvcc::layout;

use super::{Answer, Finding, Use, missing, present};
use crate::process;

struct Library {
    name: &'static str,
    files: &'static [&'static str],
    /// Names one, and ends the search.
    variable: &'static str,
    /// Folders in a Python environment's packages.
    packages: &'static [&'static str],
}

const LIBRARIES: [Library; 2] = [
    Library {
        name: "NCCL",
        files: &["libnccl.so.2", "libnccl.so"],
        variable: "WARPWEAVE_NCCL",
        packages: &["nvidia/nccl/lib"],
    },
    Library {
        name: "cuBLASLt",
        files: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
        variable: "WARPWEAVE_CUBLASLT",
        packages: &["nvidia/cu13/lib", "nvidia/cublas/lib"],
    },
];

/// Searches where the programs search: in their own folder, in the toolchain, where the loader does, in
/// Python packages.
pub fn examine(toolchain: Option<PathBuf>) -> Vec<Finding> {
    let mut folders = Vec::new();
    let own = std::env::current_exe().ok();
    if let Some(own) = own.as_deref().and_then(Path::parent) {
        folders.extend([own.to_path_buf(), own.join("lib")]);
    }
    folders.extend(toolchain.map(|toolchain| toolchain.join(layout::RUNTIME).join("lib")));
    let packages = site_packages();
    let library = |library: &Library| {
        let named = std::env::var_os(library.variable).filter(|path| !path.is_empty());
        let answer = find(library, named.map(PathBuf::from), &folders, &packages);
        (library.name, Use::Cuda, answer)
    };
    LIBRARIES.iter().map(library).collect()
}

fn find(
    library: &Library,
    named: Option<PathBuf>,
    folders: &[PathBuf],
    packages: &[PathBuf],
) -> Answer {
    let variable = library.variable;
    if let Some(path) = named {
        let text = format!("{} ({variable})", path.display());
        // A plain name is the loader's to find.
        let is_there = path.exists() || path.components().count() == 1;
        let advice = format!("there is no such file: unset {variable}, or name another");
        return match is_there {
            true => present(text),
            false => missing(text, advice),
        };
    }
    let mut of_packages = Vec::new();
    for root in packages {
        of_packages.extend(library.packages.iter().map(|folder| root.join(folder)));
    }
    let files = library.files;
    let found = in_folders(folders, files)
        .or_else(|| by_loader(files))
        .or_else(|| in_folders(&of_packages, files));
    match found {
        Some(path) => present(path.display().to_string()),
        None => {
            let advice = format!("run `cargo xtask setup --runtime`, or name one with {variable}");
            missing(format!("no {}", files.join(", no ")), advice)
        }
    }
}

/// The first of `files` that one of `folders` has.
fn in_folders(folders: &[PathBuf], files: &[&str]) -> Option<PathBuf> {
    let in_one = |file| folders.iter().map(move |folder| folder.join(file));
    files.iter().flat_map(in_one).find(|path| path.exists())
}

/// The first of `files` that the dynamic loader would find.
pub fn by_loader(files: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut named: Vec<_> = std::env::split_paths(&named).collect();
    // An empty entry is the current folder to the loader, and a mistake to everybody else.
    named.retain(|folder| !folder.as_os_str().is_empty());
    let programs = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"];
    let print = |program: &&str| process::answer(program, &["-p"]);
    let cache = programs.iter().find_map(print).unwrap_or_default();
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let standard = format!("/usr/lib/{triple}:/lib/{triple}:/usr/lib64:/lib64:/usr/lib");
    let standard: Vec<_> = std::env::split_paths(&standard).collect();
    files.iter().find_map(|file| {
        let found = in_folders(&named, &[file]).or_else(|| in_cache(&cache, file));
        found.or_else(|| in_folders(&standard, &[file]))
    })
}

/// A file in what `ldconfig -p` prints.
fn in_cache(cache: &str, file: &str) -> Option<PathBuf> {
    cache.lines().find_map(|line| {
        let (name, path) = line.trim().split_once(" => ")?;
        let is_it = name.split_whitespace().next() == Some(file);
        let path = PathBuf::from(path.trim());
        (is_it && path.exists()).then_some(path)
    })
}

fn site_packages() -> Vec<PathBuf> {
    let list = "import site, sys; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))";
    let ask = |program| process::answer(program, &["-c", list]);
    let answer = ask("python3").or_else(|| ask("python"));
    let answer = answer.unwrap_or_default();
    answer.lines().map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;
    use std::{fs, slice};

    #[test]
    fn the_search_ends_at_the_first_that_is_there() {
        let root = tempfile::tempdir().unwrap();
        let (runtime, packages) = (root.path().join("runtime"), root.path().join("packages"));
        let in_packages = packages.join("nvidia/nccl/lib");
        for folder in [&runtime, &in_packages] {
            fs::create_dir_all(folder).unwrap();
        }
        let nccl = |named| {
            let packages = slice::from_ref(&packages);
            find(&LIBRARIES[0], named, slice::from_ref(&runtime), packages)
        };
        fs::write(in_packages.join("libnccl.so.2"), "").unwrap();
        assert_eq!(nccl(None).state, State::Present);
        let library = runtime.join("libnccl.so.2");
        fs::write(&library, "").unwrap();
        assert_eq!(nccl(None).found, library.display().to_string());
        let named = nccl(Some(root.path().join("absent.so")));
        assert_eq!(named.state, State::Missing);
        assert!(named.advice.unwrap().contains("WARPWEAVE_NCCL"));
    }

    #[test]
    fn the_loaders_cache_is_read_by_whole_names() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("libcuda.so.1");
        fs::write(&path, "").unwrap();
        let cache = format!(
            "3 libs found in cache `/etc/ld.so.cache'\n\tlibcudart.so.13 (libc6,x86-64) => /nonexistent\n\
             \tlibcuda.so.1 (libc6,x86-64) => {}\n",
            path.display()
        );
        assert_eq!(in_cache(&cache, "libcuda.so.1"), Some(path));
        assert_eq!(in_cache(&cache, "libcuda.so"), None);
        // It was removed since.
        assert_eq!(in_cache(&cache, "libcudart.so.13"), None);
    }
}
