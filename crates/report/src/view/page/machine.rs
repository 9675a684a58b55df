//! Where the numbers of all files come from, and how many rows were right.

use maud::html;

use super::{Section, Source, parts};
use crate::Document;
use crate::model::{Kind, Operands, Report, Status};
use crate::provenance::Fact;
use crate::view::sentences;
use crate::view::table::Grid;

/// What the table says of a file; nothing where that is empty.
fn facts(report: &Report) -> Vec<Fact> {
    let count = |is_peer: bool, status: Option<Status>| {
        let rows = report.rows().map(|(_, row)| row);
        let rows = rows.filter(|row| (row.kind == Kind::Peer) == is_peer);
        let rows = rows.filter(|row| status.is_none_or(|status| row.status == status));
        rows.count().to_string()
    };
    let rows = [
        ("suite", report.suite.to_string()),
        ("rows right", count(false, Some(Status::Ok))),
        ("rows wrong", count(false, Some(Status::Wrong))),
        ("rows not run", count(false, Some(Status::NotRun))),
        ("rows of peers", count(true, None)),
    ];
    let from = &report.provenance;
    let facts = from.machine().into_iter().chain(from.software());
    let facts = facts.map(|(what, value)| match value.as_str() {
        "none" => (what, String::new()),
        _ => (what, value),
    });
    rows.into_iter().chain(facts).collect()
}

/// One column per file. `None` where no file is a report.
pub(super) fn section(sources: &[Source]) -> Option<Section> {
    let known = reports(sources).map(|(name, report)| (name, facts(report)));
    let known: Vec<_> = known.collect();
    let (_, first) = known.first()?;
    let rows = first.iter().enumerate().map(|(i, (fact, _))| {
        let cells = known.iter().map(|(_, facts)| facts[i].1.clone());
        std::iter::once((*fact).to_owned()).chain(cells).collect()
    });
    let told = rows.filter(|cells: &Vec<String>| cells[1..].iter().any(|cell| !cell.is_empty()));
    let grid = Grid::over("file", known.iter().map(|(name, _)| name.to_string()), told);
    Some(Section {
        id: "machines".into(),
        title: "Where the numbers come from".into(),
        body: html! { (parts::table("Machines, software and rows of each file", &grid)) },
    })
}

fn reports(sources: &[Source]) -> impl Iterator<Item = (&str, &Report)> {
    sources.iter().filter_map(|source| match &source.document {
        Document::Report(report) => Some((source.name.as_str(), report.as_ref())),
        Document::Timelines(_) => None,
    })
}

/// What was wrong in any file.
pub(super) fn wrong(sources: &[Source]) -> Vec<String> {
    let wrong = reports(sources).flat_map(|(_, report)| report.wrong());
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
