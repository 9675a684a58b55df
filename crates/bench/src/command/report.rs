//! `warpweave report` and `warpweave compare`, and how files are read and written.

use std::io::Write;
use std::path::Path;

use crate::baseline::{self, Baselines, default_threshold};
use crate::cli::{BaselineArgs, ReportArgs};
use crate::error::{BenchError, Result};
use crate::report::page::{Source, page};
use crate::report::{Document, compact, summary};

/// Writes the page of all files, the drawing of the first that has one, and their summaries, and says where.
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
    write_file(&args.out, page(&sources))?;
    writeln!(out, "{}: open it in a browser", args.out.display())?;
    let reports = sources.iter().filter_map(|source| match &source.document {
        Document::Report(report) => Some((&source.name, report)),
        Document::Timelines(_) => None,
    });
    if let Some(path) = &args.plot {
        let Some(drawing) = reports.clone().find_map(|(_, report)| report.plot()) else {
            let why = "--plot: none of the files is of the suite collectives".into();
            return Err(BenchError::Usage(why));
        };
        write_file(path, drawing)?;
        writeln!(out, "{}: times over sizes", path.display())?;
    }
    if let Some(folder) = &args.summaries {
        for (name, report) in reports {
            let path = folder.join(name);
            let mut table = Vec::new();
            summary(report, &mut table)?;
            write_file(&path, format!("{}\n", compact::pack(report)))?;
            write_file(&path.with_extension("md"), table)?;
            writeln!(out, "{}: without samples, and as a table", path.display())?;
        }
    }
    Ok(true)
}

/// Prints what has changed from one baseline to another. True if nothing is slower.
pub(super) fn compare(args: &BaselineArgs, out: &mut impl Write) -> Result<bool> {
    let baselines = Baselines::new(&args.baselines);
    let (old, new) = (baselines.read(&args.old)?, baselines.read(&args.new)?);
    let names = [args.old.as_str(), args.new.as_str()];
    let threshold = match args.threshold {
        Some(percent) => percent / 100.0,
        None => default_threshold(&old),
    };
    let found = baseline::compare((&old, &new), names, threshold)?;
    baseline::print(&found, (&old, &new), names, threshold, out)?;
    Ok(found.holds())
}

/// The name of a file without its folder.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into()
}

/// Fails before a run, not after it, where a file cannot be written.
pub(super) fn check_place(option: &str, path: &Path) -> Result<()> {
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
    Err(BenchError::Usage(format!("{option} {path}: {why}")))
}

pub(super) fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, content).map_err(|source| BenchError::File {
        path: path.into(),
        source,
    })
}
