//! The same problem on different numbers of ranks with the same devices, from different files.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::{Section, Source, parts};
use crate::Document;
use crate::model::{Operands, Outcome, Row, Status};
use crate::plot::{Axis, Line, Panel, Point, Style};
use crate::statistics::distinct;
use crate::view::table::{Grid, rate};

/// Numbers of one problem.
struct Case {
    title: String,
    unit: &'static str,
    /// Of an implementation on so many ranks.
    values: Vec<(String, usize, f64)>,
}

/// `None` where all files are of the same number of ranks.
pub(super) fn section(sources: &[Source]) -> Option<Section> {
    let mut cases: Vec<Case> = Vec::new();
    for (title, unit, value) in sources.iter().flat_map(|source| values(&source.document)) {
        match cases.iter_mut().find(|case| case.title == title) {
            Some(case) => case.values.push(value),
            None => cases.push(Case {
                title,
                unit,
                values: vec![value],
            }),
        }
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

/// The numbers of a file, each with the problem that it is of and with its unit.
fn values(document: &Document) -> Vec<(String, &'static str, (String, usize, f64))> {
    let Document::Report(report) = document else {
        return Vec::new();
    };
    // More ranks on the same devices are no more devices.
    if report.provenance.is_shared() {
        return Vec::new();
    }
    let devices = report.provenance.devices.iter();
    let devices: Vec<_> = devices.map(|each| each.name.as_str()).collect();
    let devices = devices.join(" and ");
    let value = |(outcome, row): (&Outcome, &Row)| {
        let (size, dtype) = (outcome.size(), &outcome.dtype);
        let (title, unit, value) = match outcome.on {
            Operands::Matrices { .. } => (
                format!("{}, M×N×K = {size}, {dtype}, {devices}", report.suite),
                "TFLOP/s",
                row.tflops?,
            ),
            Operands::Message { .. } => (
                format!(
                    "{} of {size}, {dtype}, {devices}",
                    outcome.operation.as_deref()?
                ),
                "µs",
                row.ms()? * 1e3,
            ),
        };
        let name = row.implementation.clone();
        Some((title, unit, (name, outcome.world, value)))
    };
    let right = report.rows().filter(|(_, row)| row.status == Status::Ok);
    right.filter_map(value).collect()
}

impl Case {
    fn worlds(&self) -> Vec<usize> {
        let worlds: BTreeSet<_> = self.values.iter().map(|(_, world, _)| *world).collect();
        worlds.into_iter().collect()
    }

    fn names(&self) -> Vec<&str> {
        distinct(self.values.iter().map(|(name, ..)| name.as_str()))
    }

    /// All numbers of an implementation on so many ranks: more than one where two files measured the same.
    fn of<'a>(&'a self, name: &'a str, world: usize) -> impl Iterator<Item = f64> + 'a {
        let values = self.values.iter();
        let own = values.filter(move |(of, on, _)| of == name && *on == world);
        own.map(|(.., value)| *value)
    }

    fn draw(&self) -> Markup {
        let worlds = self.worlds();
        let point = |name: &str, world: usize, y: f64| Point {
            x: world as f64,
            y,
            title: format!("{name}, {world} ranks: {} {}", rate(y), self.unit),
        };
        let line = |(number, name): (usize, &str)| {
            let on = |&world: &usize| self.of(name, world).map(move |y| (world, y));
            let points = worlds.iter().flat_map(on);
            Line {
                name: name.into(),
                style: Style::Series(number),
                points: points.map(|(world, y)| point(name, world, y)).collect(),
            }
        };
        let lines: Vec<_> = self.names().into_iter().enumerate().map(line).collect();
        let legend: Vec<_> = lines
            .iter()
            .map(|line| (line.name.clone(), line.style))
            .collect();
        let ranks = worlds
            .iter()
            .map(|&world| (world as f64, world.to_string()));
        let values = self.values.iter().map(|(.., value)| *value);
        let axes = (Axis::doubling(ranks), Axis::logarithmic(values));
        let rows = self.names().into_iter().map(|name| {
            let cell = |&world| self.of(name, world).map(rate).collect::<Vec<_>>();
            let cells = worlds.iter().map(|world| cell(world).join(", "));
            std::iter::once(name.to_owned()).chain(cells).collect()
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
