//! NCCL and cuBLASLt, which programs open at run time.

use std::path::{Path, PathBuf};

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
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent);
    let runtime =
        toolchain.map(|toolchain| toolchain.join(warpweave_nvcc::layout::RUNTIME).join("lib"));
    let own = own
        .into_iter()
        .flat_map(|own| [own.to_path_buf(), own.join("lib")]);
    let folders: Vec<_> = own.chain(runtime).collect();
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
        return if is_there {
            present(text)
        } else {
            let advice = format!("there is no such file: unset {variable}, or name another");
            missing(text, advice)
        };
    }
    let in_package = |root: &PathBuf| {
        let folders = library.packages.iter();
        folders.map(|folder| root.join(folder)).collect::<Vec<_>>()
    };
    let packages: Vec<_> = packages.iter().flat_map(in_package).collect();
    let first = |find: &dyn Fn(&str) -> Option<PathBuf>| {
        let mut files = library.files.iter();
        files.find_map(|file| find(file))
    };
    let found = first(&|file| in_folders(folders, file)).or_else(|| first(&by_loader));
    let found = found.or_else(|| first(&|file| in_folders(&packages, file)));
    match found {
        Some(path) => present(path.display().to_string()),
        None => {
            let advice = format!("run `cargo xtask setup --runtime`, or name one with {variable}");
            missing(format!("no {}", library.files.join(", no ")), advice)
        }
    }
}

/// The first of `folders` that has the file.
fn in_folders(folders: &[PathBuf], file: &str) -> Option<PathBuf> {
    let mut paths = folders.iter().map(|folder| folder.join(file));
    paths.find(|path| path.exists())
}

/// Where the dynamic loader would find a file.
pub fn by_loader(file: &str) -> Option<PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    // An empty entry is the current folder to the loader, and a mistake to everybody else.
    let folders: Vec<_> = std::env::split_paths(&named)
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect();
    let cached = || {
        let programs = ["ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"];
        let cache = programs
            .iter()
            .find_map(|program| process::answer(program, &["-p"]))?;
        in_cache(&cache, file)
    };
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let of_triple = [format!("/usr/lib/{triple}"), format!("/lib/{triple}")];
    let others = ["/usr/lib64", "/lib64", "/usr/lib"].map(PathBuf::from);
    let standard: Vec<_> = of_triple
        .map(PathBuf::from)
        .into_iter()
        .chain(others)
        .collect();
    let found = in_folders(&folders, file).or_else(cached);
    found.or_else(|| in_folders(&standard, file))
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
    let answer = ["python3", "python"].into_iter().find_map(ask);
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
        assert_eq!(
            in_cache(&cache, "libcudart.so.13"),
            None,
            "it was removed since"
        );
    }
}
