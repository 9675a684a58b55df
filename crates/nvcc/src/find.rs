//! The search for nvcc, the host compiler and the CUTLASS headers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::environment::{Environment, is_executable};
use crate::error::{Error, Rejection, Result};
use crate::layout;
use crate::version::Version;

/// `nvcc --version` prints at once, but the first start from a cold network disk can be slow.
const BANNER_LIMIT: Duration = Duration::from_secs(60);

/// Where something was found, in the order in which places are searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// A variable of Warpweave's own, such as `WARPWEAVE_NVCC`.
    Named,
    /// The toolchain that `cargo xtask setup` put into the target directory, if no other user may write it.
    Workspace,
    /// `CUDA_HOME` or `CUDA_PATH`.
    CudaHome,
    /// A folder of `PATH`.
    Path,
    /// `/usr/local/cuda`.
    System,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Named => "named by a WARPWEAVE variable",
            Self::Workspace => "cargo xtask setup",
            Self::CudaHome => "CUDA_HOME",
            Self::Path => "PATH",
            Self::System => "/usr/local/cuda",
        })
    }
}

/// A usable CUDA compiler.
#[derive(Debug, Clone)]
pub struct Nvcc {
    /// The program.
    pub path: PathBuf,
    /// Its release.
    pub version: Version,
    /// Its whole output for `--version`, which distinguishes builds of one release.
    pub banner: String,
    /// Where it was found.
    pub origin: Origin,
}

impl Nvcc {
    /// Searches `WARPWEAVE_NVCC`, the workspace's toolchain, `CUDA_HOME` and `CUDA_PATH`, `PATH` and
    /// `/usr/local/cuda`, in this order. Skips unsuitable compilers, unless `WARPWEAVE_NVCC` names one.
    ///
    /// # Errors
    /// [`Error::NamedNvcc`] and [`Error::NvccNotFound`], both with the reason for every candidate.
    pub fn find(environment: &Environment) -> Result<Self> {
        if let Some(path) = environment.path("WARPWEAVE_NVCC") {
            let path = if path.is_dir() {
                path.join("bin/nvcc")
            } else {
                path
            };
            let path = path
                .to_str()
                .and_then(|p| environment.program(p))
                .unwrap_or(path);
            return Self::examine(environment, &path, Origin::Named)
                .map_err(|rejection| Error::NamedNvcc { rejection });
        }
        let (toolchains, mut rejected) = layout::toolchains(environment);
        let mut candidates: Vec<(PathBuf, Origin)> = toolchains
            .into_iter()
            .map(|folder| {
                (
                    folder.join(layout::CUDA).join("bin/nvcc"),
                    Origin::Workspace,
                )
            })
            .collect();
        for variable in ["CUDA_HOME", "CUDA_PATH"] {
            candidates.extend(
                environment
                    .path(variable)
                    .map(|home| (home.join("bin/nvcc"), Origin::CudaHome)),
            );
        }
        candidates.extend(environment.program("nvcc").map(|path| (path, Origin::Path)));
        candidates.push(("/usr/local/cuda/bin/nvcc".into(), Origin::System));

        for (path, origin) in candidates {
            if rejected.iter().any(|earlier| earlier.path == path) {
                continue;
            }
            match Self::examine(environment, &path, origin) {
                Ok(found) => return Ok(found),
                Err(rejection) => rejected.push(rejection),
            }
        }
        Err(Error::NvccNotFound { rejected })
    }

    fn examine(
        environment: &Environment,
        path: &Path,
        origin: Origin,
    ) -> std::result::Result<Self, Rejection> {
        let reject = |reason: String| Rejection {
            path: path.to_owned(),
            reason,
        };
        if !path.exists() {
            return Err(reject("there is no such file".to_owned()));
        }
        if !is_executable(path) {
            return Err(reject("it is not executable".to_owned()));
        }
        let banner = banner(path).map_err(reject)?;
        let version = Version::parse(&banner)
            .ok_or_else(|| reject("it prints no CUDA release for --version".into()))?;
        if !(version.is_supported()
            || version > crate::NEWEST && environment.is_on("WARPWEAVE_ALLOW_NEWER_NVCC"))
        {
            return Err(reject(Error::version_reason(version)));
        }
        Ok(Self {
            path: path.to_owned(),
            version,
            banner,
            origin,
        })
    }

