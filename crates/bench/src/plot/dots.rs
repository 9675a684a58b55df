//! Dots after names, one name below the other.

use maud::{Markup, html};

use super::axis::Axis;
use super::style::Style;
use super::{Size, short};

/// Values by name, over one axis.
#[derive(Clone, Debug)]
pub(crate) struct Dots {
    /// What the axis is of.
    pub label: String,
    pub axis: Axis,
    /// From top to bottom.
    pub rows: Vec<Named>,
    /// Lines through all rows.
    pub marks: Vec<Mark>,
}

/// What belongs to one name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub name: String,
    /// Why there are no dots, where there are none.
    pub note: Option<String>,
    /// The values.
    pub dots: Vec<Dot>,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) struct Dot {
    pub value: f64,
    /// Between what it spreads.
    pub spread: Option<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
    /// Its tooltip.
    pub title: String,
}

/// A line through all rows.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    /// Where.
    pub value: f64,
    /// What it is.
    pub name: String,
}

const LEFT: f64 = 16.0;
const WIDTH: f64 = 328.0;
const TOP: f64 = 20.0;
const ROW: f64 = 36.0;

impl Dots {
    /// Of this drawing.
    pub fn size(&self) -> Size {
        (360.0, self.bottom() + 36.0)
    }

    fn bottom(&self) -> f64 {
        TOP + ROW * self.rows.len() as f64
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + WIDTH * self.axis.place(value).clamp(0.0, 1.0)
    }

    pub fn draw(&self) -> Markup {
        let bottom = self.bottom();
        html! {
            @for (value, words) in &self.axis.ticks {
                @let x = short(self.x(*value));
                line .grid x1=(x) x2=(x) y1=(TOP) y2=(bottom) {}
                @if let Some(words) = words { text .quiet.centre x=(x) y=(bottom + 15.0) { (words) } }
            }
            text .quiet.centre x=(LEFT + WIDTH / 2.0) y=(bottom + 31.0) { (self.label) }
            @for mark in &self.marks {
                @let x = self.x(mark.value);
                line .limit x1=(short(x)) x2=(short(x)) y1=(TOP - 5.0) y2=(bottom) {}
                @let anchor = match x { x if x < 60.0 => "", x if x > 300.0 => "end", _ => "centre" };
                text class=(format!("quiet {anchor}")) x=(short(x)) y=(TOP - 8.0) { (mark.name) }
            }
            @for (i, row) in self.rows.iter().enumerate() {
                @let top = TOP + ROW * i as f64;
                line .grid x1=(LEFT) x2=(LEFT + WIDTH) y1=(top) y2=(top) {}
                text .label x=(LEFT) y=(top + 14.0) { (row.name) }
                @for dot in &row.dots {
                    @let spread = dot.spread.map(|(low, high)| (self.x(low), self.x(high)));
                    (dot.style.dot((self.x(dot.value), top + 26.0), spread, &dot.title))
                }
                @if let Some(note) = &row.note { text .quiet x=(LEFT) y=(top + 29.0) { (note) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_dots_says_why() {
        let dots = Dots {
            label: "ms".into(),
            axis: Axis::linear(4.0),
            rows: vec![
                Named {
                    name: "quick".into(),
                    note: None,
                    dots: vec![Dot {
                        value: 1.0,
                        spread: Some((0.5, 2.0)),
                        style: Style::Series(1),
                        title: "1 ms".into(),
                    }],
                },
                Named {
                    name: "absent".into(),
                    note: Some("was not run".into()),
                    dots: vec![],
                },
            ],
            marks: vec![Mark {
                value: 0.1,
                name: "limit".into(),
            }],
        };
        let drawing = dots.draw().into_string();
        for part in [
            ">quick<",
            ">1 ms<",
            ">absent<",
            ">was not run<",
            ">limit<",
            "whisker",
        ] {
            assert!(drawing.contains(part), "{part}: {drawing}");
        }
        assert_eq!(dots.size().1, 20.0 + 2.0 * 36.0 + 36.0);
    }
}
