//! Whether code that was found in a folder that nobody named may be loaded or run.
//!
//! A search that goes up from the program finds `/tmp/toolchain` for a program in `/tmp/job`: whoever made that folder would
//! have their code run by this user.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// More links than this in a path are a loop.
const LINKS: usize = 40;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// Of a folder: what is in it is renamed and removed by its owner alone.
const STICKY: u32 = 0o1000;

/// Why code at `path` must not be loaded or run by `program`: who else could have put it there. `None` if nobody but root,
/// this user and the owner of `program` may write it or a folder on the way to it.
pub fn distrust(path: &Path, program: &Path) -> Option<String> {
    let owners = [Path::new("/proc/self"), program].map(|of| Some(fs::metadata(of).ok()?.uid()));
    let trusted: Vec<u32> = owners.into_iter().flatten().chain([0]).collect();
    let checked = std::path::absolute(path).and_then(|path| examine(&path, &trusted, LINKS));
    checked.unwrap_or_else(|error| Some(format!("{} cannot be looked at: {error}", path.display())))
}

/// Looks at `path`, an absolute one, and all folders above it, and where they are links, at what these lead to.
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
        // Where each user has a group of their own with the same number, such a group is the user.
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
