//! All problems of a suite at a glance: the best of ours, the baseline, the best of peers, and the limit.

use maud::{Markup, html};

use super::{parts, problem};
use crate::model::{Kind, Metric, Outcome, Report, Row, Status};
use crate::plot::{self, Axis, DOTS, Mark, Rows, Style};
use crate::view::sentences;
use crate::view::table::{Grid, ms};

/// What it is called, and the row that it is of.
type Part = (&'static str, fn(&Outcome) -> Option<&Row>);

/// What is shown of each problem.
const OF: [Part; 3] = [
    ("baseline", |result| {
        result.rows.first().filter(|row| row.status == Status::Ok)
    }),
    ("best of ours", |result| best(result, Kind::Ours)),
    ("best peer", |result| best(result, Kind::Peer)),
];

/// A table and, where there are limits, a plot of all problems. Nothing of one problem alone.
pub(super) fn of(report: &Report) -> Option<Markup> {
    if report.results.len() < 2 {
        return None;
    }
    let mut headings = vec!["M×N×K".to_owned(), "limit ms".into()];
    for (name, _) in OF {
        headings.extend([name.into(), "ms".into(), "eff.".into()]);
    }
    headings.push("best × baseline".into());
    let grid = Grid::new(headings, report.results.iter().map(cells));
    Some(html! {
        h3 { "All problems at a glance" }
        (efficiencies(report).unwrap_or_default())
        (parts::table("The limit, the baseline and what is fastest", &grid.without_empty_columns()))
    })
}

/// The fastest row of this kind that was right, without the baseline and without parts.
fn best(result: &Outcome, kind: Kind) -> Option<&Row> {
    let rows = result.rows.iter().skip(usize::from(kind == Kind::Ours));
    let whole = rows.filter(|row| row.kind == kind && !row.part);
    Row::fastest(whole, Metric::Single)
}

/// How near to the limit. Older files do not have it of peers.
fn efficiency(result: &Outcome, row: &Row) -> Option<f64> {
    let of_group = row.efficiency;
    of_group.or_else(|| Some(result.limit.as_ref()?.ms / row.ms()?))
}

fn cells(result: &Outcome) -> Vec<String> {
    let mut cells = vec![
        sentences::title(result).replacen("M×N×K = ", "", 1),
        result
            .limit
            .as_ref()
            .map_or(String::new(), |limit| ms(limit.ms)),
    ];
    for (_, of) in OF {
        let row = of(result);
        cells.push(row.map_or(String::new(), |row| row.implementation.clone()));
        cells.push(row.and_then(Row::ms).map_or(String::new(), ms));
        let efficiency = row.and_then(|row| efficiency(result, row));
        cells.push(efficiency.map_or(String::new(), |e| format!("{e:.3}")));
    }
    let ratio = best(result, Kind::Ours).and_then(|row| row.times_baseline);
    cells.push(ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")));
    cells
}

fn efficiencies(report: &Report) -> Option<Markup> {
    let mark = |result: &Outcome, number: usize| {
        let (what, of) = OF[number];
        let row = of(result)?;
        let value = efficiency(result, row)?;
        let name = &row.implementation;
        Some(Mark {
            value,
            spread: None,
            style: Style::Series(number),
            title: format!("{what}, {name}: {value:.3} of the limit"),
        })
    };
    let row = |result: &Outcome| plot::Row {
        name: sentences::title(result).replacen("M×N×K = ", "", 1),
        marks: (0..OF.len()).filter_map(|n| mark(result, n)).collect(),
        ..plot::Row::default()
    };
    let rows: Vec<_> = report.results.iter().map(row).collect();
    let highest = Rows::values(&rows).reduce(f64::max)?;
    let named = |number: usize| match (number, report.results.first()) {
        (0, Some(first)) => problem::baseline(first).to_owned(),
        _ => OF[number].0.to_owned(),
    };
    let legend = (0..OF.len()).map(|number| (named(number), Style::Series(number)));
    let legend = Rows::legend(&rows, legend);
    let drawing = Rows {
        label: "efficiency: the limit over the time of one call".into(),
        axis: Axis::linear(highest.max(1.0)),
        layout: DOTS,
        rows,
        rules: vec![(1.0, "limit".into())],
    };
    let caption = "Efficiency of each problem";
    Some(parts::figure(caption, &drawing, &legend))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Spread;

    #[test]
    fn a_part_alone_is_the_best_of_nothing() {
        let mut result = Report::sample().results.remove(0);
        let quick = Spread::of(&[0.01]).unwrap();
        let part = Row {
            part: true,
            ..Row::of_peer("torch-matmul", quick)
        };
        result.rows.push(part);
        let found = best(&result, Kind::Peer).unwrap();
        assert_eq!(found.implementation, "torch-fused");
    }
}
