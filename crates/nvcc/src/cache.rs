//! A content-addressed cache of results, so that a clean build or another profile does not recompile device
//! code.
//!
//! An entry is a folder named by the hash of the command and the source. It holds the result, the compiler's
//! output, and the hash of every header that the compile read. It is valid only while those hashes match.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;

const RESULT: &str = "result";
const OUTPUT: &str = "output";
const INPUTS: &str = "inputs";

/// The folder of one entry.
#[derive(Debug)]
pub(crate) struct Entry {
    folder: PathBuf,
}

/// The content of an entry.
#[derive(Debug)]
pub(crate) struct Hit {
    pub output: String,
    pub inputs: Vec<PathBuf>,
}

fn hash(path: &Path) -> Result<Fingerprint> {
    let mut hash = Fingerprint::new();
    hash.add_file(path)?;
    Ok(hash)
}

impl Entry {
    pub(crate) fn new(cache: &Path, key: Fingerprint) -> Self {
        Self {
            folder: cache.join(key.to_string()),
        }
    }

    /// Copies the result to `to` if the entry exists and its inputs are unchanged.
    pub(crate) fn restore(&self, to: &Path) -> Option<Hit> {
        let inputs = fs::read_to_string(self.folder.join(INPUTS)).ok()?;
        let mut paths = Vec::new();
        for line in inputs.lines() {
            let (expected, path) = line.split_once(' ')?;
            let path = PathBuf::from(path);
            if hash(&path).ok()?.to_string() != expected {
                return None;
            }
            paths.push(path);
        }
        let output = fs::read_to_string(self.folder.join(OUTPUT)).ok()?;
        fs::copy(self.folder.join(RESULT), to).ok()?;
        Some(Hit {
            output,
            inputs: paths,
        })
    }

    /// Stores `result`. The entry appears completely or not at all.
    pub(crate) fn keep(&self, result: &Path, output: &str, inputs: &[PathBuf]) -> Result<()> {
        let making = self.folder.with_extension(std::process::id().to_string());
        // Left by a killed build with the same process number.
        let _ = fs::remove_dir_all(&making);
        fs::create_dir_all(&making).map_err(Error::io("make", &making))?;
        let mut listed = String::new();
        for path in inputs {
            listed.push_str(&format!("{} {}\n", hash(path)?, path.display()));
        }
        let write = |name: &str, text: &str| {
            let path = making.join(name);
            fs::write(&path, text).map_err(Error::io("write", &path))
        };
        write(INPUTS, &listed)?;
        write(OUTPUT, output)?;
        let kept = making.join(RESULT);
        fs::copy(result, &kept).map_err(Error::io("write", &kept))?;
        // An older entry has other inputs; one that another build just made is equally good.
        let _ = fs::remove_dir_all(&self.folder);
        if fs::rename(&making, &self.folder).is_err() {
            let _ = fs::remove_dir_all(&making);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_serves_while_its_inputs_hold() {
        let folder = tempfile::tempdir().unwrap();
        let (header, result, out) = (
            folder.path().join("a header.cuh"),
            folder.path().join("x.cubin"),
            folder.path().join("out"),
        );
        fs::write(&header, "one").unwrap();
        fs::write(&result, "code").unwrap();
        let entry = Entry::new(folder.path(), Fingerprint::of(b"key"));
        assert!(entry.restore(&out).is_none());
        entry
            .keep(&result, "said", std::slice::from_ref(&header))
            .unwrap();
        let hit = entry.restore(&out).unwrap();
        assert_eq!(
            (hit.output.as_str(), hit.inputs),
            ("said", vec![header.clone()])
        );
        assert_eq!(fs::read_to_string(&out).unwrap(), "code");
        fs::write(&header, "two").unwrap();
        assert!(entry.restore(&out).is_none());
        entry
            .keep(&result, "again", std::slice::from_ref(&header))
            .unwrap();
        assert_eq!(entry.restore(&out).unwrap().output, "again");
    }
}
