//! The suite's part of the HTML page.

use maud::{Markup, html};

use super::{Metric, Outcome, Report, grid, plot, sentences};
use crate::plot::Panel;
use crate::report::page::parts;

/// The heading, and what stands below it.
pub(crate) fn body(report: &Report) -> (String, Markup) {
    let title = format!("{}, {}", report.suite, report.provenance.devices());
    let order = grid::names(&report.results);
    let body = html! {
        (parts::list(&sentences::conclusions(report)))
        @for sizes in report.operations() { (operation(sizes, &order)) }
        (parts::details("What rows and columns mean", &parts::list(&sentences::LEGEND)))
    };
    (title, body)
}

fn operation(sizes: &[Outcome], order: &[String]) -> Markup {
    let title = sentences::operation(sizes);
    let figure =
        |caption: String, panel: Panel| parts::figure(&caption, Panel::SIZE, &panel.draw(), &[]);
    html! {
        section {
            h3 { (title) }
            div .figures {
                @for metric in Metric::ALL {
                    @if let Some(panel) = plot::times(sizes, metric, order) {
                        (figure(format!("µs of {}: {title}", metric.title()), panel))
                    }
                }
                @if let Some(panel) = plot::ratios(sizes, Metric::Single, order) {
                    (figure(format!("Speed-up over NCCL, one call: {title}"), panel))
                }
            }
            (parts::names(&plot::lines(sizes, order)))
            (parts::list(&sentences::findings(sizes)))
            div .tables {
            @for metric in Metric::ALL {
                @if let Some(grid) = grid::times(sizes, metric) {
                    (parts::table(&format!("µs of {}: {title}", metric.title()), &grid))
                }
            }
            @if let Some(grid) = grid::ratios(sizes, Metric::Single) {
                (parts::table(&format!("NCCL's time over the row's, one call: {title}"), &grid))
            }
            (parts::table(&format!("p10–p90 of one call, µs: {title}"), &grid::spreads(sizes)))
            }
        }
    }
}
