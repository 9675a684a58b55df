//! The tables, the same for every view.

use crate::model::{Kind, Metric, Outcome, Report, Row, Status};
use crate::statistics::{Spread, distinct};

/// A table of text.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Columns that hold text and not numbers.
const TEXT: [&str; 15] = [
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

/// The row of what the library selects. It is the row of the variant itself: nothing is timed twice.
pub const SELECT: &str = "select";

impl Grid {
    /// A column for each heading.
    pub fn new<S: Into<String>>(
        headings: impl IntoIterator<Item = S>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        Self {
            headings: headings.into_iter().map(Into::into).collect(),
            rows: rows.into_iter().collect(),
        }
    }

    /// A first column of names under `heading`, and a column for each of the others.
    pub fn over(
        heading: &str,
        columns: impl IntoIterator<Item = String>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        Self::new(std::iter::once(heading.to_owned()).chain(columns), rows)
    }

    /// A row for each implementation of a problem. Where rows were measured in several groups, each names its
    /// own: its ratios are to the baseline and the limit of that group.
    pub fn of_problem(result: &Outcome) -> Self {
        let headings = COLUMNS.map(|(heading, _)| heading);
        let cells = |row| COLUMNS.map(|(_, cell)| cell(row, result)).to_vec();
        Self::new(headings, result.rows.iter().map(cells)).without_empty_columns()
    }

    /// A row for each problem, for suites that compare implementations over all of them.
    pub fn of_all_problems(report: &Report) -> Option<Self> {
        let first = report
            .results
            .first()
            .filter(|_| !report.means.is_empty())?;
        let mut headings = vec!["M×N×K".to_owned()];
        for (i, row) in first.rows.iter().enumerate() {
            headings.extend([format!("{} ms", row.implementation), "TFLOP/s".into()]);
            if i > 0 {
                headings.push("× base".into());
            }
        }
        let rows = report.results.iter().map(|result| {
            let mut cells = vec![format!("{} {}", result.size(), result.dtype)];
            for (i, row) in result.rows.iter().enumerate() {
                cells.extend([median(row.single_ms), optional(row.tflops, rate)]);
                if i > 0 {
                    cells.push(optional(row.times_baseline, |v| format!("{v:.3}")));
                }
            }
            cells
        });
        Some(Self::new(headings, rows))
    }

    /// One of the times of a collective in µs, one column per size; `None` where no row has it.
    pub fn of_sizes(sizes: &[Outcome], metric: Metric) -> Option<Self> {
        let timed = |outcome: &Outcome| outcome.rows.iter().any(|row| row.spread(metric).is_some());
        if !sizes.iter().any(timed) {
            return None;
        }
        let has_line = |name: &String| {
            let mut rows = sizes.iter().filter_map(|outcome| outcome.row(name));
            metric == Metric::Single || rows.any(|row| row.kind != Kind::Peer)
        };
        let names = names(sizes).into_iter().filter(has_line);
        let mut rows: Vec<_> = names
            .map(|name| line(&name, sizes, |outcome| cell(outcome, &name, metric)))
            .collect();
        let selected =
            |outcome: &Outcome| outcome.row(outcome.selected.as_deref()?)?.median(metric);
        let best = |outcome: &Outcome| outcome.fastest(metric)?.median(metric);
        let limit = |outcome: &Outcome| outcome.limit.as_ref().map(|limit| limit.ms);
        let nccl = |outcome: &Outcome, ms| {
            let ratio = outcome.times_nccl(metric, ms);
            ratio.map(|ratio| format!("{ratio:.2}"))
        };
        let ratio = |pair: Option<(f64, f64)>| pair.map(|(a, b)| format!("{:.3}", a / b));
        let lines = [
            line(SELECT, sizes, |o| selected(o).map(us)),
            line("limit", sizes, |o| limit(o).map(us)),
            line("best × nccl", sizes, |o| nccl(o, best(o))),
            line("select × nccl", sizes, |o| nccl(o, selected(o))),
            line("select / best", sizes, |o| ratio(selected(o).zip(best(o)))),
            line("eff. of best", sizes, |o| ratio(limit(o).zip(best(o)))),
        ];
        rows.extend(lines.into_iter().filter(|line| has_cells(line)));
        Some(over_sizes(sizes, rows))
    }

    /// The spread of single calls of a collective: 10th and 90th percentile in µs.
    pub fn of_spreads(sizes: &[Outcome]) -> Self {
        let rows = names(sizes).into_iter().map(|name| {
            line(&name, sizes, |outcome| {
                let row = outcome.row(&name).filter(|row| row.kind != Kind::Peer)?;
                row.single_ms
                    .map(|spread| format!("{}–{}", us(spread.p10), us(spread.p90)))
            })
        });
        over_sizes(sizes, rows.filter(|line| has_cells(line)))
    }

    /// NCCL's time over each row's; `None` where NCCL did not run.
    pub fn of_ratios(sizes: &[Outcome], metric: Metric) -> Option<Self> {
        let rows = names(sizes).into_iter().map(|name| {
            line(&name, sizes, |outcome| {
                let ratio = outcome.times_nccl(metric, outcome.row(&name)?.median(metric));
                Some(ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")))
            })
        });
        let timed = |outcome: &Outcome| outcome.times_nccl(metric, Some(1.0)).is_some();
        sizes.iter().any(timed).then(|| over_sizes(sizes, rows))
    }

    /// Whether a column is aligned to the left.
    pub fn is_text(&self, column: usize) -> bool {
        let heading = self.headings.get(column);
        heading.is_some_and(|heading| TEXT.contains(&heading.as_str()))
    }

    /// The table cut in two before the column `heading`, each half with the first column.
    pub fn split(&self, heading: &str) -> Option<[Self; 2]> {
        let at = self.headings.iter().position(|h| h == heading)?;
        let left = |cells: &Vec<String>| cells[..at].to_vec();
        let right = |cells: &Vec<String>| {
            let first = cells.iter().take(1);
            first.chain(&cells[at..]).cloned().collect()
        };
        let half = |cut: &dyn Fn(&Vec<String>) -> Vec<String>| Self {
            headings: cut(&self.headings),
            rows: self.rows.iter().map(cut).collect(),
        };
        Some([half(&left), half(&right)])
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

/// A column of the rows of a problem, and its cell.
pub(super) type Column = (&'static str, fn(&Row, &Outcome) -> String);

pub(super) const COLUMNS: [Column; 15] = [
    ("implementation", |row, _| row.implementation.clone()),
    ("ms", |row, _| median(row.single_ms)),
    ("p10–p90", |row, _| {
        optional(row.single_ms, |s| {
            format!("{}–{}", rough_ms(s.p10), rough_ms(s.p90))
        })
    }),
    ("TFLOP/s", |row, _| optional(row.tflops, rate)),
    ("group", |row, result| {
        let group = row.compared_with().filter(|_| result.groups.len() > 1);
        optional(group, |number| (number + 1).to_string())
    }),
    ("× base", |row, _| {
        optional(row.times_baseline, |v| format!("{v:.2}"))
    }),
    ("eff.", |row, _| {
        optional(row.efficiency, |v| format!("{v:.3}"))
    }),
    ("published", |row, _| optional(row.published_ms, ms)),
    ("back to back", |row, _| median(row.back_to_back_ms)),
    ("graph", |row, _| median(row.graph_ms)),
    ("host µs", |row, _| optional(row.enqueue_us, microseconds)),
    ("host µs, M changes", |row, _| {
        optional(row.enqueue_changing_us, microseconds)
    }),
    ("launches", |row, _| {
        optional(row.launches, |n| n.to_string())
    }),
    ("transport", |row, _| row.transport.join(", ")),
    ("check", |row, _| check(row)),
];

fn microseconds(spread: Spread) -> String {
    format!("{:.1}", spread.median)
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

/// The implementations of an operation, in the order in which they come.
pub(super) fn names(sizes: &[Outcome]) -> Vec<String> {
    let rows = sizes.iter().flat_map(|outcome| &outcome.rows);
    distinct(rows.map(|row| row.implementation.clone()))
}

fn over_sizes(sizes: &[Outcome], rows: impl IntoIterator<Item = Vec<String>>) -> Grid {
    Grid::over("implementation", sizes.iter().map(Outcome::size), rows)
}

fn line(name: &str, sizes: &[Outcome], cell: impl Fn(&Outcome) -> Option<String>) -> Vec<String> {
    let cells = sizes
        .iter()
        .map(|outcome| cell(outcome).unwrap_or_default());
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn has_cells(line: &[String]) -> bool {
    line[1..].iter().any(|cell| !cell.is_empty())
}

fn cell(outcome: &Outcome, name: &str, metric: Metric) -> Option<String> {
    let row = outcome.row(name)?;
    Some(match row.status {
        Status::Wrong => "WRONG".into(),
        _ => row.median(metric).map_or("–".into(), us),
    })
}

fn optional<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or(String::new(), text)
}

fn median(spread: Option<Spread>) -> String {
    optional(spread, |spread| ms(spread.median))
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

/// A percentile: one digit less.
pub(super) fn rough_ms(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v if v >= 0.1 => format!("{v:.3}"),
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

/// Milliseconds as µs, three digits or whole.
pub(super) fn us(ms: f64) -> String {
    match ms * 1e3 {
        us if us >= 99.95 => format!("{us:.0}"),
        us if us >= 9.995 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_a_table() {
        let report = Report::sample_of_collectives();
        let grid = Grid::of_sizes(&report.results, Metric::Single).unwrap();
        assert_eq!(grid.headings, ["implementation", "4K", "16M"]);
        assert_eq!(
            grid.rows,
            [
                ["nccl", "21.0", "197"],
                ["packets", "5.25", "–"],
                ["push", "8.40", "164"],
                ["torch-nccl", "22.1", ""],
                ["select", "8.40", "164"],
                ["limit", "0.03", "132"],
                ["best × nccl", "4.00", "1.21"],
                ["select × nccl", "2.50", "1.21"],
                ["select / best", "1.600", "1.000"],
                ["eff. of best", "0.006", "0.806"],
            ]
        );
        let graphs = Grid::of_sizes(&report.results, Metric::GraphSingle).unwrap();
        assert!(graphs.rows.iter().all(|row| row[0] != "torch-nccl"));
        assert!(Grid::of_sizes(&report.results, Metric::Graph).is_none());
        let spreads = Grid::of_spreads(&report.results);
        assert_eq!(spreads.rows[1], ["packets", "5.05–5.45", ""]);
    }

    #[test]
    fn a_wrong_row_has_no_ratio_and_is_not_what_was_selected() {
        let mut report = Report::sample_of_collectives();
        report.results[0].rows[2].status = Status::Wrong;
        let ratios = Grid::of_ratios(&report.results, Metric::Single).unwrap();
        assert_eq!(ratios.rows[2], ["push", "–", "1.21"]);
        let times = Grid::of_sizes(&report.results, Metric::Single).unwrap();
        assert_eq!(times.rows[2], ["push", "WRONG", "164"]);
        let select = times.rows.iter().find(|row| row[0] == SELECT).unwrap();
        assert_eq!(*select, [SELECT, "", "164"]);
    }
}
