//! The cells of the tables: a column a size, a row an implementation, so that a whole sweep fits on a screen.

use super::{Kind, Metric, Outcome};
use crate::collectives::way::SELECT;
use crate::report::Status;
use crate::report::grid::Grid;

/// The table of one of the times of an operation, in µs; `None` where no row has it.
pub(super) fn times(sizes: &[Outcome], metric: Metric) -> Option<Grid> {
    let timed = |outcome: &Outcome| outcome.rows.iter().any(|row| row.median(metric).is_some());
    if !sizes.iter().any(timed) {
        return None;
    }
    let mut rows: Vec<Vec<String>> = names(sizes)
        .into_iter()
        .filter(|name| {
            let rows = || sizes.iter().filter_map(|outcome| outcome.row(name));
            metric == Metric::Single || rows().any(|row| row.kind != Kind::Peer)
        })
        .map(|name| line(&name, sizes, |outcome| cell(outcome, &name, metric)))
        .collect();
    let selected = |outcome: &Outcome| outcome.row(outcome.selected.as_deref()?)?.median(metric);
    let best = |outcome: &Outcome| outcome.best(metric)?.median(metric);
    let ratio = |value: Option<f64>| value.map(|value| format!("{value:.2}"));
    let part = |value: Option<f64>| value.map(|value| format!("{value:.3}"));
    let lines = [
        line(SELECT, sizes, |outcome| selected(outcome).map(us)),
        line("limit", sizes, |outcome| {
            outcome.limit.map(|limit| us(limit.ms))
        }),
        line("best × nccl", sizes, |outcome| {
            ratio(outcome.times_nccl(metric, best(outcome)))
        }),
        line("select × nccl", sizes, |outcome| {
            ratio(outcome.times_nccl(metric, selected(outcome)))
        }),
        line("select / best", sizes, |outcome| {
            part(selected(outcome).zip(best(outcome)).map(|(s, b)| s / b))
        }),
        line("eff. of best", sizes, |outcome| {
            part(outcome.limit.zip(best(outcome)).map(|(l, b)| l.ms / b))
        }),
    ];
    let has_cells = |line: &Vec<String>| line[1..].iter().any(|cell| !cell.is_empty());
    rows.extend(lines.into_iter().filter(has_cells));
    Some(grid(sizes, rows))
}

/// The spread of single calls: 10th and 90th percentile in µs.
pub(super) fn spreads(sizes: &[Outcome]) -> Grid {
    let rows = names(sizes).into_iter().map(|name| {
        line(&name, sizes, |outcome| {
            let row = outcome.row(&name).filter(|row| row.kind != Kind::Peer)?;
            let spread = row.spread(Metric::Single)?;
            Some(format!("{}–{}", us(spread.p10), us(spread.p90)))
        })
    });
    let has_cells = |line: &Vec<String>| line[1..].iter().any(|cell| !cell.is_empty());
    grid(sizes, rows.filter(has_cells).collect())
}

/// NCCL's time over each row's; `None` where NCCL did not run.
pub(super) fn ratios(sizes: &[Outcome], metric: Metric) -> Option<Grid> {
    let rows = names(sizes).into_iter().map(|name| {
        line(&name, sizes, |outcome| {
            let ratio = outcome.times_nccl(metric, outcome.row(&name)?.median(metric));
            Some(ratio.map_or("–".into(), |ratio| format!("{ratio:.2}")))
        })
    });
    let timed = |outcome: &Outcome| outcome.times_nccl(metric, Some(1.0)).is_some();
    sizes.iter().any(timed).then(|| grid(sizes, rows.collect()))
}

/// The implementations of an operation, in the order in which they come.
pub(super) fn names(sizes: &[Outcome]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in sizes.iter().flat_map(|outcome| &outcome.rows) {
        if !names.contains(&row.implementation) {
            names.push(row.implementation.clone());
        }
    }
    names
}

fn grid(sizes: &[Outcome], rows: Vec<Vec<String>>) -> Grid {
    let sizes = sizes.iter().map(|outcome| outcome.size.to_string());
    Grid {
        headings: std::iter::once("implementation".to_owned())
            .chain(sizes)
            .collect(),
        rows,
    }
}

fn line(name: &str, sizes: &[Outcome], cell: impl Fn(&Outcome) -> Option<String>) -> Vec<String> {
    let cells = sizes
        .iter()
        .map(|outcome| cell(outcome).unwrap_or_default());
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn cell(outcome: &Outcome, name: &str, metric: Metric) -> Option<String> {
    let row = outcome.row(name)?;
    Some(match row.status {
        Status::Wrong => "WRONG".into(),
        _ => row.median(metric).map_or("–".into(), us),
    })
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
    use super::super::Report;
    use super::*;

    #[test]
    fn a_sweep_is_a_table() {
        let report = Report::sample();
        let grid = times(&report.results, Metric::Single).unwrap();
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
        let graphs = times(&report.results, Metric::GraphSingle).unwrap();
        assert!(graphs.rows.iter().all(|row| row[0] != "torch-nccl"));
        assert!(times(&report.results, Metric::Graph).is_none());
        assert_eq!(
            spreads(&report.results).rows[1],
            ["packets", "5.05–5.45", ""]
        );
    }
}
