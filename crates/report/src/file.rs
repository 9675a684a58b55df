//! How files are read and written, with errors that name them.

use std::path::Path;

use crate::error::{ReportError, Result};

/// The text of a file.
///
/// # Errors
/// [`ReportError::File`].
pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(at(path))
}

/// Writes a file anew.
///
/// # Errors
/// [`ReportError::File`].
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, content).map_err(at(path))
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
/// [`ReportError::Usage`]: it is a folder, or there is no folder for it.
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
        return Ok(());
    };
    let path = path.display();
    Err(ReportError::Usage(format!("{option} {path}: {why}")))
}
