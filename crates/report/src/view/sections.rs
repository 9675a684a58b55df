//! The parts of a report, as every view shows them.

use super::sentences;
use super::table::Grid;
use crate::model::{Metric, Outcome, Report};

/// A problem, or an operation over its sizes.
pub(super) struct Section<'a> {
    pub title: String,
    pub outcomes: &'a [Outcome],
    pub tables: Vec<Table>,
    /// Why rows did not run or were wrong, the limit, what was verified.
    pub findings: Vec<String>,
    /// The algorithms that tuning chose.
    pub algorithms: Vec<String>,
}

pub(super) struct Table {
    /// What it shows of the section; nothing where it is the only table.
    pub caption: String,
    pub grid: Grid,
    pub least: View,
}

/// The views, from the one that shows least.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum View {
    Terminal,
    Markdown,
    Page,
}

pub(super) fn sections(report: &Report) -> Vec<Section<'_>> {
    match report.is_of_collectives() {
        true => report.operations().into_iter().map(operation).collect(),
        false => report.results.iter().map(problem).collect(),
    }
}

impl Section<'_> {
    pub fn tables(&self, view: View) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(move |table| table.least <= view)
    }
}

fn problem(outcome: &Outcome) -> Section<'_> {
    Section {
        title: sentences::title(outcome),
        outcomes: std::slice::from_ref(outcome),
        tables: vec![Table {
            caption: String::new(),
            grid: Grid::of_problem(outcome),
            least: View::Terminal,
        }],
        findings: sentences::findings(outcome),
        algorithms: sentences::algorithms(outcome),
    }
}

fn operation(sizes: &[Outcome]) -> Section<'_> {
    let times = Metric::ALL.into_iter().filter_map(|metric| {
        Some(Table {
            caption: format!("µs of {}", metric.title()),
            grid: Grid::of_sizes(sizes, metric)?,
            least: match metric {
                Metric::Single | Metric::GraphSingle => View::Terminal,
                Metric::BackToBack | Metric::Graph => View::Markdown,
            },
        })
    });
    let spreads = Table {
        caption: "p10–p90 of one call, µs".into(),
        grid: Grid::of_spreads(sizes),
        least: View::Markdown,
    };
    let ratios = Grid::of_ratios(sizes, Metric::Single).map(|grid| Table {
        caption: "NCCL's time over the row's, one call".into(),
        grid,
        least: View::Page,
    });
    let tables = times.chain([spreads]).chain(ratios);
    Section {
        title: sizes.first().map_or(String::new(), sentences::title),
        outcomes: sizes,
        tables: tables.filter(|table| !table.grid.rows.is_empty()).collect(),
        findings: sentences::findings_over_sizes(sizes),
        algorithms: Vec::new(),
    }
}
