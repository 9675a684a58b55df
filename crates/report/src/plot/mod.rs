//! Drawings as SVG: lines over two axes, dots and bars in rows.
//!
//! A drawing is markup without colours: its elements have classes, and [`css`] gives these their colours on
//! light and on dark ground. It stands in a page that has that style sheet, by [`inline`], or in a file of
//! its own, by [`file`]. What is drawn has text too: every mark has a `<title>`, and whoever draws puts the
//! numbers into a table.

mod axis;
mod lines;
mod rows;
mod style;

use maud::{Markup, html};

pub(crate) use axis::Axis;
pub(crate) use lines::{Line, Panel, Point};
pub(crate) use rows::{BARS, DOTS, Mark, Row, Rows};
pub(crate) use style::{Style, css, root_css};

/// Width and height in units of the drawing, which are pixels where it is drawn at its own size.
pub(crate) type Size = (f64, f64);

/// What can be drawn.
pub(crate) trait Drawing {
    /// Of all of it.
    fn size(&self) -> Size;

    /// Its elements.
    fn draw(&self) -> Markup;
}

/// A drawing as an element of an HTML page; `name` is what it shows, in a few words.
pub(crate) fn inline(name: &str, (width, height): Size, drawing: &Markup) -> Markup {
    html! {
        svg .plot viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(name) { (drawing) }
    }
}

/// A drawing as a file of its own.
pub(crate) fn file((width, height): Size, drawing: &Markup) -> String {
    let svg = html! {
        svg .plot xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
            viewBox=(format!("0 0 {width} {height}")) {
            style { (maud::PreEscaped(css())) }
            rect .surface width=(width) height=(height) {}
            (drawing)
        }
    };
    svg.into_string() + "\n"
}

/// A part of a drawing at a place of it.
pub(crate) fn at((x, y): (f64, f64), drawing: &Markup) -> Markup {
    html! { g transform=(format!("translate({} {})", short(x), short(y))) { (drawing) } }
}

/// The names of lines, one below the other, as part of a drawing.
pub(crate) fn legend<'a>(entries: impl Iterator<Item = (&'a str, Style)>) -> Markup {
    html! {
        @for (i, (name, style)) in entries.enumerate() {
            @let y = 17.0 * i as f64 + 8.0;
            (style.swatch((0.0, y)))
            text .label x="34" y=(y + 4.0) { (name) }
        }
    }
}

/// A coordinate in as few digits as an eye can tell.
fn short(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
