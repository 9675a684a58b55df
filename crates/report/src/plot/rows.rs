//! Marks in rows, one row below the other: dots after names, bars over time.

use maud::{Markup, html};

use super::axis::Axis;
use super::style::Style;
use super::{Drawing, Size, short};

/// Marks by row, over one axis.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// What the axis is of.
    pub label: String,
    pub axis: Axis,
    pub layout: &'static Layout,
    /// From top to bottom.
    pub rows: Vec<Row>,
    /// Lines through all rows: where each is, and what.
    pub rules: Vec<(f64, String)>,
}

/// What is drawn in a row, and where.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Whether marks are bars, after the name, and not dots, below it.
    bars: bool,
    left: f64,
    width: f64,
    height: f64,
    /// Of all of it.
    total: f64,
}

/// Dots with their spreads, below names that may be long.
pub(crate) const DOTS: &Layout = &Layout {
    bars: false,
    left: 16.0,
    width: 328.0,
    height: 36.0,
    total: 360.0,
};

/// Bars after short names.
pub(crate) const BARS: &Layout = &Layout {
    bars: true,
    left: 92.0,
    width: 650.0,
    height: 17.0,
    total: 760.0,
};

/// What belongs to one name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    /// What this row and the next ones belong to.
    pub heading: Option<String>,
    pub name: String,
    /// Why there are no marks, where there are none.
    pub note: Option<String>,
    /// Those that come later lie above those before.
    pub marks: Vec<Mark>,
}

/// A value, or a time.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub value: f64,
    /// Between what it spreads; of a bar, from where to where it goes.
    pub spread: Option<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
    /// Its tooltip.
    pub title: String,
}

const TOP: f64 = 20.0;
const HEADING: f64 = 20.0;

impl Rows {
    /// All values that the axis must hold.
    pub fn values(rows: &[Row]) -> impl Iterator<Item = f64> {
        let marks = rows.iter().flat_map(|row| &row.marks);
        marks.flat_map(|mark| match mark.spread {
            Some((low, high)) => vec![mark.value, low, high],
            None => vec![mark.value],
        })
    }

    /// The names of the styles that some row is drawn in.
    pub fn legend(
        rows: &[Row],
        all: impl Iterator<Item = (String, Style)>,
    ) -> Vec<(String, Style)> {
        let marks = rows.iter().flat_map(|row| &row.marks);
        all.filter(|(_, style)| marks.clone().any(|mark| mark.style == *style))
            .collect()
    }

    fn bottom(&self) -> f64 {
        let headings = self.rows.iter().filter(|row| row.heading.is_some());
        TOP + self.layout.height * self.rows.len() as f64 + HEADING * headings.count() as f64
    }

    /// Where each row begins.
    fn tops(&self) -> impl Iterator<Item = f64> {
        let height = self.layout.height;
        self.rows.iter().scan(TOP - height, move |y, row| {
            *y += height + row.heading.as_ref().map_or(0.0, |_| HEADING);
            Some(*y)
        })
    }

    fn x(&self, value: f64) -> f64 {
        self.layout.left + self.layout.width * self.axis.place(value).clamp(0.0, 1.0)
    }

    fn bars(&self, row: &Row, top: f64) -> Markup {
        html! {
            text .quiet.end x=(self.layout.left - 6.0) y=(top + 11.0) { (row.name) }
            @for bar in &row.marks {
                @let (from, to) = bar.spread.unwrap_or((bar.value, bar.value));
                @let size = (self.x(to) - self.x(from), self.layout.height - 3.0);
                (bar.style.bar((self.x(from), top + 1.5), size, &bar.title))
            }
        }
    }

    fn dots(&self, row: &Row, top: f64) -> Markup {
        let Layout { left, width, .. } = *self.layout;
        html! {
            line .grid x1=(left) x2=(left + width) y1=(top) y2=(top) {}
            text .label x=(left) y=(top + 14.0) { (row.name) }
            @for dot in &row.marks {
                @let spread = dot.spread.map(|(low, high)| (self.x(low), self.x(high)));
                (dot.style.dot((self.x(dot.value), top + 26.0), spread, &dot.title))
            }
            @if let Some(note) = &row.note { text .quiet x=(left) y=(top + 29.0) { (note) } }
        }
    }
}

impl Drawing for Rows {
    fn size(&self) -> Size {
        (self.layout.total, self.bottom() + 36.0)
    }

    fn draw(&self) -> Markup {
        let bottom = self.bottom();
        let Layout { left, width, .. } = *self.layout;
        html! {
            (self.axis.below(&self.label, (left, width), (TOP, bottom)))
            @for (value, name) in &self.rules {
                @let x = short(self.x(*value));
                line .limit x1=(x) x2=(x) y1=(TOP - 5.0) y2=(bottom) {}
                @let anchor = match x { x if x < 60.0 => "", x if x > 300.0 => "end", _ => "centre" };
                text class=(format!("quiet {anchor}")) x=(x) y=(TOP - 8.0) { (name) }
            }
            @for (row, top) in self.rows.iter().zip(self.tops()) {
                @if let Some(heading) = &row.heading { text .heading x="0" y=(top - 7.0) { (heading) } }
                @if self.layout.bars { (self.bars(row, top)) } @else { (self.dots(row, top)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::has;

    fn row(name: &str, mark: Option<(f64, f64, f64)>) -> Row {
        let mark = mark.map(|(low, value, high)| Mark {
            value,
            spread: Some((low, high)),
            style: Style::Series(1),
            title: format!("at {value}"),
        });
        Row {
            name: name.into(),
            marks: mark.into_iter().collect(),
            ..Row::default()
        }
    }

    #[test]
    fn a_row_without_dots_says_why() {
        let mut absent = row("absent", None);
        absent.note = Some("was not run".into());
        let dots = Rows {
            label: "ms".into(),
            axis: Axis::linear(4.0),
            layout: DOTS,
            rows: vec![row("quick", Some((0.5, 1.0, 2.0))), absent],
            rules: vec![(0.1, "limit".into())],
        };
        let drawing = dots.draw().into_string();
        has(
            &drawing,
            &[
                ">quick<",
                ">at 1<",
                ">absent<",
                ">was not run<",
                ">limit<",
                "whisker",
            ],
        );
        assert_eq!(dots.size().1, 20.0 + 2.0 * 36.0 + 36.0);
    }

    #[test]
    fn bars_lie_below_each_other_and_below_their_heading() {
        let bar = |heading: Option<&str>, start: f64| Row {
            heading: heading.map(str::to_owned),
            ..row("stream 0", Some((start, start, start + 2.0)))
        };
        let bars = Rows {
            label: "µs".into(),
            axis: Axis::linear(10.0),
            layout: BARS,
            rows: vec![
                bar(Some("rank 0"), 0.0),
                bar(None, 5.0),
                bar(Some("rank 1"), 8.0),
            ],
            rules: vec![],
        };
        let drawing = bars.draw().into_string();
        let second = "x=\"417\" y=\"58.5\" width=\"130\"";
        has(&drawing, &[">rank 0<", ">rank 1<", ">at 5<", second]);
        assert_eq!(bars.size().1, 20.0 + 3.0 * 17.0 + 2.0 * 20.0 + 36.0);
    }
}
