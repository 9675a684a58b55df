//! One problem: the time of each implementation, compared with the limit and the baseline.

use maud::{Markup, html};

use super::parts;
use crate::model::{Kind, Metric, Outcome, Row, Status};
use crate::plot::{self, Axis, DOTS, Mark, Rows, Style};
use crate::view::table::{ms, rough_ms};

const TIMES: [Metric; 3] = [Metric::Single, Metric::BackToBack, Metric::Graph];

pub(super) fn figures(result: &Outcome, title: &str) -> Markup {
    html! {
        (times(result, title).unwrap_or_default())
        (speed_up(result, title).unwrap_or_default())
    }
}

/// The baseline of the rows, and what it is called in headings.
pub(super) fn baseline(result: &Outcome) -> &str {
    match result.rows.first().map(|row| row.implementation.as_str()) {
        Some(name) if name.to_lowercase().contains("nccl") => "NCCL",
        Some(name) => name,
        None => "the baseline",
    }
}

/// Why a row has no dots.
fn note(row: &Row) -> Option<String> {
    match row.status {
        Status::Wrong => Some("WRONG: the reason is below".into()),
        Status::NotRun => Some("was not run: the reason is below".into()),
        Status::Ok => None,
    }
}

/// The rows of a drawing, with why there are no marks where there are none.
fn rows(result: &Outcome, marks: impl Fn(&Row) -> Vec<Mark>) -> Vec<plot::Row> {
    let row = |row: &Row| plot::Row {
        name: row.implementation.clone(),
        note: note(row),
        marks: match row.status {
            Status::Ok => marks(row),
            Status::Wrong | Status::NotRun => Vec::new(),
        },
        ..plot::Row::default()
    };
    result.rows.iter().map(row).collect()
}

fn times(result: &Outcome, title: &str) -> Option<Markup> {
    let mark = |row: &Row, number: usize| {
        let (what, spread) = (TIMES[number].title(), row.spread(TIMES[number])?);
        let around = match number {
            0 => format!(" ({}–{})", rough_ms(spread.p10), rough_ms(spread.p90)),
            _ => String::new(),
        };
        let (name, value) = (&row.implementation, spread.median);
        Some(Mark {
            value,
            spread: (number == 0).then_some((spread.p10, spread.p90)),
            style: Style::Series(number + 1),
            title: format!("{name}, {what}: {} ms{around}", ms(value)),
        })
    };
    let marks = |row: &Row| {
        let numbers = (0..TIMES.len()).rev();
        numbers.filter_map(|number| mark(row, number)).collect()
    };
    let mut rows = rows(result, marks);
    for (drawn, row) in rows.iter_mut().zip(&result.rows) {
        if row.kind == Kind::Peer {
            drawn.name += " (peer)";
        }
    }
    let limit = result.limit.as_ref().map(|limit| limit.ms);
    let rule = limit.map(|value| (value, format!("limit {} ms", ms(value))));
    let legend = TIMES.iter().zip(1..);
    let legend = legend.map(|(metric, n)| (metric.title().to_owned(), Style::Series(n)));
    let legend = Rows::legend(&rows, legend);
    let drawing = Rows {
        label: "ms".into(),
        axis: Axis::logarithmic(Rows::values(&rows).chain(limit))?,
        layout: DOTS,
        rules: rule.into_iter().collect(),
        rows,
    };
    let caption = match limit {
        Some(_) => format!("Time against the limit: {title}"),
        None => format!("Time: {title}"),
    };
    Some(parts::figure(&caption, &drawing, &legend))
}

fn speed_up(result: &Outcome, title: &str) -> Option<Markup> {
    let baseline = baseline(result);
    let rows = rows(result, |row| {
        let mark = row.times_baseline.map(|value| Mark {
            value,
            spread: None,
            style: Style::Series(1),
            title: format!("{}: {value:.2} × {baseline}", row.implementation),
        });
        mark.into_iter().collect()
    });
    let drawing = Rows {
        label: format!("{baseline}'s time over the row's, one call: more is faster"),
        axis: Axis::logarithmic(Rows::values(&rows))?,
        layout: DOTS,
        rules: vec![(1.0, baseline.into())],
        rows,
    };
    let caption = format!("Speed-up over {baseline}: {title}");
    Some(parts::figure(&caption, &drawing, &[]))
}
