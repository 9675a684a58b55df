//! `warpweave report`, and how reports are written.

use std::io::Write;
use std::path::Path;

use super::bench::check_place;
use crate::cli::ReportArgs;
use crate::error::{BenchError, Result};
use crate::report::Document;
use crate::report::page::{Source, page};

/// Writes the page of all files, and the drawing of the first that has one, and says where.
pub(super) fn report(args: &ReportArgs, out: &mut impl Write) -> Result<bool> {
    check_place("--out", &args.out)?;
    if let Some(path) = &args.plot {
        check_place("--plot", path)?;
    }
    let read = |path: &std::path::PathBuf| {
        Ok(Source {
            name: file_name(path),
            document: Document::read(path)?,
        })
    };
    let sources = args.files.iter().map(read).collect::<Result<Vec<_>>>()?;
    write_file(&args.out, |bytes| {
        bytes.write_all(page(&sources).as_bytes())
    })?;
    writeln!(out, "{}: open it in a browser", args.out.display())?;
    if let Some(path) = &args.plot {
        let mut drawings = sources.iter().filter_map(|source| source.document.plot());
        let Some(drawing) = drawings.next() else {
            let why = "--plot: none of the files is of the suite collectives".into();
            return Err(BenchError::Usage(why));
        };
        write_file(path, |bytes| bytes.write_all(drawing.as_bytes()))?;
        writeln!(out, "{}: times over sizes", path.display())?;
    }
    Ok(true)
}

/// The name of a file without its folder.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into()
}

/// Writes a file at once, when all of it is known.
pub(super) fn write_file(
    path: &Path,
    fill: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
) -> Result<()> {
    let mut out = Vec::new();
    let written = fill(&mut out).and_then(|()| std::fs::write(path, out));
    written.map_err(|source| BenchError::File {
        path: path.into(),
        source,
    })
}
