//! Bars over time, in lanes.

use maud::{Markup, html};

use super::axis::Axis;
use super::style::Style;
use super::{Size, short};

/// What happened when, lane below lane.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    /// The axis of time.
    pub axis: Axis,
    /// What it is of.
    pub label: String,
    /// From top to bottom; a heading stands above those that have one.
    pub lanes: Vec<Lane>,
}

/// A lane.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    /// What this lane and the next ones belong to.
    pub heading: Option<String>,
    /// What it is of.
    pub name: String,
    /// Those that begin later lie above those that began earlier.
    pub bars: Vec<Bar>,
}

/// Something that takes time.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    /// When it begins.
    pub start: f64,
    /// How long it takes.
    pub duration: f64,
    /// How it is drawn.
    pub style: Style,
    /// What it is.
    pub title: String,
}

const LEFT: f64 = 92.0;
const WIDTH: f64 = 650.0;
const TOP: f64 = 20.0;
const LANE: f64 = 17.0;
const HEADING: f64 = 20.0;

impl Lanes {
    /// Of this drawing.
    pub fn size(&self) -> Size {
        (760.0, self.height() + 36.0)
    }

    fn height(&self) -> f64 {
        let headings = self.lanes.iter().filter(|lane| lane.heading.is_some());
        TOP + LANE * self.lanes.len() as f64 + HEADING * headings.count() as f64
    }

    /// Where each lane begins.
    fn tops(&self) -> impl Iterator<Item = f64> {
        self.lanes.iter().scan(TOP - LANE, |y, lane| {
            *y += LANE + lane.heading.as_ref().map_or(0.0, |_| HEADING);
            Some(*y)
        })
    }

    pub fn draw(&self) -> Markup {
        let bottom = self.height();
        let x = |value: f64| LEFT + WIDTH * self.axis.place(value);
        html! {
            @for (value, words) in &self.axis.ticks {
                @let x = short(x(*value));
                line .grid x1=(x) x2=(x) y1=(TOP - 4.0) y2=(bottom) {}
                @if let Some(words) = words { text .quiet.centre x=(x) y=(bottom + 15.0) { (words) } }
            }
            text .quiet.centre x=(LEFT + WIDTH / 2.0) y=(bottom + 31.0) { (self.label) }
            @for (lane, y) in self.lanes.iter().zip(self.tops()) {
                @if let Some(heading) = &lane.heading { text .heading x="0" y=(y - 7.0) { (heading) } }
                text .quiet.end x=(LEFT - 6.0) y=(y + 11.0) { (lane.name) }
                @for bar in &lane.bars {
                    @let from = x(bar.start);
                    (bar.style.bar((from, y + 1.5), (x(bar.start + bar.duration) - from, LANE - 3.0), &bar.title))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_lie_below_each_other_and_below_their_heading() {
        let lane = |heading: Option<&str>, start| Lane {
            heading: heading.map(str::to_owned),
            name: "stream 0".into(),
            bars: vec![Bar {
                start,
                duration: 2.0,
                style: Style::Series(1),
                title: format!("at {start}"),
            }],
        };
        let lanes = Lanes {
            axis: Axis::linear(10.0),
            label: "µs".into(),
            lanes: vec![
                lane(Some("rank 0"), 0.0),
                lane(None, 5.0),
                lane(Some("rank 1"), 8.0),
            ],
        };
        let drawing = lanes.draw().into_string();
        for part in [
            ">rank 0<",
            ">rank 1<",
            ">at 5<",
            "x=\"417\" y=\"58.5\" width=\"130\"",
        ] {
            assert!(drawing.contains(part), "{part}: {drawing}");
        }
        assert_eq!(lanes.size().1, 20.0 + 3.0 * 17.0 + 2.0 * 20.0 + 36.0);
    }
}
