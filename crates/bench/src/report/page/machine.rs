//! Where the numbers of all files come from, and how many rows were right.

use maud::html;

use super::{Section, Source, parts};
use crate::provenance::Provenance;
use crate::report::table::Grid;
use crate::report::{Document, Kind, Operands, Status, sentences};

/// How many rows there are of each kind.
#[derive(Default)]
struct Count {
    right: usize,
    wrong: usize,
    not_run: usize,
    of_peers: usize,
}

impl Count {
    fn add(&mut self, is_peer: bool, status: Status) {
        let count = match (is_peer, status) {
            (true, _) => &mut self.of_peers,
            (_, Status::Ok) => &mut self.right,
            (_, Status::Wrong) => &mut self.wrong,
            (_, Status::NotRun) => &mut self.not_run,
        };
        *count += 1;
    }
}

fn of(document: &Document) -> Option<(&str, &Provenance, Count)> {
    let mut count = Count::default();
    match document {
        Document::Report(report) => {
            for (_, row) in report.rows() {
                count.add(row.kind == Kind::Peer, row.status);
            }
            Some((&report.suite, &report.provenance, count))
        }
        Document::Timelines(_) => None,
    }
}

/// What a line of the table is called, and its cell for a file.
type Line = (&'static str, fn(&str, &Provenance, &Count) -> String);

/// A column a file. `None` where no file is a report.
pub(super) fn section(sources: &[Source]) -> Option<Section> {
    let known = sources
        .iter()
        .filter_map(|source| Some((&source.name, of(&source.document)?)));
    let known: Vec<_> = known.collect();
    if known.is_empty() {
        return None;
    }
    let lines: [Line; 15] = [
        ("suite", |suite, _, _| suite.into()),
        ("rows right", |_, _, count| count.right.to_string()),
        ("rows wrong", |_, _, count| count.wrong.to_string()),
        ("rows not run", |_, _, count| count.not_run.to_string()),
        ("rows of peers", |_, _, count| count.of_peers.to_string()),
        ("ranks", |_, p, _| p.ranks.to_string()),
        ("devices", |_, p, _| p.devices()),
        ("CUDA", |_, p, _| p.cuda.clone().unwrap_or_default()),
        ("driver", |_, p, _| p.driver.clone().unwrap_or_default()),
        ("NCCL", |_, p, _| p.nccl.clone().unwrap_or_default()),
        ("cuBLASLt", |_, p, _| p.cublaslt.clone().unwrap_or_default()),
        ("processor", |_, p, _| {
            p.host.processor.clone().unwrap_or_default()
        }),
        ("cores", |_, p, _| p.host.cores.to_string()),
        ("system", |_, p, _| p.host.system.clone()),
        ("warpweave", |_, p, _| {
            format!("{} ({}) {}", p.version, p.commit, p.features.join(" "))
        }),
    ];
    let rows = lines.iter().map(|(name, cell)| {
        let cells = known
            .iter()
            .map(|(_, (suite, provenance, count))| cell(suite, provenance, count));
        std::iter::once((*name).to_owned()).chain(cells).collect()
    });
    let grid = Grid {
        headings: std::iter::once("file".to_owned())
            .chain(known.iter().map(|(name, _)| (*name).clone()))
            .collect(),
        rows: rows
            .filter(|row: &Vec<String>| row[1..].iter().any(|cell| !cell.is_empty()))
            .collect(),
    };
    Some(Section {
        id: "machines".into(),
        title: "Where the numbers come from".into(),
        body: html! { (parts::table("Machines, software and rows of each file", &grid)) },
    })
}

/// What was wrong in any file.
pub(super) fn wrong(sources: &[Source]) -> Vec<String> {
    let reports = sources.iter().filter_map(|source| match &source.document {
        Document::Report(report) => Some(report),
        Document::Timelines(_) => None,
    });
    let wrong = reports.flat_map(|report| report.wrong());
    let told = wrong.map(|(outcome, row)| {
        let why = row.reason.as_deref().unwrap_or("no reason known");
        let (title, name) = (sentences::title(outcome), &row.implementation);
        match outcome.on {
            Operands::Matrices { .. } => format!("{title}: {name}: {why}"),
            Operands::Message { size, .. } => format!("{title}, {size}: {name}: {why}"),
        }
    });
    told.collect()
}
