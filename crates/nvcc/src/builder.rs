//! Compiling the CUDA sources of a build script.

mod compile;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::architecture::{Architecture, Kind};
use crate::command::{self, Output};
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::find::{Cutlass, HostCompiler, Nvcc};
use crate::{cargo, process};
use compile::Step;

/// One CUTLASS kernel takes about a minute; a loaded machine may take many times as long.
const COMPILE_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Says that device code is compiled to be checked, not to be run.
const CHECK: &str = "WARPWEAVE_NVCC_CHECK";

/// Variables that affect the search for a compiler, and the compiler.
const VARIABLES: [&str; 12] = [
    "WARPWEAVE_NVCC",
    CHECK,
    "WARPWEAVE_ALLOW_NEWER_NVCC",
    "WARPWEAVE_CUTLASS",
    "WARPWEAVE_NVCC_JOBS",
    "CUDA_HOME",
    "CUDA_PATH",
    "NVCC_CCBIN",
    "CXX",
    "NVCC_PREPEND_FLAGS",
    "NVCC_APPEND_FLAGS",
    "PATH",
];

/// Compiles CUDA sources into the build script's output folder.
#[derive(Debug)]
pub struct Builder {
    nvcc: Nvcc,
    host: HostCompiler,
    environment: Environment,
    package: PathBuf,
    out: PathBuf,
    include: Vec<PathBuf>,
    defines: Vec<(String, Option<String>)>,
    options: Vec<String>,
    variant: String,
    made: Mutex<HashSet<PathBuf>>,
}

impl Builder {
    /// Finds the compilers from the environment of this build script.
    ///
    /// # Errors
    /// [`Error::NvccNotFound`], [`Error::NamedNvcc`] and [`Error::HostCompilerNotFound`];
    /// [`Error::MissingVariable`] outside of a build script.
    pub fn new() -> Result<Self> {
        for name in VARIABLES {
            cargo::rerun_if_env_changed(name);
        }
        Self::with_environment(Environment::current())
    }

