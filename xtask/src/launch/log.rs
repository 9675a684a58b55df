//! The logs of a job: a folder for the job, a file for each rank.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::place::free_space;

/// Below this, a job is refused: the ranks would lose the messages that explain a failure.
const RESERVE: u64 = 16 << 20;

pub(super) struct LogFolder(PathBuf);

impl LogFolder {
    /// Makes `base/LABEL-SECONDS-PID`.
    pub fn create(base: &Path, label: &str) -> Result<Self> {
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let path = base.join(format!("{label}-{seconds}-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(Error::file("cannot make the log folder", &path))?;
        let available = free_space(&path)?.unwrap_or(u64::MAX);
        if available < RESERVE {
            return Err(Error::LogSpace {
                path,
                available,
                needed: RESERVE,
            });
        }
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn rank(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.log"))
    }

    /// Opens a rank's log so that several writers can append to it.
    pub fn open(&self, rank: usize) -> Result<File> {
        let path = self.rank(rank);
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::file("cannot open the log", &path))
    }
}

/// Copies what a rank writes both to its log and to ours, until the rank's end is closed.
///
/// Neither a full disk nor a closed terminal stops the copy: the rank must not block on its output.
pub(super) fn tee(mut from: impl Read, mut log: File, mut to: impl Write) {
    let mut chunk = [0u8; 8192];
    loop {
        let length = match from.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let _ = to.write_all(&chunk[..length]).and_then(|()| to.flush());
        let _ = log.write_all(&chunk[..length]);
    }
}

/// The last `lines` lines of a file, of which it reads no more than the last 64 KiB.
pub(super) fn tail(path: &Path, lines: usize) -> Result<Vec<String>> {
    const WINDOW: u64 = 64 << 10;
    let read = || -> io::Result<(bool, Vec<u8>)> {
        let mut file = File::open(path)?;
        let start = file.metadata()?.len().saturating_sub(WINDOW);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(WINDOW).read_to_end(&mut bytes)?;
        Ok((start > 0, bytes))
    };
    let (cut, bytes) = read().map_err(Error::file("cannot read the log", path))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut kept = VecDeque::new();
    for line in text.lines().skip(usize::from(cut)) {
        if kept.len() == lines {
            kept.pop_front();
        }
        kept.push_back(line.to_owned());
    }
    Ok(kept.into())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            tail(&path, 3).unwrap(),
            ["line 19997", "line 19998", "line 19999"]
        );
        let all = tail(&path, usize::MAX).unwrap();
        assert!(
            all.iter().all(|line| line.starts_with("line ")),
            "a cut line was kept: {}",
            all[0]
        );
    }

    #[test]
    fn a_log_folder_that_cannot_be_made_is_named() {
        let error = LogFolder::create(Path::new("/proc/no-such-folder"), "bench")
            .err()
            .unwrap();
        assert!(
            error.to_string().contains("/proc/no-such-folder/bench-"),
            "{error}"
        );
    }
}
