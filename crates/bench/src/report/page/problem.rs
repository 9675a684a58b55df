//! One problem: how long each implementation takes, and against the limit and the baseline.

use maud::{Markup, html};

use super::parts;
use crate::plot::{Axis, Dot, Dots, Mark, Named, Style};
use crate::report::table::ms;
use crate::report::{Kind, Metric, Outcome, Row, Status};

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

fn times(result: &Outcome, title: &str) -> Option<Markup> {
    let dot = |row: &Row, number: usize| {
        let what = TIMES[number].title();
        let spread = row
            .spread(TIMES[number])
            .filter(|_| row.status == Status::Ok)?;
        let around = match number {
            0 => format!(" ({}–{})", ms(spread.p10), ms(spread.p90)),
            _ => String::new(),
        };
        Some(Dot {
            value: spread.median,
            spread: (number == 0).then_some((spread.p10, spread.p90)),
            style: Style::Series(number + 1),
            title: format!(
                "{}, {what}: {} ms{around}",
                row.implementation,
                ms(spread.median)
            ),
        })
    };
    let row = |row: &Row| Named {
        name: match row.kind {
            Kind::Ours | Kind::Nccl => row.implementation.clone(),
            Kind::Peer => format!("{} (peer)", row.implementation),
        },
        note: note(row),
        dots: (0..TIMES.len())
            .rev()
            .filter_map(|number| dot(row, number))
            .collect(),
    };
    let rows: Vec<_> = result.rows.iter().map(row).collect();
    let limit = result.limit.as_ref().map(|limit| limit.ms);
    let dots = rows.iter().flat_map(|row| &row.dots);
    let ends = dots.flat_map(|dot| match dot.spread {
        Some((low, high)) => vec![dot.value, low, high],
        None => vec![dot.value],
    });
    let drawing = Dots {
        label: "ms".into(),
        axis: Axis::logarithmic(ends.chain(limit))?,
        marks: limit
            .map(|value| Mark {
                value,
                name: format!("limit {} ms", ms(value)),
            })
            .into_iter()
            .collect(),
        rows,
    };
    let has = |number: usize| result.rows.iter().any(|row| dot(row, number).is_some());
    let legend: Vec<_> = (0..TIMES.len())
        .filter(|&number| has(number))
        .map(|number| (TIMES[number].title().to_owned(), Style::Series(number + 1)))
        .collect();
    let caption = match limit {
        Some(_) => format!("Time against the limit: {title}"),
        None => format!("Time: {title}"),
    };
    Some(parts::figure(
        &caption,
        drawing.size(),
        &drawing.draw(),
        &legend,
    ))
}

fn speed_up(result: &Outcome, title: &str) -> Option<Markup> {
    let baseline = baseline(result);
    let row = |row: &Row| {
        let ratio = row.times_baseline.filter(|_| row.status == Status::Ok);
        Named {
            name: row.implementation.clone(),
            note: note(row),
            dots: ratio
                .map(|value| Dot {
                    value,
                    spread: None,
                    style: Style::Series(1),
                    title: format!("{}: {value:.2} × {baseline}", row.implementation),
                })
                .into_iter()
                .collect(),
        }
    };
    let rows: Vec<_> = result.rows.iter().map(row).collect();
    let values = rows.iter().flat_map(|row| &row.dots).map(|dot| dot.value);
    let axis = Axis::logarithmic(values)?;
    let drawing = Dots {
        label: format!("{baseline}'s time over the row's, one call: more is faster"),
        axis,
        rows,
        marks: vec![Mark {
            value: 1.0,
            name: baseline.into(),
        }],
    };
    let caption = format!("Speed-up over {baseline}: {title}");
    Some(parts::figure(
        &caption,
        drawing.size(),
        &drawing.draw(),
        &[],
    ))
}
