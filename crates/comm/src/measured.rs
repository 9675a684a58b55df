//! Measurements of a machine, kept in files between jobs.
//!
//! A machine is its GPUs, their number and their driver: what figures depend on, and what two machines of one
//! kind have in common. The files are in `$WARPWEAVE_CACHE_DIR`, else in `$XDG_CACHE_HOME/warpweave`, else in
//! `~/.cache/warpweave`. The first line of each names its machine. A file of another machine, or one that
//! cannot be parsed, is ignored with a warning.
//!
//! Times of the host backend describe no machine: they are kept only if `WARPWEAVE_CACHE_DIR` is set.

use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fnv::FnvHasher;
use warpweave_symm_mem::{Backend, BackendKind, Exchange};

use crate::error::{CommError, Result};

/// The folder of the files, if set.
pub const CACHE_DIR: &str = "WARPWEAVE_CACHE_DIR";

/// The largest file, in bytes: rank 0 gives it to the others as one value.
const LARGEST: u64 = 1 << 20;

/// What is kept of a machine, one file each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Figures {
    /// Times of collectives: [`Costs`](crate::collective::Costs).
    Costs,
    /// The machine of simulations, in TOML.
    Machine,
    /// Times of schedules, by which layers choose theirs.
    Schedules,
    /// Times of schedules whose GEMMs are batch-invariant.
    InvariantSchedules,
}

impl Figures {
    const fn suffix(self) -> &'static str {
        match self {
            Figures::Costs => "costs.tsv",
            Figures::Machine => "machine.toml",
            Figures::Schedules => "schedules.tsv",
            Figures::InvariantSchedules => "invariant-schedules.tsv",
        }
    }
}

/// The files of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    folder: PathBuf,
    machine: String,
}

impl Measured {
    /// The files of the machine whose ranks have these devices, each given as its name and its driver, in any
    /// order. `None` where nothing is kept: on the host backend without `WARPWEAVE_CACHE_DIR`, and without a
    /// home folder.
    pub fn of(kind: BackendKind, devices: &[(String, String)]) -> Option<Self> {
        let folder = folder(kind, |name| std::env::var_os(name).map(PathBuf::from))?;
        Some(Self::at(folder, devices))
    }

    /// The files of the machine of all ranks. Collective.
    ///
    /// # Errors
    /// Errors of the exchange.
    pub fn of_ranks<B: Backend>(
        backend: &B,
        exchange: &dyn Exchange,
    ) -> warpweave_symm_mem::Result<Option<Self>> {
        let info = backend.device();
        // Drops the device's number: only its kind matters.
        let name = info.name.split(" (device").next().unwrap_or_default();
        let mine = format!("{name}\n{}", info.driver);
        let all = exchange.all_gather("measured.devices", mine.as_bytes())?;
        let devices = all.iter().map(|device| {
            let device = String::from_utf8_lossy(device);
            let (name, driver) = device.split_once('\n').unwrap_or((&device, ""));
            (name.to_owned(), driver.to_owned())
        });
        Ok(Self::of(B::KIND, &devices.collect::<Vec<_>>()))
    }

    fn at(folder: PathBuf, devices: &[(String, String)]) -> Self {
        let mut kinds: Vec<_> = devices.to_vec();
        kinds.sort();
        let kinds = kinds.chunk_by(|a, b| a == b).map(|same| {
            let (name, driver) = &same[0];
            format!("{} x {name}, {driver}", same.len())
        });
        Self {
            folder,
            machine: kinds.collect::<Vec<_>>().join(" + ").replace('\n', " "),
        }
    }

    /// Where `figures` are kept.
    pub fn path(&self, figures: Figures) -> PathBuf {
        // The name of a file must not change with the standard library's hasher.
        let mut hash = FnvHasher::default();
        hash.write(self.machine.as_bytes());
        let name = format!("{:016x}.{}", hash.finish(), figures.suffix());
        self.folder.join(name)
    }

    /// What is kept, if `parse` accepts it. Logs which file is used, and why one is not.
    pub fn read<T, E: std::fmt::Display>(
        &self,
        figures: Figures,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let path = self.path(figures);
        let ignored = |why: &dyn std::fmt::Display| {
            tracing::warn!("{}: {why}; the file is ignored", path.display());
        };
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                ignored(&error);
                return None;
            }
        };
        if text.lines().next() != Some(&self.header()) {
            ignored(&format_args!("it does not begin with `{}`", self.header()));
            return None;
        }
        match parse(&text) {
            Ok(value) => {
                tracing::info!("{}: figures of this machine, as measured", path.display());
                Some(value)
            }
            Err(error) => {
                ignored(&error);
                None
            }
        }
    }

    /// Saves `text` and returns its path. The previous file stays whole until the new one is.
    ///
    /// # Errors
    /// [`CommError::NotKept`], as on a full disk, and of more than a MiB, which would not be read.
    pub fn write(&self, figures: Figures, text: &str) -> Result<PathBuf> {
        let path = self.path(figures);
        let all = format!("{}\n{text}", self.header());
        let written = within(all.len() as u64)
            .and_then(|()| fs::create_dir_all(&self.folder))
            .and_then(|()| replace(&path, |file| file.write_all(all.as_bytes())));
        match written {
            Ok(()) => Ok(path),
            Err(source) => Err(CommError::NotKept { path, source }),
        }
    }

    fn header(&self) -> String {
        format!("# measured on: {}", self.machine)
    }
}

fn folder(kind: BackendKind, variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|path| !path.as_os_str().is_empty());
    let home = || {
        let xdg = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let cache = xdg.or_else(|| Some(set("HOME")?.join(".cache")))?;
        Some(cache.join("warpweave"))
    };
    set(CACHE_DIR).or_else(|| match kind {
        BackendKind::Cuda => home(),
        BackendKind::Host => None,
    })
}

fn read(path: &Path) -> io::Result<String> {
    within(fs::metadata(path)?.len())?;
    fs::read_to_string(path)
}

fn within(bytes: u64) -> io::Result<()> {
    if bytes <= LARGEST {
        return Ok(());
    }
    let why =
        format!("{bytes} bytes, of which {LARGEST} would be read: remove the file to begin anew");
    Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
}

/// Writes a temporary file and renames it to `path` once it is on disk.
fn replace(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let partial = path.with_file_name(name);
    let written = File::create(&partial).and_then(|mut file| {
        write(&mut file)?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&partial, path));
    if done.is_err() {
        let _ = fs::remove_file(&partial);
    }
    done
}

#[cfg(all(test, not(loom)))]
mod tests;
