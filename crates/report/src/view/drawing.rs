//! Collectives as drawings: µs over bytes, both logarithmic; one row of panels per operation, one line
//! per implementation.

use maud::{Markup, html};

use super::sentences;
use super::table::{names, us};
use crate::model::{Metric, Operands, Outcome, Report, Row};
use crate::plot::{self, Axis, Drawing, Line, Panel, Point, Style};

const METRICS: [Metric; 2] = [Metric::Single, Metric::GraphSingle];
const GAP: f64 = 24.0;
const HEADING: f64 = 34.0;
const LEGEND: f64 = 150.0;
/// Height of a line of text, and how many letters a drawing has place for.
const LINE: f64 = 15.0;
const LETTERS: usize = 130;

impl Report {
    /// As a drawing in SVG, where the suite has one.
    pub fn plot(&self) -> Option<String> {
        self.is_of_collectives().then(|| svg(self))
    }
}

/// A drawing of single calls and single graph launches.
fn svg(report: &Report) -> String {
    let order = names(&report.results);
    let (width, height) = Panel::SIZE;
    let (column, row) = (width + GAP, height + HEADING);
    let operations = report.operations();
    let left = |j: usize| GAP / 2.0 + j as f64 * column;
    let about = wrapped(&report.provenance.to_string());
    let head = HEADING + LINE * about.len().saturating_sub(1) as f64;
    let drawing = html! {
        @for (i, line) in about.iter().enumerate() {
            text .heading x=(GAP / 2.0) y=(18.0 + LINE * i as f64) { (line) }
        }
        @for (i, sizes) in operations.iter().enumerate() {
            @let top = head + i as f64 * row;
            @for (j, metric) in METRICS.into_iter().enumerate() {
                @if let Some(panel) = times(sizes, metric, &order) {
                    @let title = format!("{}: {}", sentences::title(&sizes[0]), metric.title());
                    text .heading x=(left(j)) y=(top + 14.0) { (title) }
                    (plot::at((left(j), top + HEADING - 10.0), &panel.draw()))
                }
            }
            (plot::at((left(METRICS.len()), top + HEADING + 10.0), &legend(sizes, &order)))
        }
    };
    let size = (
        left(METRICS.len()) + LEGEND + GAP,
        head + operations.len() as f64 * row,
    );
    plot::file(size, &drawing)
}

/// Parts between commas, in as few lines as have place for them.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.chars().count() + part.chars().count() <= LETTERS => {
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

fn legend(sizes: &[Outcome], order: &[String]) -> Markup {
    let lines = lines(sizes, order);
    plot::legend(lines.iter().map(|(name, style)| (name.as_str(), *style)))
}

/// The implementations with a time, and the limit. Each is drawn alike in all operations: `order` has the
/// names of all.
pub(super) fn lines(sizes: &[Outcome], order: &[String]) -> Vec<(String, Style)> {
    let has_time = |row: &Row| {
        Metric::ALL
            .iter()
            .any(|&metric| row.median(metric).is_some())
    };
    let of_rows = names(sizes).into_iter().filter(|name| {
        let mut rows = sizes.iter().filter_map(|outcome| outcome.row(name));
        rows.any(has_time)
    });
    let number = |name: &String| order.iter().position(|known| known == name).unwrap_or(0);
    let mut lines: Vec<_> = of_rows
        .map(|name| (name.clone(), Style::Series(number(&name))))
        .collect();
    if sizes.iter().any(|outcome| outcome.limit.is_some()) {
        lines.push(("limit".into(), Style::Limit));
    }
    lines
}

/// One of the times over sizes; `None` where no row has it.
pub(super) fn times(sizes: &[Outcome], metric: Metric, order: &[String]) -> Option<Panel> {
    panel(sizes, order, "µs", |outcome, name| {
        let us = |ms: f64| ms * 1e3;
        match outcome.row(name) {
            Some(row) => row.median(metric).map(us),
            None => outcome
                .limit
                .as_ref()
                .filter(|_| name == "limit")
                .map(|limit| us(limit.ms)),
        }
    })
}

