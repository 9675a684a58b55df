//! The logs of a job: a folder for the job, a file for each rank.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use fs_err::{self as fs, File};

use crate::error::Result;

pub struct LogFolder(pub PathBuf);

impl LogFolder {
    /// Makes `base/LABEL-SECONDS-PID`.
    pub fn create(base: &Path, label: &str) -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        let path = base.join(format!("{label}-{seconds}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Removes all but the newest `keep` folders of this label in `base`; whatever else is there stays.
    pub fn keep_newest(base: &Path, label: &str, keep: usize) {
        let Ok(entries) = fs::read_dir(base) else {
            return;
        };
        let age = |path: PathBuf| {
            let name = path.file_name()?.to_str()?;
            let (seconds, pid) = name
                .strip_prefix(label)?
                .strip_prefix('-')?
                .split_once('-')?;
            Some((seconds.parse::<u64>().ok()?, pid.parse::<u32>().ok()?, path))
        };
        let mut runs: Vec<_> = entries
            .flatten()
            .filter_map(|entry| age(entry.path()))
            .collect();
        runs.sort_unstable();
        for (.., path) in &runs[..runs.len().saturating_sub(keep)] {
            // One that stays is in nobody's way.
            let _ = fs::remove_dir_all(path);
        }
    }

    pub fn rank(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.log"))
    }

    /// Opens a rank's log so that several writers can append to it.
    pub fn open(&self, rank: usize) -> Result<std::fs::File> {
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).append(true).open(self.rank(rank))?;
        Ok(file.into_parts().0)
    }
}

/// The first error of a [`Copied`].
pub(super) type FirstError = Arc<OnceLock<io::Error>>;

/// Where a rank's output is copied to. An error does not end the copy. A closed pipe is no error: its reader
/// wants no more.
pub(super) struct Copied<W> {
    to: W,
    error: FirstError,
}

impl<W: Write> Copied<W> {
    pub fn new(to: W, error: &FirstError) -> Self {
        let error = error.clone();
        Self { to, error }
    }

    fn write(&mut self, bytes: &[u8]) {
        match self.to.write_all(bytes).and_then(|()| self.to.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                // Of several, the first one says enough.
                let _ = self.error.set(error);
            }
            _ => {}
        }
    }
}

/// Copies what a rank writes both to its log and to ours, until the rank's end is closed.
///
/// Neither a full disk nor a closed terminal stops the copy: the rank must not block on its output.
pub(super) fn tee(mut from: impl Read, mut log: Copied<impl Write>, mut to: Copied<impl Write>) {
    let mut chunk = [0u8; 8192];
    loop {
        let length = match from.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        to.write(&chunk[..length]);
        log.write(&chunk[..length]);
    }
}

/// The last `lines` lines of a file, of which it reads no more than the last 64 KiB.
pub(super) fn tail(path: &Path, lines: usize) -> Result<Vec<String>> {
    const WINDOW: u64 = 64 << 10;
    let mut file = File::open(path)?;
    let start = file.metadata()?.len().saturating_sub(WINDOW);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(WINDOW).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.lines().skip(usize::from(start > 0));
    let all: Vec<_> = whole.map(str::to_owned).collect();
    Ok(all[all.len().saturating_sub(lines)..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_runs_are_kept_and_what_is_no_run_too() {
        let root = tempfile::tempdir().unwrap();
        let names = ["test-9-77", "test-100-5", "test-100-40", "test-101-1"];
        let others = ["peers-1-1", "test-old", "test-1-x"];
        for name in names.iter().chain(&others) {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("one.log"), "").unwrap();
        }
        let is_there = |name: &&str| root.path().join(name).is_dir();
        LogFolder::keep_newest(root.path(), "test", 4);
        assert!(names.iter().all(is_there));
        LogFolder::keep_newest(root.path(), "test", 2);
        assert_eq!(names.each_ref().map(is_there), [false, false, true, true]);
        assert!(others.iter().all(is_there));
        LogFolder::keep_newest(&root.path().join("nowhere"), "test", 2);
    }

    #[test]
    fn the_tail_is_the_last_lines_whole() {
        let root = tempfile::tempdir().unwrap();
        let folder = LogFolder::create(root.path(), "tail").unwrap();
        let path = folder.rank(0);
        let mut file = folder.open(0).unwrap();
        assert!(tail(&path, 3).unwrap().is_empty());
        for line in 0..20_000 {
            writeln!(file, "line {line}").unwrap();
        }
        let last = ["line 19997", "line 19998", "line 19999"];
        assert_eq!(tail(&path, 3).unwrap(), last);
        let is_cut = |line: &String| !line.starts_with("line ");
        assert!(!tail(&path, usize::MAX).unwrap().iter().any(is_cut));
    }
}
