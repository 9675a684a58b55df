//! Compile steps, from the cache if possible.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Builder, COMPILE_LIMIT};
use crate::architecture::Architecture;
use crate::cache::Entry;
use crate::command::{self, Output};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::{advisory, cargo, depfile, layout, process, slots};

/// Other build scripts may compile a whole library first.
const SLOT_LIMIT: Duration = Duration::from_secs(60 * 60);

/// One compile.
#[derive(Debug)]
pub(super) struct Step {
    pub source: PathBuf,
    pub architecture: Architecture,
    pub output: Output,
    pub options: Vec<OsString>,
    pub result: PathBuf,
}

impl Builder {
    /// Performs all steps, as many at once as there are compiler slots.
    pub(super) fn perform_all(&self, steps: &[Step]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(None);
        let work = || {
            while let Some(step) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(error) = self.perform(step) {
                    // Do not start the others: without this result theirs are useless.
                    next.store(steps.len(), Ordering::Relaxed);
                    failed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(error);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.jobs().clamp(1, steps.len().max(1)) {
                scope.spawn(work);
            }
        });
        failed
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }

    /// Performs one step, from the cache or by the compiler.
    pub(super) fn perform(&self, step: &Step) -> Result<()> {
        let source = &step.source;
        cargo::rerun_if_changed(source);
        let mut key = Fingerprint::new();
        key.add(&self.nvcc.banner);
        key.add(self.host.path.as_os_str().as_encoded_bytes());
        // nvcc reads these variables itself.
        for variable in ["NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"] {
            if let Some(flags) = self.environment.get(variable) {
                key.add(variable);
                key.add(flags.as_encoded_bytes());
            }
        }
        step.options
            .iter()
            .for_each(|option| key.add(option.as_encoded_bytes()));
        key.add(source.as_os_str().as_encoded_bytes());
        key.add_file(source)?;
        let target = layout::target_directory(&self.out).unwrap_or(&self.out);
        let entry = Entry::new(&target.join("nvcc-cache"), key);
        let (printed, inputs) = match entry.restore(&step.result) {
            Some(hit) => (hit.output, hit.inputs),
            None => {
                let _slot = slots::take(&target.join("nvcc-slots"), self.jobs(), SLOT_LIMIT)?;
                let (printed, inputs) = self.compile(step)?;
                entry.keep(&step.result, &printed, &inputs)?;
                (printed, inputs)
            }
        };
        inputs.iter().for_each(|path| cargo::rerun_if_changed(path));
        if let Some(degraded) = advisory::degraded(&printed) {
            return Err(Error::Degraded {
                source_file: step.source.clone(),
                code: degraded.code,
                meaning: degraded.meaning,
                output: degraded.lines,
            });
        }
        for line in advisory::warnings(&printed) {
            cargo::warning(line);
        }
        for spill in advisory::spills(&printed) {
            cargo::warning(&format!(
                "{}: `{}` spills registers: {} bytes stored and {} loaded a thread",
                source.display(),
                spill.function,
                spill.stores,
                spill.loads
            ));
        }
        Ok(())
    }

    /// Compiles. Returns the compiler's output and the files that it read.
    fn compile(&self, step: &Step) -> Result<(String, Vec<PathBuf>)> {
        let depfile = step.result.with_extension("d");
        let files = command::files(&step.source, &step.result, &depfile);
        let mut printed = self.invoke(step, step.options.iter().cloned().chain(files))?;
        if step.output == Output::Ptx {
            // nvcc does not check inline assembly. Without this step the user's driver would find its errors.
            let check = step.result.with_extension("check");
            printed += &self.invoke(
                step,
                command::assemble(&step.architecture, &step.result, &check),
            )?;
            fs::remove_file(&check).map_err(Error::io("remove", &check))?;
        }
        let rules = fs::read_to_string(&depfile).map_err(Error::io("read", &depfile))?;
        let inputs = depfile::prerequisites(&rules)
            .into_iter()
            .map(|path| self.out.join(path))
            .collect();
        Ok((printed, inputs))
    }

    fn invoke(&self, step: &Step, arguments: impl IntoIterator<Item = OsString>) -> Result<String> {
        let mut nvcc = Command::new(&self.nvcc.path);
        nvcc.arg("-ccbin")
            .arg(&self.host.path)
            .args(arguments)
            .current_dir(&self.out);
        let done = process::run(&mut nvcc, &step.result.with_extension("log"), COMPILE_LIMIT)?;
        if done.status.success() {
            return Ok(done.output);
        }
        Err(Error::Compile {
            program: self.nvcc.path.display().to_string(),
            source_file: step.source.clone(),
            status: done.status.to_string(),
            output: done.output,
        })
    }

    fn jobs(&self) -> usize {
        self.environment
            .get("WARPWEAVE_NVCC_JOBS")
            .and_then(|jobs| jobs.to_str()?.parse().ok())
            .unwrap_or(1)
    }
}
