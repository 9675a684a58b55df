//! Lines over two axes.

use maud::{Markup, html};

use super::axis::Axis;
use super::style::Style;
use super::{Drawing, Size, short};

/// A line.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What it is of.
    pub name: String,
    /// How it is drawn.
    pub style: Style,
    /// From left to right.
    pub points: Vec<Point>,
}

/// A point of a line.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Its value on the horizontal axis.
    pub x: f64,
    /// Its value on the vertical axis.
    pub y: f64,
    /// Its tooltip.
    pub title: String,
}

/// Lines over the same axes.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// What the horizontal axis is of.
    pub x_label: String,
    /// What the vertical axis is of.
    pub y_label: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines. What lies outside of the axes is left out.
    pub lines: Vec<Line>,
}

const LEFT: f64 = 44.0;
const TOP: f64 = 20.0;
const WIDTH: f64 = 308.0;
const HEIGHT: f64 = 214.0;

impl Panel {
    /// Of every panel.
    pub const SIZE: Size = (360.0, 272.0);

    fn line(&self, line: &Line) -> Markup {
        let inside = line
            .points
            .iter()
            .filter(|p| self.x.holds(p.x) && self.y.holds(p.y));
        let places: Vec<_> = inside
            .map(|p| (self.x_of(p.x), self.y_of(p.y), p.title.as_str()))
            .collect();
        match places.is_empty() {
            true => Markup::default(),
            false => line.style.line(&places),
        }
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + WIDTH * self.x.place(value)
    }

    fn y_of(&self, value: f64) -> f64 {
        TOP + HEIGHT * (1.0 - self.y.place(value))
    }
}

impl Drawing for Panel {
    fn size(&self) -> Size {
        Self::SIZE
    }

    fn draw(&self) -> Markup {
        let bottom = TOP + HEIGHT;
        html! {
            text .quiet x="0" y="10" { (self.y_label) }
            @for (value, words) in &self.y.ticks {
                @let y = short(self.y_of(*value));
                line .grid x1=(LEFT) x2=(LEFT + WIDTH) y1=(y) y2=(y) {}
                @if let Some(words) = words { text .quiet.end x=(LEFT - 5.0) y=(y + 4.0) { (words) } }
            }
            (self.x.below(&self.x_label, (LEFT, WIDTH), (TOP, bottom)))
            rect .frame x=(LEFT) y=(TOP) width=(WIDTH) height=(HEIGHT) {}
            @for line in &self.lines { (self.line(line)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_is_higher_and_what_lies_outside_is_left_out() {
        let point = |x: f64, y: f64| Point {
            x,
            y,
            title: format!("{x}, {y}"),
        };
        let panel = Panel {
            x_label: "ranks".into(),
            y_label: "ms".into(),
            x: Axis::doubling([(2.0, "2".into()), (4.0, "4".into())]).unwrap(),
            y: Axis::linear(10.0),
            lines: vec![Line {
                name: "a".into(),
                style: Style::Series(1),
                points: vec![point(2.0, 1.0), point(4.0, 9.0), point(4.0, 11.0)],
            }],
        };
        assert!(panel.y_of(9.0) < panel.y_of(1.0) && panel.x_of(2.0) < panel.x_of(4.0));
        let drawing = panel.draw().into_string();
        assert_eq!(drawing.matches("<title>").count(), 2, "{drawing}");
        assert!(
            drawing.contains(">4, 9<") && !drawing.contains("NaN"),
            "{drawing}"
        );
    }
}
