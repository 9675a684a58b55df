//! When operations ran.

use maud::{Markup, html};

use super::parts;
use crate::plot::{Axis, Bar, Lane, Lanes, Style};
use crate::report::table::Grid;
use crate::statistics::distinct;
use crate::trace::{Timeline, Trace};

/// The heading, and what stands below it.
pub(super) fn body(trace: &Trace) -> (String, Markup) {
    let plan = trace
        .timelines
        .first()
        .map_or("", |timeline| &timeline.about.plan);
    let kinds = kinds(trace);
    let body = html! { @for timeline in &trace.timelines { (of(timeline, &kinds)) } };
    (format!("Timeline of {plan}"), body)
}

fn of(timeline: &Timeline, kinds: &[&str]) -> Markup {
    let about = &timeline.about;
    let style = |name: &str| {
        let mut working = kinds.iter().filter(|kind| !IDLE.contains(kind));
        match working.position(|known| *known == kind(name)) {
            Some(number) => Style::Series(number + 1),
            None => Style::Idle,
        }
    };
    let mut process = None;
    let lanes = timeline.lanes.iter().map(|lane| Lane {
        heading: (process.replace(&lane.process) != Some(&lane.process))
            .then(|| lane.process.clone()),
        name: lane.thread.clone(),
        bars: lane
            .slices
            .iter()
            .map(|slice| Bar {
                start: slice.start,
                duration: slice.duration,
                style: style(&slice.name),
                title: format!(
                    "{}: {:.2} µs from {:.2} µs",
                    slice.name, slice.duration, slice.start
                ),
            })
            .collect(),
    });
    let drawing = Lanes {
        axis: Axis::linear(timeline.end()),
        label: "µs".into(),
        lanes: lanes.collect(),
    };
    let legend: Vec<_> = kinds
        .iter()
        .map(|&kind| (kind.to_owned(), style(kind)))
        .collect();
    let caption = format!(
        "{}, {} on {}: {:.2} µs",
        about.plan,
        about.times,
        about.machine,
        timeline.end()
    );
    html! {
        section {
            h3 { (about.times) " on " (about.machine) }
            (parts::figure(&caption, drawing.size(), &drawing.draw(), &legend))
            (parts::details("All of it as a table", &parts::table(&caption, &table(timeline))))
        }
    }
}

/// The first word of what ran: what it is, without what it is of.
fn kind(name: &str) -> &str {
    name.split([' ', '(', '[', ':']).next().unwrap_or(name)
}

/// What computes nothing and moves nothing.
const IDLE: [&str; 3] = ["wait", "wait-event", "record"];

/// Of all timelines, so that each kind is drawn alike in all of them.
fn kinds(trace: &Trace) -> Vec<&str> {
    let lanes = trace.timelines.iter().flat_map(|timeline| &timeline.lanes);
    let slices = lanes.flat_map(|lane| &lane.slices);
    distinct(slices.map(|slice| kind(&slice.name)))
}

fn table(timeline: &Timeline) -> Grid {
    let rows = timeline.lanes.iter().flat_map(|lane| {
        lane.slices.iter().map(|slice| {
            vec![
                lane.process.clone(),
                lane.thread.clone(),
                slice.name.clone(),
                format!("{:.2}", slice.start),
                format!("{:.2}", slice.duration),
            ]
        })
    });
    let headings = ["rank", "stream", "operation", "from µs", "µs"];
    Grid::new(&headings, rows)
}
