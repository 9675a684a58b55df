//! How files are read and written, with errors that name them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{ReportError, Result};

/// The text of a file.
///
/// # Errors
/// [`ReportError::File`].
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(at(path))
}

/// Writes a file anew. A reader sees the old one or the new one, never a part; an error leaves the old one.
///
/// # Errors
/// [`ReportError::File`].
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let written = match unfinished(path) {
        Some((part, place)) => fs::write(&part, content)
            .and_then(|()| fs::rename(&part, place))
            .inspect_err(|_| drop(fs::remove_file(&part))),
        None => fs::write(path, content),
    };
    written.map_err(at(path))
}

/// Where this process makes what becomes the file of this path, and the place of that, which links may lead
/// to. `None` for what is no file, as a device or a pipe: it is not to be replaced.
fn unfinished(path: &Path) -> Option<(PathBuf, PathBuf)> {
    if path.exists() && !path.is_file() {
        return None;
    }
    let place = path.canonicalize().unwrap_or_else(|_| path.into());
    let part = place.with_added_extension(format!("{}.part", std::process::id()));
    Some((part, place))
}

/// The error of an operation on a file.
pub fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ReportError {
    move |source| ReportError::File {
        path: path.into(),
        source,
    }
}

/// The name of a file without its folder.
pub fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into()
}

/// Fails before a run, not after it, where the file of an option cannot be written.
///
/// # Errors
/// [`ReportError::Usage`]: it is a folder, or there is no folder for it, or none that takes files.
pub fn check_place(option: &str, path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let why = if path.is_dir() {
        "it is a folder".into()
    } else if !folder.is_dir() {
        format!("there is no folder {}", folder.display())
    } else {
        let Some((part, _)) = unfinished(path) else {
            return Ok(());
        };
        match fs::File::create(&part).and_then(|_| fs::remove_file(&part)) {
            Ok(()) => return Ok(()),
            Err(error) => format!("no file can be made in {}: {error}", folder.display()),
        }
    };
    let path = path.display();
    Err(ReportError::Usage(format!("{option} {path}: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let [file, old, link] = ["file.json", "old", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        // Has what the first one had, unless that is written over.
        fs::hard_link(&file, &old).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        let [file, old] = [file, old].map(|path| fs::read_to_string(path).unwrap());
        assert_eq!((file.as_str(), old.as_str()), ("new", "old"));
        assert!(link.is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_is_no_file_is_written_and_not_replaced() {
        write(Path::new("/dev/null"), "nothing").unwrap();
        assert!(!Path::new("/dev/null").is_file());
        assert!(write(Path::new("/dev/full"), "something").is_err());
        check_place("--json", Path::new("/dev/full")).unwrap();
    }

    #[test]
    fn a_folder_that_takes_no_file_is_refused_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        check_place("--json", &path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let refused = check_place("--json", Path::new("/proc/report.json")).unwrap_err();
        let expected = "--json /proc/report.json: no file can be made in /proc: ";
        assert!(refused.to_string().contains(expected), "{refused}");
    }
}
