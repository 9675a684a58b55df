//! The report as one HTML page: tables, plots and the reasons of what is missing, of any number of files.
//!
//! The page needs nothing but itself: its style sheet and its drawings are in it, it has no script, and it
//! asks for nothing over a network. It follows the reader's choice of light or dark ground. Every number of a
//! plot is in a table too, and every row is in both: one that was wrong or did not run stands there with the
//! reason.

mod machine;
mod overview;
pub(crate) mod parts;
mod problem;
mod scaling;
mod timelines;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::sections::{self, View};
use super::table::Grid;
use super::{drawing as drawings, sentences, table};
use crate::Document;
use crate::model::{Metric, Operands, Report};
use crate::plot;
use crate::statistics::distinct;

/// A document and the name of its file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, as the page tells it.
    pub name: String,
    /// What it holds.
    pub document: Document,
}

/// A part of the page with a heading.
pub(crate) struct Section {
    /// What leads to it within the page.
    pub id: String,
    /// The heading.
    pub title: String,
    /// What stands below it.
    pub body: Markup,
}

const RIGHT: &str =
    "Every row that ran was right in every element that was compared, on every rank.";

/// The page of all `sources`, in their order.
pub fn page(sources: &[Source]) -> String {
    let sections = sections(sources);
    let wrong = machine::wrong(sources);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title(sources)) }
                style { (PreEscaped(plot::root_css() + &plot::css() + include_str!("page.css"))) }
            }
            body {
                header {
                    h1 { (title(sources)) }
                    @if wrong.is_empty() {
                        p { (RIGHT) }
                    } @else {
                        p .alarm { strong { "Results were wrong:" } }
                        (parts::list(&wrong))
                    }
                    nav aria-label="Contents" {
                        ul { @for Section { id, title, .. } in &sections {
                            li { a href=(format!("#{id}")) { (title) } }
                        } }
                    }
                }
                main {
                    @for section in &sections {
                        section id=(section.id) { h2 { (section.title) } (section.body) }
                    }
                }
                footer { p { "Written by warpweave " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    page.into_string() + "\n"
}

fn title(sources: &[Source]) -> String {
    let names = sources.iter().map(|source| match &source.document {
        Document::Report(report) => report.suite.as_ref(),
        Document::Timelines(_) => "timelines",
    });
    let names = distinct(names);
    format!("Warpweave: {}", names.join(", "))
}

fn sections(sources: &[Source]) -> Vec<Section> {
    let own = sources.iter().enumerate().map(|(i, source)| {
        let id = format!("file-{}", i + 1);
        let (title, body) = match &source.document {
            Document::Report(report) => {
                let devices = report.provenance.devices();
                (format!("{}, {devices}", report.suite), body(report))
            }
            Document::Timelines(trace) => timelines::body(trace),
        };
        let body = html! { p .quiet { "File " (source.name) "." } (body) };
        Section { id, title, body }
    });
    let machine = machine::section(sources).into_iter();
    let scaling = scaling::section(sources).into_iter();
    machine.chain(own).chain(scaling).collect()
}

fn body(report: &Report) -> Markup {
    let order = table::names(&report.results);
    html! {
        @if !report.reproduces.is_empty() { p { (report.reproduces) } }
        (parts::list(&sentences::conclusions(report)))
        @match Grid::of_all_problems(report) {
            Some(grid) => (parts::table("All problems", &grid)),
            None => (overview::of(report).unwrap_or_default()),
        }
        @for section in sections::sections(report) { (part(&section, &order)) }
        (parts::details("What rows and columns mean", &parts::list(sentences::legend(report))))
    }
}

fn part(section: &sections::Section<'_>, order: &[String]) -> Markup {
    let title = &section.title;
    let captioned = |caption: &str| match caption {
        "" => title.clone(),
        caption => format!("{caption}: {title}"),
    };
    html! {
        section {
            h3 { (title) }
            @match section.outcomes {
                [one] if matches!(one.on, Operands::Matrices { .. }) => {
                    div .figures { (problem::figures(one, title)) }
                }
                sizes => {
                    div .figures {
                        @for metric in Metric::ALL {
                            @if let Some(panel) = drawings::times(sizes, metric, order) {
                                (parts::figure(&captioned(&format!("µs of {}", metric.title())), &panel, &[]))
                            }
                        }
                        @if let Some(panel) = drawings::ratios(sizes, Metric::Single, order) {
                            (parts::figure(&captioned("Speed-up over NCCL, one call"), &panel, &[]))
                        }
                    }
                    (parts::names(&drawings::lines(sizes, order)))
                }
            }
            div .tables {
                @for table in section.tables(View::Page) {
                    (parts::table(&captioned(&table.caption), &table.grid))
                }
            }
            (parts::list(&section.findings))
            @if !section.algorithms.is_empty() {
                (parts::details("Algorithms that tuning chose", &parts::list(&section.algorithms)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
