//! The report as Markdown in one table, as it is kept in `docs/results`.

use std::io::{self, Write};

use super::markdown::{head, list, write_table};
use super::table::{COLUMNS, Grid, ms};
use crate::model::{Metric, Outcome, Report, Status};
use crate::statistics::distinct;

/// What the columns of summaries mean: of plans, of collectives.
const LEGENDS: [[&str; 2]; 2] = [
    [
        "ms, p10–p90: one call, ranks aligned, the slowest rank, median. \
         graph, back to back: ms of one of several.",
        "× base: the baseline's ms over the row's. eff.: the limit over ms. \
         All rows but peers were verified.",
    ],
    [
        "µs of one call, in brackets of one graph launch; ranks aligned, the slowest rank, median; \
         by message size.",
        "× nccl: NCCL's time over it. limit: bytes over the links' bandwidth. \
         All rows but peers were verified.",
    ],
];

/// The columns of problems, after the problem.
const SHOWN: [&str; 8] = [
    "implementation",
    "ms",
    "p10–p90",
    "graph",
    "back to back",
    "× base",
    "eff.",
    "check",
];

/// Writes `report` in one table, with what did not run and why below it.
///
/// # Errors
/// What `out` reports.
pub fn summary(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let grid = match report.is_of_collectives() {
        true => of_sizes(report),
        false => of_problems(report),
    };
    head(report, out)?;
    writeln!(out)?;
    write_table(&grid, out)?;
    let mut lines = Vec::new();
    for (what, status) in [
        ("was WRONG", Status::Wrong),
        ("was not run", Status::NotRun),
    ] {
        let failed = report.rows().filter(|(_, row)| row.status == status);
        let failed: Vec<_> = failed.map(|(_, row)| row).collect();
        let names = distinct(failed.iter().map(|row| &row.implementation));
        let why = |name: &String| {
            let mut rows = failed.iter().filter(|row| row.implementation == *name);
            let first = rows.next().and_then(|row| row.reason.as_deref());
            first.unwrap_or_default()
        };
        lines.extend(names.chunk_by(|a, b| why(a) == why(b)).map(|same| {
            let names: Vec<_> = same.iter().map(|name| name.as_str()).collect();
            format!("{} {what}: {}", names.join(", "), why(same[0]))
        }));
    }
    lines.extend(LEGENDS[usize::from(report.is_of_collectives())].map(str::to_owned));
    writeln!(out)?;
    list(&lines, out)
}

/// The rows of a problem below each other, after its last the limit.
fn of_problems(report: &Report) -> Grid {
    let named = |name: &&str| COLUMNS.iter().find(|(heading, _)| heading == name);
    let columns: Vec<_> = SHOWN.iter().filter_map(named).collect();
    let mut headings = vec!["problem"];
    headings.extend(columns.iter().map(|(heading, _)| heading));
    let rows = report.results.iter().flat_map(|result| {
        let limit = result.limit.iter().map(|limit| {
            let mut cells = vec![String::new(); 1 + columns.len()];
            (cells[1], cells[2]) = ("limit".into(), ms(limit.ms));
            cells
        });
        let rows = result.rows.iter().map(|row| {
            let mut cells = vec![String::new()];
            cells.extend(columns.iter().map(|(_, cell)| cell(row, result)));
            // Only what was not right is told.
            if let (Status::Ok, Some(check)) = (row.status, cells.last_mut()) {
                check.clear();
            }
            cells
        });
        let mut rows: Vec<_> = rows.chain(limit).collect();
        if let Some(first) = rows.first_mut() {
            first[0] = format!("{} {}", result.size(), result.dtype);
        }
        rows
    });
    Grid::new(headings, rows).without_empty_columns()
}

/// Times of a collective by size, those of graphs in brackets.
fn of_sizes(report: &Report) -> Grid {
    let operations = report.operations();
    let longest = operations.iter().max_by_key(|sizes| sizes.len());
    let rows = operations.iter().flat_map(|sizes| {
        let [single, graph] =
            [Metric::Single, Metric::GraphSingle].map(|m| Grid::of_sizes(sizes, m));
        let graph = graph.map_or(Vec::new(), |grid| grid.rows);
        let both = |mut cells: Vec<String>| {
            let of_graphs = graph.iter().find(|row| row[0] == cells[0]);
            for (cell, graph) in cells
                .iter_mut()
                .zip(of_graphs.into_iter().flatten())
                .skip(1)
            {
                if *cell != *graph {
                    *cell = format!("{cell} ({graph})");
                }
            }
            cells.insert(0, String::new());
            cells
        };
        let is_shown = |cells: &Vec<String>| cells[1..].iter().any(|cell| cell != "–");
        let rows = single
            .map_or(Vec::new(), |grid| grid.rows)
            .into_iter()
            .filter(is_shown);
        let mut rows: Vec<_> = rows.map(both).collect();
        let name = sizes[0].operation.as_deref().unwrap_or_default();
        rows.iter_mut()
            .take(1)
            .for_each(|row| row[0] = name.to_owned());
        rows
    });
    let sizes = longest
        .into_iter()
        .flat_map(|sizes| sizes.iter().map(Outcome::size));
    let columns = std::iter::once("implementation".to_owned()).chain(sizes);
    Grid::over("operation", columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_tells_wrong_rows_from_those_that_did_not_run() {
        let mut report = Report::sample_of_collectives();
        let push = &mut report.results[0].rows[2];
        (push.status, push.reason) = (Status::Wrong, Some("12 of 4096 elements".into()));
        let mut out = Vec::new();
        summary(&report, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("push was WRONG: 12 of 4096 elements"),
            "{text}"
        );
        assert!(text.contains("packets was not run: 16777216"), "{text}");
    }

    #[test]
    fn a_summary_is_one_table() {
        for (report, rows) in [
            (
                Report::sample(),
                "| 64x32x16 f16 | baselineCudaAllgatherMatmul | 0.0600 | 0.0520–0.0680 | 0.0498 |",
            ),
            (
                Report::sample_of_collectives(),
                "| all-gather | nccl | 21.0 (16.0) | 197 (150) |\n|  | packets | 5.25 (4.00) | – |",
            ),
        ] {
            let mut out = Vec::new();
            summary(&report, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(
                text.contains(rows) && text.contains("was not run: "),
                "{text}"
            );
            let of_all = Grid::of_all_problems(&report).is_some();
            let tables = text.lines().filter(|line| line.starts_with("| --- |"));
            assert_eq!(tables.count(), 1 + usize::from(of_all), "{text}");
        }
    }
}
