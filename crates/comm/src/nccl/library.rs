//! Finding NCCL at run time.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;
use warpweave_symm_mem::trust::distrust;

use super::api::{Api, SUCCESS};
use super::version::{NcclVersion, OLDEST_NCCL};
use crate::error::{CommError, Result};

/// A loaded NCCL. It stays loaded until the process ends, since it has threads of its own.
pub struct NcclLibrary {
    pub(super) api: Api,
    path: PathBuf,
    version: NcclVersion,
    _library: ManuallyDrop<Library>,
}

impl fmt::Debug for NcclLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} at {}", self.version, self.path.display())
    }
}

impl NcclLibrary {
    /// The first usable NCCL among: `WARPWEAVE_NCCL` (alone, if set); next to the executable and in `lib/`
    /// there; the `toolchain/runtime/lib` of a target folder around it, if no other user can write it; the
    /// system's loader, as `libnccl.so.2` and `libnccl.so`; `nvidia/nccl/lib` in the site-packages of Python
    /// installations.
    ///
    /// # Errors
    /// [`CommError::NcclMissing`] with all that was tried, [`CommError::NcclUnusable`] when one was found and
    /// is too old or not NCCL.
    pub fn load() -> Result<Arc<Self>> {
        if let Some(path) = std::env::var_os("WARPWEAVE_NCCL").filter(|path| !path.is_empty()) {
            return Self::open(Path::new(&path));
        }
        let executable = std::env::current_exe().ok();
        let (paths, mut tried) = candidates(executable.as_deref(), |name| std::env::var_os(name));
        let mut unusable = None;
        for path in paths {
            match Self::open(&path) {
                Ok(library) => return Ok(library),
                Err(CommError::NcclMissing { tried: why }) => tried.extend(why),
                Err(e) => drop(unusable.get_or_insert(e)),
            }
        }
        Err(unusable.unwrap_or(CommError::NcclMissing { tried }))
    }

    /// The NCCL at `path`; a bare file name is resolved by the system's loader.
    ///
    /// # Errors
    /// As [`NcclLibrary::load`].
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        // SAFETY: a shared library's constructors run here. The path is NCCL's by its name, or the user's
        // explicit wish.
        let library = unsafe { Library::new(path) }.map_err(|e| CommError::NcclMissing {
            tried: vec![format!("{} ({})", path.display(), reason(&e))],
        })?;
        let unusable = |why: String| CommError::NcclUnusable {
            path: path.into(),
            why,
        };
        let library = ManuallyDrop::new(library);
        let version = version(&library).map_err(unusable)?;
        if version < OLDEST_NCCL {
            return Err(unusable(format!(
                "it is version {version}, and {OLDEST_NCCL} is the oldest that will do"
            )));
        }
        // SAFETY: it has NCCL's version function, and is never closed.
        let api = unsafe { Api::resolve(&library, version) };
        let api = api.map_err(|e| unusable(format!("it is version {version}, but {e}")))?;
        Ok(Arc::new(Self {
            api,
            path: path.into(),
            version,
            _library: library,
        }))
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version.
    pub fn version(&self) -> NcclVersion {
        self.version
    }
}

/// libloading's error names the function that failed; its source is the loader's reason.
fn reason(error: &libloading::Error) -> String {
    let source = error.source();
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// Read before the other symbols, so that an old library is reported as old and not as incomplete.
fn version(library: &Library) -> Result<NcclVersion, String> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> i32;
    // SAFETY: `ncclGetVersion` has had this type in every version of NCCL 2.
    let get = unsafe { library.get::<GetVersion>(b"ncclGetVersion") };
    let get = get.map_err(|e| format!("it is not NCCL: {}", reason(&e)))?;
    let mut code = 0;
    // SAFETY: the pointer is to an int of this frame.
    let result = unsafe { get(&mut code) };
    if result != SUCCESS {
        return Err(format!("ncclGetVersion returned {result}"));
    }
    Ok(NcclVersion::from_code(code))
}

