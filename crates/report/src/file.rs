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
    let place = place(path)?;
    let part = place.with_added_extension(format!("{}.part", std::process::id()));
    Some((part, place))
}

/// The one name of the file of this path, which other paths and links may lead to. `None` for what is no
/// file, as a device or a pipe.
pub fn place(path: &Path) -> Option<PathBuf> {
    if path.exists() && !path.is_file() {
        return None;
    }
    let new = || Some(folder(path).canonicalize().ok()?.join(path.file_name()?));
    let place = path.canonicalize().ok().or_else(new);
    Some(place.unwrap_or_else(|| path.into()))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
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

/// The names of files, each with as many of its folders as tell it from the others.
pub fn told_apart(paths: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| {
        let parts: Vec<_> = path.components().collect();
        let ends = (0..parts.len())
            .rev()
            .map(|start| parts[start..].iter().collect());
        let is_own = |end: &PathBuf| {
            !paths
                .iter()
                .any(|other| other != path && other.ends_with(end))
        };
        let end = ends.into_iter().find(is_own);
        end.as_ref().unwrap_or(path).display().to_string()
    };
    paths.iter().map(name).collect()
}

/// Fails before a run, not after it, where the file of an option cannot be written.
///
/// # Errors
/// [`ReportError::Usage`]: it is a folder, or there is no folder for it, or none that takes files.
pub fn check_place(option: &str, path: &Path) -> Result<()> {
    let folder = folder(path);
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
    fn files_of_one_name_are_told_apart_by_their_folders() {
        for (paths, names) in [
            ("a/gemm.json b/quick.json", "gemm.json quick.json"),
            ("a/b.json c/b.json d.json", "a/b.json c/b.json d.json"),
            ("a/x/b.json c/x/b.json", "a/x/b.json c/x/b.json"),
            ("/r/a/b.json /r/c/b.json", "a/b.json c/b.json"),
            ("b.json a/b.json", "b.json a/b.json"),
            ("a/b.json a/b.json", "b.json b.json"),
        ] {
            let paths: Vec<PathBuf> = paths.split(' ').map(PathBuf::from).collect();
            assert_eq!(told_apart(&paths).join(" "), names);
        }
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
