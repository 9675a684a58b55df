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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A folder of this test's own, with `shared/private/lib` in it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("warpweave-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            fs::create_dir_all(root.join("shared/private")).unwrap();
            fs::write(root.join("shared/private/lib"), "").unwrap();
            for (path, mode) in [("", 0o755), ("shared", 0o755), ("shared/private", 0o755)] {
                set(&root.join(path), mode);
            }
            Place(root)
        }

        fn lib(&self) -> PathBuf {
            self.0.join("shared/private/lib")
        }

        fn why(&self, path: &Path) -> Option<String> {
            distrust(path, &self.0)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_may_write_is_not_trusted_wherever_on_the_way_it_lies() {
        let place = Place::new("trust-modes");
        assert_eq!(place.why(&place.lib()), None);
        let shared = place.0.join("shared");
        for (path, mode) in [(&shared, 0o757), (&shared, 0o777), (&place.lib(), 0o646)] {
            let before = fs::metadata(path).unwrap().mode();
            set(path, mode);
            let why = place.why(&place.lib()).unwrap();
            let named = format!("{} can be written by everybody", path.display());
            assert!(why.starts_with(&named), "{why}");
            set(path, before);
        }
        // As /tmp: others may add files but not change those that are there.
        set(&shared, 0o1777);
        assert_eq!(place.why(&place.lib()), None);
    }

    #[test]
    fn links_are_followed() {
        let place = Place::new("trust-links");
        let other = Place::new("trust-links-other");
        let link = place.0.join("link");
        symlink(other.0.join("shared"), &link).unwrap();
        let through = link.join("private/lib");
        assert_eq!(place.why(&through), None);
        set(&other.0.join("shared"), 0o777);
        assert!(place.why(&through).is_some());
        let turning = place.0.join("loop");
        symlink("loop", &turning).unwrap();
        assert!(place.why(&turning).unwrap().contains("too many links"));
        assert!(
            place
                .why(&place.0.join("absent"))
                .unwrap()
                .contains("cannot be examined")
        );
    }

    #[test]
    fn what_belongs_to_another_user_is_not_trusted() {
        let place = Place::new("trust-owners");
        let me = fs::metadata(&place.0).unwrap().uid();
        assert_eq!(examine(&place.lib(), &[0, me], LINKS).unwrap(), None);
        let why = examine(&place.lib(), &[me + 1], LINKS).unwrap().unwrap();
        assert!(why.contains(&format!("belongs to user {me}")), "{why}");
    }

    /// Build scripts use the same function, but cannot depend on this crate.
    #[test]
    fn the_copy_for_build_scripts_is_the_same() {
        let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nvcc/src/trust.rs");
        // The package does not contain it.
        let Ok(copy) = fs::read_to_string(copy) else {
            return;
        };
        let (own, _) = include_str!("trust.rs")
            .split_once("\n#[cfg(test)]")
            .unwrap();
        assert_eq!(own, copy);
    }
}
