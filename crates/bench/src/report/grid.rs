//! The cells of the tables, the same for every view.

use super::{Kind, ProblemReport, Report, Row, Status};
use crate::statistics::Spread;

/// A table of text.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Columns that hold words and not numbers.
const WORDS: [&str; 15] = [
    "implementation",
    "M×N×K",
    "transport",
    "check",
    "suite",
    "problem",
    "time",
    "verdict",
    "baseline",
    "best of ours",
    "best peer",
    "file",
    "rank",
    "stream",
    "operation",
];

impl Grid {
    /// One row for each implementation of a problem. Where rows were measured in several groups, each says in
    /// which: its ratios are to the baseline and the limit of that group.
    pub fn of_problem(result: &ProblemReport) -> Self {
        let headings = [
            "implementation",
            "ms",
            "p10–p90",
            "TFLOP/s",
            "group",
            "× base",
            "eff.",
            "published",
            "in a row",
            "graph",
            "launches",
            "transport",
            "check",
        ];
        Self {
            headings: headings.map(str::to_owned).into(),
            rows: result.rows.iter().map(|row| cells(row, result)).collect(),
        }
        .without_empty_columns()
    }

    /// One row for each problem, for suites that compare implementations over all of them.
    pub fn of_all_problems(report: &Report) -> Option<Self> {
        if report.means.is_empty() {
            return None;
        }
        let first = report.results.first()?;
        let mut headings = vec!["M×N×K".to_owned()];
        for (i, row) in first.rows.iter().enumerate() {
            headings.extend([format!("{} ms", row.implementation), "TFLOP/s".into()]);
            if i > 0 {
                headings.push("× base".into());
            }
        }
        let rows = report.results.iter().map(|result| {
            let mut cells = vec![format!("{} {}", result.shape, result.dtype)];
            for (i, row) in result.rows.iter().enumerate() {
                cells.extend([median(row.single_ms), optional(row.tflops, rate)]);
                if i > 0 {
                    cells.push(optional(row.times_baseline, |v| format!("{v:.3}")));
                }
            }
            cells
        });
        Some(Self {
            rows: rows.collect(),
            headings,
        })
    }

    /// Whether a column is aligned to the left.
    pub fn is_words(&self, column: usize) -> bool {
        self.headings
            .get(column)
            .is_some_and(|heading| WORDS.contains(&heading.as_str()))
    }

    /// The table cut in two before the column `heading`, each half with the first column.
    pub fn split(&self, heading: &str) -> Option<[Self; 2]> {
        let at = self.headings.iter().position(|h| h == heading)?;
        let left = |cells: &Vec<String>| cells[..at].to_vec();
        let right = |cells: &Vec<String>| {
            let first = cells.iter().take(1);
            first.chain(&cells[at..]).cloned().collect()
        };
        Some([
            Self {
                headings: left(&self.headings),
                rows: self.rows.iter().map(left).collect(),
            },
            Self {
                headings: right(&self.headings),
                rows: self.rows.iter().map(right).collect(),
            },
        ])
    }

    /// Without the columns in which no row has anything.
    pub fn without_empty_columns(mut self) -> Self {
        for column in (0..self.headings.len()).rev() {
            if self.rows.iter().all(|row| row[column].is_empty()) {
                self.headings.remove(column);
                for row in &mut self.rows {
                    row.remove(column);
                }
            }
        }
        self
    }
}

fn cells(row: &Row, result: &ProblemReport) -> Vec<String> {
    let group = row.compared_with().filter(|_| result.groups.len() > 1);
    vec![
        row.implementation.clone(),
        median(row.single_ms),
        optional(row.single_ms, |s| format!("{}–{}", ms(s.p10), ms(s.p90))),
        optional(row.tflops, rate),
        optional(group, |number| (number + 1).to_string()),
        optional(row.times_baseline, |v| format!("{v:.2}")),
        optional(row.efficiency, |v| format!("{v:.3}")),
        optional(row.published_ms, ms),
        median(row.back_to_back_ms),
        median(row.graph_ms),
        optional(row.launches, |n| n.to_string()),
        row.transport.join(", "),
        check(row),
    ]
}

fn optional<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or(String::new(), text)
}

fn median(spread: Option<Spread>) -> String {
    optional(spread, |spread| ms(spread.median))
}

fn check(row: &Row) -> String {
    match (row.status, &row.verification) {
        _ if row.kind == Kind::Peer => "peer".into(),
        (Status::NotRun, _) | (Status::Ok, None) => "not run".into(),
        (Status::Wrong, Some(verdict)) if verdict.wrong > 0 => {
            format!("WRONG: {} of {}", verdict.wrong, verdict.elements)
        }
        (Status::Wrong, _) => "WRONG".into(),
        (Status::Ok, Some(verdict)) => format!("exact; {:.1e}", verdict.relative_error),
    }
}

/// Milliseconds with three to five digits, whether it is a microsecond or a second.
pub(super) fn ms(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v if v >= 1.0 => format!("{v:.3}"),
        v => format!("{v:.4}"),
    }
}

/// TFLOP/s or GB/s.
pub(crate) fn rate(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.4}"),
    }
}
