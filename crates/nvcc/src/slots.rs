//! Compiler slots: limit the compilers that run at once in a target directory, across all build scripts.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// A slot, released when it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Slot {
    _locked: File,
}

/// Acquires one of `count` slots in `directory`; waits at most `limit` for a free one.
pub(crate) fn take(directory: &Path, count: usize, limit: Duration) -> Result<Slot> {
    fs::create_dir_all(directory).map_err(Error::io("make", directory))?;
    let start = Instant::now();
    loop {
        for index in 0..count.max(1) {
            let path = directory.join(format!("slot-{index}"));
            let file = File::create(&path).map_err(Error::io("write", &path))?;
            match file.try_lock() {
                Ok(()) => return Ok(Slot { _locked: file }),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
        if start.elapsed() > limit {
            return Err(Error::Busy {
                directory: directory.to_owned(),
                limit,
            });
        }
        thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_exclusive_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let soon = Duration::from_millis(10);
        let first = take(folder.path(), 2, soon).unwrap();
        let _second = take(folder.path(), 2, soon).unwrap();
        assert!(matches!(
            take(folder.path(), 2, soon),
            Err(Error::Busy { .. })
        ));
        drop(first);
        take(folder.path(), 2, soon).unwrap();
    }
}