    /// [`Builder::new`] with the variables of `environment`.
    ///
    /// # Errors
    /// As for [`Builder::new`].
    pub fn with_environment(environment: Environment) -> Result<Self> {
        let folder = |variable: &'static str| {
            environment.path(variable).ok_or(Error::MissingVariable {
                variable,
                hint: "cargo sets it for build scripts; call this from build.rs",
            })
        };
        // Of each kernel template the instances that differ in what is compiled, a fifth of all.
        let few = ("WARPWEAVE_FEW_INSTANCES".to_owned(), None);
        Ok(Self {
            defines: Vec::from_iter(environment.is_on(CHECK).then_some(few)),
            package: folder("CARGO_MANIFEST_DIR")?,
            out: folder("OUT_DIR")?,
            nvcc: Nvcc::find(&environment)?,
            host: HostCompiler::find(&environment)?,
            environment,
            include: Vec::new(),
            options: Vec::new(),
            variant: String::new(),
            made: Mutex::default(),
        })
    }

    /// Adds a folder of headers, relative to the package.
    #[must_use]
    pub fn include(mut self, folder: impl AsRef<Path>) -> Self {
        self.include.push(self.package.join(folder));
        self
    }

    /// Adds the folders of the CUTLASS headers.
    ///
    /// # Errors
    /// [`Error::CutlassNotFound`].
    pub fn cutlass(mut self) -> Result<Self> {
        let found = Cutlass::find(&self.environment)?;
        self.include.extend(found.include);
        Ok(self)
    }

    /// Adds the folder of the device headers (signals, mbarriers, TMA, wgmma), which warpweave-symm-mem
    /// passes to the build scripts of dependent crates.
    ///
    /// # Errors
    /// [`Error::MissingVariable`] in a crate that does not depend on it.
    pub fn device_headers(self) -> Result<Self> {
        const VARIABLE: &str = "DEP_WARPWEAVE_SYMM_MEM_INCLUDE";
        let folder = self
            .environment
            .path(VARIABLE)
            .ok_or(Error::MissingVariable {
                variable: VARIABLE,
                hint: "cargo sets it for crates that depend directly on warpweave-symm-mem",
            })?;
        Ok(self.include(folder))
    }

    /// Defines a macro, with or without a value.
    #[must_use]
    pub fn define(mut self, name: &str, value: Option<&str>) -> Self {
        self.defines
            .push((name.to_owned(), value.map(str::to_owned)));
        self
    }

    /// Adds an nvcc option.
    #[must_use]
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.to_owned());
        self
    }

    /// Optimises little where `WARPWEAVE_NVCC_CHECK` is set: in a third of the time. Not for wgmma, which is
    /// serialised then, and refused for it.
    #[must_use]
    pub fn quick_to_check(self) -> Self {
        match self.environment.is_on(CHECK) {
            true => self.option("-Ofc=max"),
            false => self,
        }
    }

    /// Adds `name` to the names of later output files, to distinguish builds of one source with different
    /// options.
    #[must_use]
    pub fn variant(mut self, name: &str) -> Self {
        self.variant = format!(".{name}");
        self
    }

    /// The compiler.
    pub fn nvcc(&self) -> &Nvcc {
        &self.nvcc
    }

    /// Compiles `source` to machine code for `architecture` (such as `sm_90a`):
    /// `$OUT_DIR/<stem>.<architecture>.cubin`.
    ///
    /// # Errors
    /// Errors of the compiler, and those of [`Error`].
    pub fn cubin(&self, source: impl AsRef<Path>, architecture: &str) -> Result<PathBuf> {
        let architecture = Architecture::parse_as(architecture, Kind::Real)?;
        self.embedded(source.as_ref(), architecture, Output::Cubin, "cubin")
    }

    /// Compiles `source` to PTX for `architecture` (such as `compute_80`) and later devices:
    /// `$OUT_DIR/<stem>.<architecture>.ptx`.
    ///
    /// # Errors
    /// As for [`Builder::cubin`].
    pub fn ptx(&self, source: impl AsRef<Path>, architecture: &str) -> Result<PathBuf> {
        let architecture = Architecture::parse_as(architecture, Kind::Virtual)?;
        self.embedded(source.as_ref(), architecture, Output::Ptx, "ptx")
    }

    fn embedded(
        &self,
        source: &Path,
        architecture: Architecture,
        output: Output,
        ending: &str,
    ) -> Result<PathBuf> {
        let name = format!("{}{}.{architecture}.{ending}", stem(source), self.variant);
        let step = self.step(source, architecture, output, self.out.join(name))?;
        self.perform(&step)?;
        Ok(step.result)
    }

    /// Compiles `sources` for `architecture` (such as `sm_90a`), archives them as `lib<name>.a` and links it,
    /// with CUDA's static run-time library. Compiles up to `WARPWEAVE_NVCC_JOBS` sources at once.
    ///
    /// # Errors
    /// As for [`Builder::cubin`]; [`Error::NoRuntimeLibrary`].
    pub fn static_library(
        &self,
        name: &str,
        sources: &[impl AsRef<Path>],
        architecture: &str,
    ) -> Result<()> {
        let architecture = Architecture::parse_as(architecture, Kind::Real)?;
        let runtime = self
            .nvcc
            .library_directory()
            .ok_or_else(|| Error::NoRuntimeLibrary {
                nvcc: self.nvcc.path.clone(),
            })?;
        let mut steps = Vec::with_capacity(sources.len());
        for source in sources {
            let source = source.as_ref();
            let object = self.out.join(format!("{}{}.o", stem(source), self.variant));
            steps.push(self.step(source, architecture.clone(), Output::Object, object)?);
        }
        self.perform_all(&steps)?;
        self.archive(name, steps.iter().map(|step| step.result.as_path()))?;
        cargo::link_search(&self.out);
        cargo::link_static(name);
        cargo::link_search(&runtime);
        cargo::link_static("cudart_static");
        for system in ["stdc++", "dl", "rt", "pthread"] {
            cargo::link_shared(system);
        }
        Ok(())
    }

    fn archive<'a>(&self, name: &str, objects: impl Iterator<Item = &'a Path>) -> Result<()> {
        let library = self.out.join(format!("lib{name}.a"));
        // `ar` would add to an existing archive.
        let _ = fs::remove_file(&library);
        let archiver = self
            .environment
            .get("AR")
            .unwrap_or("ar".as_ref())
            .to_owned();
        let mut ar = Command::new(&archiver);
        ar.arg("crs").arg(&library).args(objects);
        let done = process::run(
            &mut ar,
            &self.out.join(format!("{name}.ar.log")),
            COMPILE_LIMIT,
        )?;
        if done.status.success() {
            return Ok(());
        }
        Err(Error::Compile {
            program: archiver.to_string_lossy().into_owned(),
            source_file: library,
            status: done.status.to_string(),
            output: done.output,
        })
    }

    fn step(
        &self,
        source: &Path,
        architecture: Architecture,
        output: Output,
        result: PathBuf,
    ) -> Result<Step> {
        let is_new = self
            .made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(result.clone());
        if !is_new {
            return Err(Error::DuplicateOutput { path: result });
        }
        let options = command::options(
            output,
            &architecture,
            &self.include,
            &self.defines,
            &self.options,
        );
        Ok(Step {
            source: self.package.join(source),
            architecture,
            output,
            options,
            result,
        })
    }
}

fn stem(source: &Path) -> String {
    source
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests;
