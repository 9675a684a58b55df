//! Downloads and unpacks with pip, from the index that it is configured for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::pins::Component;
use super::python::Python;
use crate::error::{Error, Result};

/// pip gives up on a silent connection after its own, shorter time-outs; this ends a pip that hangs
/// elsewhere.
const STALL_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Downloads the component's wheels, checks their hashes, and unpacks them into a folder in `staging`.
pub fn unpack(
    python: &Python,
    staging: &Path,
    component: &'static Component,
    requirements: &str,
    bar: &ProgressBar,
) -> Result<PathBuf> {
    let (unpacked, scratch) = (staging.join("unpacked"), staging.join("scratch"));
    fs::create_dir_all(&scratch).map_err(Error::file("cannot make", &scratch))?;
    let list = staging.join("requirements.txt");
    fs::write(&list, requirements).map_err(Error::file("cannot write", &list))?;
    let log = staging.join("pip.log");
    let out = File::create(&log).map_err(Error::file("cannot write", &log))?;
    let err = out.try_clone().map_err(Error::file("cannot write", &log))?;

    let options = "-m pip install --require-hashes --no-deps --only-binary=:all: --no-compile --no-input \
        --no-cache-dir --disable-pip-version-check --progress-bar=off --retries=2 --timeout=30";
    let mut command = python.command();
    command
        .args(options.split_whitespace())
        .arg("--target")
        .arg(&unpacked)
        .arg("-r")
        .arg(&list)
        // What pip has of a wheel is counted for the progress bar, and is on the disk whose space was
        // checked.
        .env("TMPDIR", &scratch)
        // Nothing comes into their system's Python, so nobody needs to be kept out of it.
        .env("PIP_REQUIRE_VIRTUALENV", "0")
        .stdout(out)
        .stderr(err);
    let mut child = command.spawn().map_err(Error::not_started(python.name()))?;
    let mut last = (0, Instant::now());
    let status = loop {
        if let Some(status) = child
            .try_wait()
            .map_err(Error::not_started(python.name()))?
        {
            break status;
        }
        let bytes = size(staging);
        bar.set_position(bytes.min(component.download()));
        if bytes != last.0 {
            last = (bytes, Instant::now());
        } else if last.1.elapsed() > STALL_LIMIT {
            // That it has hung is the news; how it ends is not.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Error::Download {
                component: component.name,
                why: Cause::Network.advice(),
                said: format!("nothing arrived for {} s", STALL_LIMIT.as_secs()),
            });
        }
        thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        let said = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
        return Err(failure(component, &said, staging));
    }
    Ok(unpacked)
}

/// Why a download failed, from what pip prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The index was not reached.
    Network,
    /// The index does not have it for this machine.
    NotOffered,
    /// What the index has is not what was pinned.
    Hash,
    Other,
}

impl Cause {
    /// What to do about it.
    fn advice(self) -> &'static str {
        match self {
            Cause::Network => {
                "the package index was not reached: check the network, or pip's index and proxy settings"
            }
            Cause::NotOffered => {
                "the package index that pip uses does not offer the pinned wheels for this system \
                (glibc 2.27 or newer is needed): point pip at an index that mirrors the Python Package \
                Index"
            }
            Cause::Hash => {
                "what the index offers is not what is pinned: do not use it, and check which index pip \
                    is using"
            }
            Cause::Other => "pip failed",
        }
    }
}

fn cause(said: &str) -> Option<Cause> {
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if has(&["No space left on device", "Disk quota exceeded"]) {
        return None;
    }
    Some(if has(&["DO NOT MATCH THE HASHES", "HashMismatch"]) {
        Cause::Hash
    } else if has(&[
        "NewConnectionError",
        "ConnectTimeout",
        "ReadTimeout",
        "Read timed out",
        "Max retries exceeded",
        "ProxyError",
        "SSLError",
        "ConnectionResetError",
        "Temporary failure in name resolution",
        "connection broken by",
    ]) {
        // pip then adds that no version was found, which is misleading.
        Cause::Network
    } else if has(&["No matching distribution found", "Could not find a version"]) {
        Cause::NotOffered
    } else {
        Cause::Other
    })
}

fn failure(component: &'static Component, said: &str, staging: &Path) -> Error {
    match cause(said) {
        Some(cause) => Error::Download {
            component: component.name,
            why: cause.advice(),
            said: last_lines(said),
        },
        None => Error::ToolchainSpace {
            path: staging.parent().unwrap_or(staging).to_path_buf(),
            needed: component.download() + component.unpacked,
            available: None,
        },
    }
}

fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let shorten = |line: &&str| line.chars().take(200).collect::<String>();
    let last: Vec<String> = lines[lines.len().saturating_sub(6)..]
        .iter()
        .map(shorten)
        .collect();
    last.join("\n  ")
}

fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size(&entry.path()),
            Ok(data) => data.len(),
            // pip moves its files while they are counted.
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_read_from_what_pip_says() {
        let offline = "WARNING: Retrying (Retry(total=1)) after connection broken by \
            'NewConnectionError(...): Failed to establish a new connection: [Errno 101] Network is \
            unreachable'\n\
            ERROR: Could not find a version that satisfies the requirement nvidia-nvvm==13.0.88 (from \
            versions: none)\n\
            ERROR: No matching distribution found for nvidia-nvvm==13.0.88";
        assert_eq!(cause(offline), Some(Cause::Network));
        let other_index = "ERROR: No matching distribution found for nvidia-nvvm==13.0.88";
        assert_eq!(cause(other_index), Some(Cause::NotOffered));
        let forged = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.";
        assert_eq!(cause(forged), Some(Cause::Hash));
        assert_eq!(
            cause("ERROR: Could not install: [Errno 28] No space left on device"),
            None
        );
        assert_eq!(cause("Traceback"), Some(Cause::Other));
    }

    #[test]
    fn the_end_of_a_long_log_is_kept() {
        let log: String = (0..20).map(|line| format!("line {line}\n\n")).collect();
        let kept = last_lines(&log);
        assert!(
            kept.starts_with("line 14") && kept.ends_with("line 19"),
            "{kept}"
        );
        assert_eq!(last_lines(""), "");
    }
}
