//! The sweeps as a drawing: µs over bytes, both logarithmic; a row of panels an operation, a line an implementation.
//!
//! SVG is text, and this plot is lines and words: written here, it costs no dependency.

use std::fmt::Write;

use super::grid::{names, us};
use super::{Metric, Outcome, Report, sentences};
use crate::collectives::size::Bytes;

const PANEL: (f64, f64) = (430.0, 290.0);
const LEFT: f64 = 52.0;
const TOP: f64 = 34.0;
const GAP: (f64, f64) = (66.0, 74.0);
const LEGEND: f64 = 180.0;
const METRICS: [Metric; 2] = [Metric::Single, Metric::GraphSingle];

/// The whole drawing.
pub(super) fn svg(report: &Report) -> String {
    let operations = report.operations();
    let columns = METRICS.len() as f64;
    let width = LEFT + columns * (PANEL.0 + GAP.0) + LEGEND;
    let height = TOP + operations.len() as f64 * (PANEL.1 + GAP.1) + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(
        &mut svg,
        (LEFT, 16.0),
        "font-weight=\"bold\"",
        &report.provenance.to_string(),
    );
    for (i, sizes) in operations.into_iter().enumerate() {
        let top = TOP + i as f64 * (PANEL.1 + GAP.1) + 22.0;
        let Some(axes) = Axes::of(sizes) else {
            continue;
        };
        let lines = lines(sizes);
        for (j, metric) in METRICS.into_iter().enumerate() {
            let left = LEFT + j as f64 * (PANEL.0 + GAP.0);
            let title = format!("{}: µs of {}", sentences::operation(sizes), metric.title());
            axes.panel(&mut svg, (left, top), &title, sizes);
            for line in &lines {
                axes.line(&mut svg, (left, top), line, &line.points(sizes, metric));
            }
        }
        let left = LEFT + columns * (PANEL.0 + GAP.0) - GAP.0 + 16.0;
        for (j, line) in lines.iter().enumerate() {
            let y = top + 10.0 + j as f64 * 17.0;
            let _ = writeln!(
                svg,
                "<line x1=\"{left}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" {}/>",
                left + 26.0,
                line.style
            );
            text(&mut svg, (left + 32.0, y + 4.0), "", &line.name);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// One implementation, or the limit, in all panels of an operation.
struct Line {
    name: String,
    style: String,
    is_limit: bool,
}

/// Colours that can be told apart, also by most of the colour-blind, in the order of the names below.
const STYLES: [(&str, &str, &str); 21] = [
    ("nccl", "#000000", ""),
    ("nccl-window", "#7f7f7f", ""),
    ("packets", "#d62728", ""),
    ("packets-two-shot", "#ff7f0e", ""),
    ("push", "#1f77b4", ""),
    ("pull", "#17becf", ""),
    ("push-tma", "#2ca02c", ""),
    ("push-copy-engine", "#9467bd", ""),
    ("push-batched", "#e377c2", ""),
    ("one-shot", "#bcbd22", ""),
    ("two-shot", "#8c564b", ""),
    ("pull-tma", "#98df8a", ""),
    ("two-shot-tma", "#c49c94", ""),
    ("two-shot-push", "#5254a3", ""),
    ("scatter-all-gather", "#637939", ""),
    ("tree", "#000080", "8 2"),
    ("multimem", "#31a354", "1 2"),
    ("multicast-copy", "#756bb1", "1 2"),
    ("torch-nccl", "#555555", "6 3"),
    ("torch-one-shot", "#a0a000", "6 3"),
    ("torch-two-shot", "#a06040", "6 3"),
];

fn lines(sizes: &[Outcome]) -> Vec<Line> {
    let style = |colour: &str, dashes: &str, width: f64| {
        format!(
            "fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\""
        )
    };
    let mut lines: Vec<_> = names(sizes)
        .into_iter()
        .filter(|name| {
            let rows = sizes.iter().filter_map(|outcome| outcome.row(name));
            rows.into_iter()
                .any(|row| row.median(Metric::Single).is_some())
        })
        .map(|name| {
            let known = STYLES.iter().find(|(known, ..)| *known == name);
            let &(_, colour, dashes) = known.unwrap_or(&("", "#4444aa", "2 2"));
            let width = if name == super::BASELINE { 2.6 } else { 1.6 };
            Line {
                style: style(colour, dashes, width),
                name,
                is_limit: false,
            }
        })
        .collect();
    if sizes.iter().any(|outcome| outcome.limit.is_some()) {
        lines.push(Line {
            name: "limit".into(),
            style: style("#999999", "2 3", 1.6),
            is_limit: true,
        });
    }
    lines
}

impl Line {
    fn points(&self, sizes: &[Outcome], metric: Metric) -> Vec<(Bytes, f64)> {
        let ms = |outcome: &Outcome| match self.is_limit {
            true => outcome.limit.map(|limit| limit.ms),
            false => outcome.row(&self.name)?.median(metric),
        };
        let points = sizes
            .iter()
            .filter_map(|outcome| Some((outcome.size, ms(outcome)?)));
        points.collect()
    }
}

/// The scales that the panels of an operation share.
struct Axes {
    bytes: (f64, f64),
    decades: (i32, i32),
}

impl Axes {
    fn of(sizes: &[Outcome]) -> Option<Self> {
        let of_row = |row: &super::Row| {
            METRICS
                .map(|metric| row.median(metric))
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        let times: Vec<f64> = sizes
            .iter()
            .flat_map(|o| &o.rows)
            .flat_map(of_row)
            .filter(|&ms| ms > 0.0)
            .collect();
        let low = times.iter().copied().reduce(f64::min)? * 1e3;
        let high = times.iter().copied().reduce(f64::max)? * 1e3;
        let log = |outcome: &Outcome| (outcome.size.0 as f64).log2();
        let (first, last) = (
            sizes.iter().map(log).reduce(f64::min)?,
            sizes.iter().map(log).reduce(f64::max)?,
        );
        Some(Self {
            bytes: (first - 0.3, last + 0.3),
            decades: (
                low.log10().floor() as i32,
                (high.log10().ceil() as i32).max(low.log10().floor() as i32 + 1),
            ),
        })
    }

    fn x(&self, left: f64, size: Bytes) -> f64 {
        let (low, high) = self.bytes;
        left + PANEL.0 * ((size.0 as f64).log2() - low) / (high - low)
    }

    fn y(&self, top: f64, ms: f64) -> f64 {
        let (low, high) = (f64::from(self.decades.0), f64::from(self.decades.1));
        top + PANEL.1 * (high - (ms * 1e3).log10()) / (high - low)
    }

    fn panel(&self, svg: &mut String, (left, top): (f64, f64), title: &str, sizes: &[Outcome]) {
        text(svg, (left, top - 7.0), "font-weight=\"bold\"", title);
        let bottom = top + PANEL.1;
        for decade in self.decades.0..=self.decades.1 {
            for step in 1..=9 {
                let ms = f64::from(step) * 10f64.powi(decade) / 1e3;
                let y = self.y(top, ms);
                if y < top - 0.01 {
                    break;
                }
                let colour = if step == 1 { "#cccccc" } else { "#f0f0f0" };
                let _ = writeln!(
                    svg,
                    "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"{colour}\"/>",
                    left + PANEL.0
                );
                if step == 1 {
                    let label = if decade < 0 {
                        us(ms)
                    } else {
                        format!("{}", 10u64.pow(decade as u32))
                    };
                    text(svg, (left - 6.0, y + 4.0), "text-anchor=\"end\"", &label);
                }
            }
        }
        for outcome in sizes {
            let x = self.x(left, outcome.size);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{top}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#e8e8e8\"/>"
            );
            text(
                svg,
                (x, bottom + 16.0),
                "text-anchor=\"middle\"",
                &outcome.size.to_string(),
            );
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#666666\"/>",
            PANEL.0, PANEL.1
        );
    }

    fn line(
        &self,
        svg: &mut String,
        (left, top): (f64, f64),
        line: &Line,
        points: &[(Bytes, f64)],
    ) {
        // The limit of a small message lies below everything.
        let places = points
            .iter()
            .map(|&(size, ms)| (self.x(left, size), self.y(top, ms)));
        let places: Vec<_> = places.filter(|&(_, y)| y <= top + PANEL.1).collect();
        if places.is_empty() {
            return;
        }
        let path: Vec<_> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" {}/>",
            path.join(" "),
            line.style
        );
        for (x, y) in places.iter().filter(|_| !line.is_limit) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\" {}/>",
                line.style
            );
        }
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), more: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {more}>{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_implementation_with_a_time_has_a_line_and_larger_is_higher() {
        let report = Report::sample();
        let svg = svg(&report);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for part in [
            ">nccl<",
            ">packets<",
            ">torch-nccl<",
            ">limit<",
            ">4K<",
            ">16M<",
            ">100<",
            "one graph launch",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        // Four of the first panel, and the limit; three of the second, for peers have no graphs.
        assert_eq!(svg.matches("<polyline").count(), 5 + 4, "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let axes = Axes::of(&report.results).unwrap();
        assert!(axes.y(0.0, 0.1) < axes.y(0.0, 0.01));
        assert!(axes.x(0.0, Bytes(4096)) < axes.x(0.0, Bytes(16 << 20)));
        assert!((0.0..=PANEL.1).contains(&axes.y(0.0, 0.188)));
    }

    #[test]
    fn nothing_measured_is_an_empty_drawing() {
        let mut report = Report::sample();
        report.results.truncate(1);
        report.results[0].rows.clear();
        assert!(svg(&report).ends_with("</svg>\n"));
    }
}
