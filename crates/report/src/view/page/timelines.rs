//! Timelines: when each operation of each rank ran.

use maud::{Markup, html};

use super::parts;
use crate::plot::{self, Axis, BARS, Mark, Rows, Style};
use crate::statistics::distinct;
use crate::timeline::{Slice, Timeline, Trace};
use crate::view::table::Grid;

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
    let mark = |slice: &Slice| {
        let Slice {
            name,
            start,
            duration,
        } = slice;
        Mark {
            value: *start,
            spread: Some((*start, start + duration)),
            style: style(name),
            title: format!("{name}: {duration:.2} µs from {start:.2} µs"),
        }
    };
    let rows = timeline.tracks.iter().map(|track| {
        let is_new = process.replace(&track.process) != Some(&track.process);
        plot::Row {
            heading: is_new.then(|| track.process.clone()),
            name: track.thread.clone(),
            note: None,
            marks: track.slices.iter().map(mark).collect(),
        }
    });
    let drawing = Rows {
        label: "µs".into(),
        axis: Axis::linear(timeline.end()),
        layout: BARS,
        rows: rows.collect(),
        rules: Vec::new(),
    };
    let legend = kinds.iter().map(|&kind| (kind.to_owned(), style(kind)));
    let legend: Vec<_> = legend.collect();
    let (what, end) = (format!("{}, {}", about.plan, about.times), timeline.end());
    let caption = format!("{what} on {}: {end:.2} µs", about.machine);
    html! {
        section {
            h3 { (about.times) " on " (about.machine) }
            (parts::figure(&caption, &drawing, &legend))
            (parts::details("All of it as a table", &parts::table(&caption, &table(timeline))))
        }
    }
}

/// The first word of what ran: what it is, without what it is of.
fn kind(name: &str) -> &str {
    name.split([' ', '(', '[', ':']).next().unwrap_or(name)
}

/// Operations that neither compute nor move anything.
const IDLE: [&str; 3] = ["wait", "wait-event", "record"];

/// Of all timelines, so that each kind is drawn alike in all of them.
fn kinds(trace: &Trace) -> Vec<&str> {
    let tracks = trace.timelines.iter().flat_map(|timeline| &timeline.tracks);
    let slices = tracks.flat_map(|track| &track.slices);
    distinct(slices.map(|slice| kind(&slice.name)))
}

fn table(timeline: &Timeline) -> Grid {
    let rows = timeline.tracks.iter().flat_map(|track| {
        track.slices.iter().map(|slice| {
            vec![
                track.process.clone(),
                track.thread.clone(),
                slice.name.clone(),
                format!("{:.2}", slice.start),
                format!("{:.2}", slice.duration),
            ]
        })
    });
    Grid::new(["rank", "stream", "operation", "from µs", "µs"], rows)
}