const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Every path to try, in order, and those refused, with the reason.
fn candidates(
    executable: Option<&Path>,
    env: impl Fn(&str) -> Option<OsString>,
) -> (Vec<PathBuf>, Vec<String>) {
    let (mut paths, mut refused) = (Vec::new(), Vec::new());
    if let Some((program, folder)) = executable.and_then(|e| Some((e, e.parent()?))) {
        paths = existing(vec![folder.to_path_buf(), folder.join("lib")]);
        // Tests and examples lie one folder deeper than binaries.
        let above = folder.ancestors().take(4);
        for path in existing(above.map(|up| up.join("toolchain/runtime/lib")).collect()) {
            match distrust(&path, program) {
                None => paths.push(path),
                Some(why) => refused.push(format!("{} ({why})", path.display())),
            }
        }
    }
    paths.extend(NAMES.map(PathBuf::from));
    paths.extend(existing(
        site_packages(&env)
            .into_iter()
            .map(|s| s.join("nvidia/nccl/lib"))
            .collect(),
    ));
    (paths, refused)
}

fn existing(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let files = folders
        .iter()
        .flat_map(|folder| NAMES.map(|name| folder.join(name)));
    files.filter(|path| path.exists()).collect()
}

/// The package folders of the active environment first, then the user's, then the system's.
fn site_packages(env: &impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = env("PYTHONPATH")
        .map(|paths| std::env::split_paths(&paths).collect())
        .unwrap_or_default();
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(env)
        .map(PathBuf::from);
    let user = env("HOME").map(|home| PathBuf::from(home).join(".local"));
    let system = ["/usr/local", "/usr"].map(PathBuf::from);
    for prefix in prefixes.chain(user).chain(system) {
        let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else {
            continue;
        };
        let mut pythons: Vec<_> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("python3"))
            })
            .collect();
        pythons.sort();
        for python in pythons.into_iter().rev() {
            found.extend(["site-packages", "dist-packages"].map(|kind| python.join(kind)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_lies_beside_the_executable_goes_before_the_system_and_python_last() {
        let root =
            std::env::temp_dir().join(format!("warpweave-nccl-paths-{}", std::process::id()));
        let place = |path: &str| {
            let file = root.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, b"").unwrap();
            file
        };
        let bundled = place("target/debug/lib/libnccl.so.2");
        let toolchain = place("target/toolchain/runtime/lib/libnccl.so.2");
        let pip = place("venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
        let venv = root.join("venv").into_os_string();
        let search = || {
            candidates(Some(&place("target/debug/warpweave")), |name| {
                (name == "VIRTUAL_ENV").then(|| venv.clone())
            })
        };
        let (found, refused) = search();
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(root.join("target"), everybody).unwrap();
        let (trusted, distrusted) = search();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        assert!(
            !trusted.contains(&toolchain),
            "others may have put it there"
        );
        let named = format!("{} (", toolchain.display());
        assert!(distrusted[0].starts_with(&named), "{distrusted:?}");
        assert!(
            distrusted[0].contains("can be written by everybody"),
            "{distrusted:?}"
        );
        assert_eq!(
            found[..4],
            [
                bundled,
                toolchain,
                "libnccl.so.2".into(),
                "libnccl.so".into()
            ]
        );
        assert!(found[4..].contains(&pip), "{found:?}");
    }

    #[test]
    fn what_is_no_nccl_is_an_answer() {
        let missing = NcclLibrary::open(Path::new("/nonexistent/libnccl.so.2")).unwrap_err();
        assert!(
            matches!(&missing, CommError::NcclMissing { .. }),
            "{missing}"
        );
        for part in ["/nonexistent/libnccl.so.2", "No such file"] {
            assert!(missing.to_string().contains(part), "{missing}");
        }
        let other = NcclLibrary::open(Path::new("libc.so.6")).unwrap_err();
        assert!(matches!(other, CommError::NcclUnusable { .. }), "{other}");
    }
}