    /// The folder of this compiler's `libcudart_static.a`; `None` if it came without its libraries.
    pub fn library_directory(&self) -> Option<PathBuf> {
        let program = self.path.canonicalize().ok()?;
        let root = program.parent()?.parent()?;
        let triple = format!("targets/{}-linux/lib", std::env::consts::ARCH);
        [root.join("lib64"), root.join("lib"), root.join(triple)]
            .into_iter()
            .find(|folder| folder.join("libcudart_static.a").is_file())
    }
}

fn banner(path: &Path) -> std::result::Result<String, String> {
    let log = std::env::temp_dir().join(format!(
        "warpweave-nvcc-{}-{}",
        std::process::id(),
        crate::fingerprint::Fingerprint::of(path.as_os_str().as_encoded_bytes())
    ));
    let done = crate::process::run(Command::new(path).arg("--version"), &log, BANNER_LIMIT);
    // A log left in the temporary folder does no harm, and its content has been read.
    let _ = std::fs::remove_file(&log);
    let done = done.map_err(|error| error.to_string())?;
    if done.status.success() {
        Ok(done.output)
    } else {
        Err(format!("`nvcc --version` failed ({})", done.status))
    }
}

/// The C++ compiler for the host code of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCompiler {
    /// The program.
    pub path: PathBuf,
}

impl HostCompiler {
    /// Searches `NVCC_CCBIN`, `CXX`, then `g++`, `clang++` and `c++` in `PATH`.
    ///
    /// # Errors
    /// [`Error::HostCompilerNotFound`] with the names that were tried.
    pub fn find(environment: &Environment) -> Result<Self> {
        let mut tried = Vec::new();
        for variable in ["NVCC_CCBIN", "CXX"] {
            // `CXX` may contain a launcher or options ("ccache g++"), which nvcc cannot use.
            let Some(name) = environment.get(variable).and_then(|value| value.to_str()) else {
                continue;
            };
            if let Some(path) = environment.program(name) {
                return Ok(Self { path });
            }
            tried.push(format!("{variable}={name}"));
        }
        for name in ["g++", "clang++", "c++"] {
            if let Some(path) = environment.program(name) {
                return Ok(Self { path });
            }
            tried.push(name.to_owned());
        }
        Err(Error::HostCompilerNotFound { tried })
    }
}

/// The CUTLASS headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutlass {
    /// Folders for `-I`: `include`, and `tools/util/include` if it exists.
    pub include: Vec<PathBuf>,
    /// Where they were found.
    pub origin: Origin,
}

impl Cutlass {
    /// Searches `WARPWEAVE_CUTLASS` (a checkout, or its `include` folder), then the workspace's toolchain.
    ///
    /// # Errors
    /// [`Error::CutlassNotFound`] with the places that were searched.
    pub fn find(environment: &Environment) -> Result<Self> {
        let (candidates, mut rejected) = match environment.path("WARPWEAVE_CUTLASS") {
            Some(root) => (vec![(root, Origin::Named)], Vec::new()),
            None => {
                let (toolchains, rejected) = layout::toolchains(environment);
                let each = toolchains.into_iter();
                let cutlass = each.map(|folder| (folder.join(layout::CUTLASS), Origin::Workspace));
                (cutlass.collect(), rejected)
            }
        };
        for (root, origin) in candidates {
            for include in [root.join("include"), root.clone()] {
                if !include.join("cutlass/cutlass.h").is_file() {
                    continue;
                }
                let tools = include
                    .parent()
                    .map(|parent| parent.join("tools/util/include"));
                let include = std::iter::once(include)
                    .chain(tools.filter(|folder| folder.is_dir()))
                    .collect();
                return Ok(Self { include, origin });
            }
            rejected.push(Rejection {
                path: root,
                reason: "it holds no include/cutlass/cutlass.h".to_owned(),
            });
        }
        Err(Error::CutlassNotFound { rejected })
    }
}

#[cfg(test)]
mod tests;
