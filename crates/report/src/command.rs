//! The commands that touch no device, as `warpweave-report` and `warpweave` have them.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::baseline::{self, Baselines, default_threshold};
use crate::error::{ReportError, Result};
use crate::file::{self, check_place};
use crate::{Document, Source, compact, page, summary};

/// Where baselines are kept by default; `cargo xtask` names a folder of its own.
pub const BASELINES: &str = "baselines";

/// What can be done with recorded results.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare two baselines; ends with status 1 if a time of the second is slower or a row of it wrong, 3 if
    /// the machines differ.
    Compare(Compare),
    /// Put measured reports and timelines into one HTML page; no device is touched.
    Report(Report),
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// The old baseline: a name, or the path of a JSON file or of a folder of them, from here or from the
    /// folder of the baselines.
    pub old: String,
    /// The new one.
    pub new: String,
    /// How much slower a time may be, in percent [default: 5 on GPUs, 25 on the host backend].
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub threshold: Option<f64>,
    /// The folder of the baselines.
    #[arg(long, value_name = "DIR", default_value = BASELINES)]
    pub baselines: PathBuf,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (0.0..=10_000.0).contains(&percent) => Ok(percent),
        _ => Err("not a percentage from 0 to 10000".into()),
    }
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// What `bench --json`, `timeline` and `plan trace` wrote.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also draw the collectives' times over sizes to this file as SVG, as `bench --plot` does.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Also write each report without samples, as JSON and as one Markdown table, into this folder. None of
    /// FILE is written over but one without samples, by its own.
    #[arg(long, value_name = "DIR")]
    pub summaries: Option<PathBuf>,
}

impl Command {
    /// Runs the command, and writes to `out` what was found or written. False if some time is slower or
    /// some row wrong.
    ///
    /// # Errors
    /// Files that cannot be read, written or compared.
    pub fn run(&self, out: &mut dyn Write) -> Result<bool> {
        match self {
            Command::Compare(args) => args.run(out),
            Command::Report(args) => args.run(out).map(|()| true),
        }
    }
}

impl Compare {
    /// Prints what has changed from one baseline to another.
    fn run(&self, out: &mut dyn Write) -> Result<bool> {
        let baselines = Baselines::new(&self.baselines);
        let (old, new) = (baselines.read(&self.old)?, baselines.read(&self.new)?);
        let names = [self.old.as_str(), self.new.as_str()];
        let threshold = match self.threshold {
            Some(percent) => percent / 100.0,
            None => default_threshold(&old),
        };
        let found = baseline::compare((&old, &new), names, threshold)?;
        found.print(out)?;
        Ok(found.holds())
    }
}

impl Report {
    /// Writes the page of all files, the drawing of the first that has one, and their summaries.
    fn run(&self, out: &mut dyn Write) -> Result<()> {
        let names = file::told_apart(&self.files);
        let sources = self.files.iter().zip(names).map(|(path, name)| {
            let document = Document::read(path)?;
            Ok(Source { name, document })
        });
        let sources = sources.collect::<Result<Vec<_>>>()?;
        self.check_places(&sources)?;
        let reports = self.files.iter().zip(&sources);
        let reports = reports.filter_map(|(path, source)| match &source.document {
            Document::Report(report) => Some((path, report)),
            Document::Timelines(_) => None,
        });
        let drawing = reports.clone().find_map(|(_, report)| report.plot());
        if self.plot.is_some() && drawing.is_none() {
            let why = "--plot: none of the files is of the suite collectives".into();
            return Err(ReportError::Usage(why));
        }
        file::write(&self.out, page(&sources))?;
        writeln!(out, "{}: open it in a browser", self.out.display())?;
        if let (Some(path), Some(drawing)) = (&self.plot, drawing) {
            file::write(path, drawing)?;
            writeln!(out, "{}: times over sizes", path.display())?;
        }
        if let Some(folder) = &self.summaries {
            for (path, report) in reports {
                let [path, markdown] = summaries(folder, path);
                file::write(&path, format!("{}\n", compact::pack(report)))?;
                // Of what was written, which has fewer digits.
                let Document::Report(written) = Document::read(&path)? else {
                    unreachable!("a report was written")
                };
                let mut table = Vec::new();
                summary(&written, &mut table)?;
                file::write(&markdown, table)?;
                writeln!(out, "{}: without samples, and as a table", path.display())?;
            }
        }
        Ok(())
    }

    /// Fails before anything is written where a file cannot be, would be written twice, or is one of those
    /// that are read; a summary without samples may be written anew.
    fn check_places(&self, sources: &[Source]) -> Result<()> {
        let mut places = vec![("--out", self.out.clone(), None)];
        places.extend(self.plot.iter().map(|path| ("--plot", path.clone(), None)));
        if let Some(folder) = &self.summaries {
            for (read, source) in self.files.iter().zip(sources) {
                if let Document::Report(report) = &source.document {
                    let own = (!report.has_samples()).then(|| file::place(read)).flatten();
                    let [json, table] = summaries(folder, read);
                    places.push(("--summaries", json, own));
                    places.push(("--summaries", table, None));
                }
            }
        }
        let read: Vec<_> = self
            .files
            .iter()
            .filter_map(|path| file::place(path))
            .collect();
        let mut written = Vec::new();
        for (option, path, own) in places {
            check_place(option, &path)?;
            let Some(place) = file::place(&path) else {
                continue;
            };
            let why = if written.contains(&place) {
                "two files would be written there: give them other names"
            } else if read.contains(&place) && own.as_ref() != Some(&place) {
                "it is one of the files, and would be lost: name another place"
            } else {
                written.push(place);
                continue;
            };
            let path = path.display();
            return Err(ReportError::Usage(format!("{option} {path}: {why}")));
        }
        Ok(())
    }
}

/// Where the short form of a report and its table are written.
fn summaries(folder: &Path, report: &Path) -> [PathBuf; 2] {
    let json = folder.join(file::name(report));
    let table = json.with_extension("md");
    [json, table]
}
