//! The same problem on different numbers of ranks, from different files.

use maud::{Markup, html};

use super::{Section, Source, parts};
use crate::plot::{Axis, Line, Panel, Point, Style};
use crate::report::table::{Grid, rate};
use crate::report::{Document, Metric, Operands};
use crate::statistics::distinct;

/// A number of an implementation on so many ranks.
struct Value {
    implementation: String,
    world: usize,
    value: f64,
}

/// Numbers of one problem.
struct Case {
    title: String,
    unit: &'static str,
    values: Vec<Value>,
}

/// `None` where all files are of the same number of ranks.
pub(super) fn section(sources: &[Source]) -> Option<Section> {
    let mut cases = Vec::new();
    for source in sources {
        collect(&source.document, &mut cases);
    }
    cases.retain(|case| case.worlds().len() > 1);
    if cases.is_empty() {
        return None;
    }
    Some(Section {
        id: "scaling".into(),
        title: "Scaling over ranks".into(),
        body: html! {
            p { "Each number of ranks is of a run of its own. Rates are per GPU, so that level is perfect." }
            @for case in &cases { (case.draw()) }
        },
    })
}

fn collect(document: &Document, cases: &mut Vec<Case>) {
    let Document::Report(report) = document else {
        return;
    };
    for (outcome, row) in report.rows() {
        let (size, dtype) = (outcome.size(), &outcome.dtype);
        let (title, unit, value) = match outcome.on {
            Operands::Matrices { .. } => (
                format!("{}, M×N×K = {size}, {dtype}", report.suite),
                "TFLOP/s",
                row.tflops,
            ),
            Operands::Message { .. } => (
                format!(
                    "{} of {size}, {dtype}",
                    outcome.operation.as_deref().unwrap_or_default()
                ),
                "µs",
                row.median(Metric::Single).map(|ms| ms * 1e3),
            ),
        };
        of_title(cases, title, unit)
            .values
            .extend(value.map(|value| Value {
                implementation: row.implementation.clone(),
                world: outcome.world,
                value,
            }));
    }
}

fn of_title<'a>(cases: &'a mut Vec<Case>, title: String, unit: &'static str) -> &'a mut Case {
    let known = cases.iter().position(|case| case.title == title);
    let at = known.unwrap_or_else(|| {
        cases.push(Case {
            title,
            unit,
            values: Vec::new(),
        });
        cases.len() - 1
    });
    &mut cases[at]
}

impl Case {
    fn worlds(&self) -> Vec<usize> {
        let mut worlds: Vec<_> = self.values.iter().map(|value| value.world).collect();
        worlds.sort_unstable();
        worlds.dedup();
        worlds
    }

    fn names(&self) -> Vec<&str> {
        distinct(self.values.iter().map(|v| v.implementation.as_str()))
    }

    /// All numbers of an implementation on so many ranks: more than one where two files measured the same.
    fn of<'a>(&'a self, name: &'a str, world: usize) -> impl Iterator<Item = f64> + 'a {
        let values = self.values.iter();
        let own = values.filter(move |v| v.implementation == name && v.world == world);
        own.map(|v| v.value)
    }

    fn draw(&self) -> Markup {
        let worlds = self.worlds();
        let line = |(number, name): (usize, &str)| Line {
            name: name.into(),
            style: Style::Series(number),
            points: worlds
                .iter()
                .flat_map(|&world| {
                    self.of(name, world).map(move |y| Point {
                        x: world as f64,
                        y,
                        title: format!("{name}, {world} ranks: {} {}", rate(y), self.unit),
                    })
                })
                .collect(),
        };
        let lines: Vec<_> = self.names().into_iter().enumerate().map(line).collect();
        let legend: Vec<_> = lines
            .iter()
            .map(|line| (line.name.clone(), line.style))
            .collect();
        let axes = (
            Axis::doubling(
                worlds
                    .iter()
                    .map(|&world| (world as f64, world.to_string())),
            ),
            Axis::logarithmic(self.values.iter().map(|v| v.value)),
        );
        let rows = self.names().into_iter().map(|name| {
            let cell = |&world| self.of(name, world).map(rate).collect::<Vec<_>>();
            let cells = worlds.iter().map(|world| cell(world).join(", "));
            (name, cells.collect())
        });
        let columns = worlds.iter().map(|world| format!("{world} ranks"));
        let grid = Grid::over("implementation", columns, rows);
        let caption = format!("{} over ranks: {}", self.unit, self.title);
        html! {
            section .scaled {
                h3 { (self.title) }
                @if let (Some(x), Some(y)) = axes {
                    @let panel = Panel { x_label: "ranks".into(), y_label: self.unit.into(), x, y, lines };
                    (parts::figure(&caption, &panel, &legend))
                }
                (parts::table(&caption, &grid))
            }
        }
    }
}
