//! Whether code in a folder that nobody named explicitly may be loaded or run.
//!
//! A search upwards from the program finds `/tmp/toolchain` for a program in `/tmp/job`: whoever made that
//! folder would have their code run by this user.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A path with more links than this has a loop.
const LINKS: usize = 40;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// On a folder: only the owner of a file in it may rename or remove the file.
const STICKY: u32 = 0o1000;

/// Why `program` must not load or run code at `path`: who else could have put it there. `None` if only root,
/// this user and the owner of `program` may write it and the folders above it.
pub fn distrust(path: &Path, program: &Path) -> Option<String> {
    let owners = [Path::new("/proc/self"), program].map(|of| Some(fs::metadata(of).ok()?.uid()));
    let trusted: Vec<u32> = owners.into_iter().flatten().chain([0]).collect();
    let checked = std::path::absolute(path).and_then(|path| examine(&path, &trusted, LINKS));
    checked.unwrap_or_else(|error| Some(format!("{} cannot be examined: {error}", path.display())))
}

/// Checks `path`, which is absolute, all folders above it, and the targets of links among them.
fn examine(path: &Path, trusted: &[u32], links: usize) -> io::Result<Option<String>> {
    for place in path.ancestors() {
        let found = fs::symlink_metadata(place)?;
        let (owner, group, mode) = (found.uid(), found.gid(), found.mode());
        if !trusted.contains(&owner) {
            return Ok(Some(format!("{} belongs to user {owner}", place.display())));
        }
        if found.is_symlink() {
            let Some(left) = links.checked_sub(1) else {
                return Err(io::Error::other("too many links"));
            };
            let target: PathBuf = place.parent().unwrap_or(place).join(fs::read_link(place)?);
            match examine(&target, trusted, left)? {
                None => continue,
                why => return Ok(why),
            }
        }
        // If each user has a private group with the same number, that group counts as the user.
        let group_writes = mode & GROUP_WRITES != 0 && group != owner;
        let others_write = mode & OTHERS_WRITE != 0;
        let sticky = found.is_dir() && mode & STICKY != 0;
        if (group_writes || others_write) && !sticky {
            let who = if others_write {
                "everybody"
            } else {
                "its group"
            };
            return Ok(Some(format!(
                "{} can be written by {who} (chmod go-w)",
                place.display()
            )));
        }
    }
    Ok(None)
}
