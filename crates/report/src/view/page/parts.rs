//! The building blocks of the page's sections.

use maud::{Markup, html};

use crate::plot::{self, Drawing, Panel, Style};
use crate::view::table::Grid;

/// A table that scrolls by itself where the screen is narrow.
pub(crate) fn table(caption: &str, grid: &Grid) -> Markup {
    let class = |column: usize| grid.is_text(column).then_some("text");
    let state = |cell: &str| match cell {
        cell if cell.starts_with("WRONG") => Some("alarm"),
        "not run" | "–" => Some("quiet"),
        _ => None,
    };
    html! {
        div .scroll tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead { tr { @for (i, heading) in grid.headings.iter().enumerate() {
                    th scope="col" class=[class(i)] { (heading) }
                } } }
                tbody { @for row in &grid.rows { tr { @for (i, cell) in row.iter().enumerate() {
                    @if i == 0 { th scope="row" { (cell) } }
                    @else { td class=[state(cell).or(class(i))] { (cell) } }
                } } } }
            }
        }
    }
}

/// A drawing with what it shows, and the names of what is drawn.
pub(crate) fn figure(caption: &str, of: &dyn Drawing, legend: &[(String, Style)]) -> Markup {
    let size = of.size();
    let drawn = plot::inline(caption, size, &of.draw());
    html! {
        figure style=(format!("--width:{}px", size.0 * 1.35)) {
            figcaption { (caption) }
            @if size.0 > Panel::SIZE.0 {
                div .scroll tabindex="0" role="region" aria-label=(caption) { (drawn) }
            } @else { (drawn) }
            (names(legend))
        }
    }
}

/// The names of what is drawn.
pub(crate) fn names(legend: &[(String, Style)]) -> Markup {
    html! {
        @if !legend.is_empty() {
            ul .legend { @for (name, style) in legend { li {
                svg .plot viewBox="0 0 26 10" width="26" height="10" aria-hidden="true" {
                    (style.swatch((0.0, 5.0)))
                }
                (name)
            } } }
        }
    }
}

/// Sentences.
pub(crate) fn list<S: AsRef<str>>(lines: &[S]) -> Markup {
    html! { @if !lines.is_empty() { ul .findings { @for line in lines { li { (line.as_ref()) } } } } }
}

/// A part that is folded until the reader opens it.
pub(crate) fn details(summary: &str, body: &Markup) -> Markup {
    html! { details { summary { (summary) } (body) } }
}