/// NCCL's time over each row's, over sizes; `None` where NCCL did not run.
pub(super) fn ratios(sizes: &[Outcome], metric: Metric, order: &[String]) -> Option<Panel> {
    panel(sizes, order, "× NCCL", |outcome, name| {
        outcome.times_nccl(metric, outcome.row(name)?.median(metric))
    })
}

/// The vertical axis is of the rows: the limit of a small message lies below everything.
fn panel(
    sizes: &[Outcome],
    order: &[String],
    y_label: &str,
    value: impl Fn(&Outcome, &str) -> Option<f64>,
) -> Option<Panel> {
    let point = |outcome: &Outcome, name: &str| {
        let y = value(outcome, name)?;
        let words = match y_label {
            "µs" => format!("{} µs", us(y / 1e3)),
            _ => format!("{y:.2} {y_label}"),
        };
        Some(Point {
            x: bytes(outcome),
            y,
            title: format!("{name}, {}: {words}", outcome.size()),
        })
    };
    let line = |(name, style): (String, Style)| Line {
        points: sizes
            .iter()
            .filter_map(|outcome| point(outcome, &name))
            .collect(),
        name,
        style,
    };
    let lines: Vec<_> = lines(sizes, order).into_iter().map(line).collect();
    let of_rows = lines.iter().filter(|line| line.style != Style::Limit);
    let values = of_rows.flat_map(|line| &line.points).map(|p| p.y);
    Some(Panel {
        x_label: "bytes that a rank brings".into(),
        y_label: y_label.into(),
        x: Axis::doubling(sizes.iter().map(|o| (bytes(o), o.size())))?,
        y: Axis::logarithmic(values)?,
        lines,
    })
}

fn bytes(outcome: &Outcome) -> f64 {
    match outcome.on {
        Operands::Message { size, .. } => size.0 as f64,
        Operands::Matrices { .. } => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Status;
    use crate::model::samples::has;

    #[test]
    fn every_implementation_with_a_time_has_a_line() {
        let svg = svg(&Report::sample_of_collectives());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        has(
            &svg,
            &[
                ">nccl<",
                ">packets<",
                ">torch-nccl<",
                ">limit<",
                ">4K<",
                ">16M<",
                ">100<",
                ">push, 16M: 164 µs<",
                "one graph launch",
            ],
        );
        // Four of the first panel, and the limit; three of the second, for peers have no graphs.
        assert_eq!(svg.matches("<polyline").count(), 5 + 4, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_long_heading_takes_several_lines() {
        let parts = ["something of fifty letters, which is no short word"; 5].join(", ");
        let lines = wrapped(&parts);
        assert_eq!(lines.concat(), parts);
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= LETTERS));
        assert_eq!(wrapped("short, shorter"), ["short, shorter"]);
    }

    #[test]
    fn nothing_measured_is_an_empty_drawing() {
        let mut report = Report::sample_of_collectives();
        report.results.truncate(1);
        report.results[0].rows.clear();
        assert!(svg(&report).ends_with("</svg>\n"));
    }

    #[test]
    fn times_of_wrong_rows_are_not_drawn() {
        let mut report = Report::sample_of_collectives();
        report.results[0].rows[2].status = Status::Wrong;
        let (results, order) = (&report.results, names(&report.results));
        let drawn = [times, ratios].map(|of| of(results, Metric::Single, &order).unwrap());
        for panel in drawn {
            let push = panel.lines.iter().find(|line| line.name == "push").unwrap();
            assert_eq!(push.points.len(), 1, "{push:?}");
        }
    }

    #[test]
    fn ratios_are_those_of_nccl() {
        let report = Report::sample_of_collectives();
        let panel = ratios(&report.results, Metric::Single, &names(&report.results)).unwrap();
        let push = panel.lines.iter().find(|line| line.name == "push").unwrap();
        assert_eq!(push.points[0].title, "push, 4K: 2.50 × NCCL");
        assert!(
            panel
                .lines
                .iter()
                .all(|line| line.style != Style::Limit || line.points.is_empty())
        );
    }
}
