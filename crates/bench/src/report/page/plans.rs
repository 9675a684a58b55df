//! A suite of plans.

use maud::{Markup, html};

use super::{overview, parts, problem};
use crate::report::grid::Grid;
use crate::report::{Report, sentences};

/// The heading, and what stands below it.
pub(super) fn body(report: &Report) -> (String, Markup) {
    let title = format!("{}, {}", report.suite, report.provenance.devices());
    let body = html! {
        @if !report.reproduces.is_empty() { p { (report.reproduces) } }
        (parts::list(&sentences::conclusions(report)))
        @match Grid::of_all_problems(report) {
            Some(grid) => (parts::table("All problems", &grid)),
            None => (overview::of(report).unwrap_or_default()),
        }
        @for result in &report.results { (problem::of(result)) }
        (parts::details("What the columns mean", &parts::list(&sentences::LEGEND)))
    };
    (title, body)
}
