//! Colours, dashes and markers.
//!
//! Lines differ in colour, marker and dash, so that none is known by its colour alone. Of the colours on each
//! ground any two are distinct with any kind of colour blindness too, and all stand out from the ground:
//! the tests compute both.

use std::fmt::Write;

use maud::{Markup, html};

use super::short;

/// A colour on light and on dark ground.
type Colour = (&'static str, &'static str);

const SURFACE: Colour = ("#ffffff", "#14171b");
const INK: Colour = ("#1f2328", "#e6e9ed");
const MUTED: Colour = ("#57606a", "#a3acb7");
const GRID: Colour = ("#e2e5e9", "#30363d");
const ALARM: Colour = ("#b3261e", "#ff8a80");

/// The first is that of what others are compared with.
const SERIES: [Colour; 7] = [
    ("#1f2328", "#e6e9ed"),
    ("#0057e6", "#52aafb"),
    ("#782b00", "#cb621c"),
    ("#00a871", "#5eff94"),
    ("#dc67c4", "#ae688c"),
    ("#b09001", "#ffd324"),
    ("#530072", "#6453f9"),
];

const DASHES: [&str; 3] = ["none", "6 3", "2 2"];

/// Around the origin, as paths.
const MARKERS: [&str; 6] = [
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
    "M-2.7-2.7h5.4v5.4h-5.4z",
    "M0-4L4 0L0 4L-4 0z",
    "M0-3.8L3.7 2.8H-3.7z",
    "M0 3.8L3.7-2.8H-3.7z",
    "M-3.6-1.2H-1.2V-3.6H1.2V-1.2H3.6V1.2H1.2V3.6H-1.2V1.2H-3.6z",
];

/// What the classes of drawings look like, whatever the ground.
const SHAPES: &str = ".plot text{font:11px system-ui,sans-serif}.plot .heading{font-weight:600}\
.plot .centre{text-anchor:middle}.plot .end{text-anchor:end}\
.plot .line{fill:none;stroke:currentColor;stroke-width:1.7;stroke-linejoin:round}\
.plot .whisker{stroke:currentColor;stroke-width:1.4}.plot .mark{fill:currentColor}.plot .frame{fill:none}\
.plot .limit{fill:none;stroke-width:1.7;stroke-dasharray:2 3}";

/// How a line is drawn: number 0 is for what others are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// The line of this number.
    Series(usize),
    /// The line of the limit, which no implementation can beat.
    Limit,
    /// The bar of an operation that only waits.
    Idle,
}

impl Style {
    fn class(self) -> String {
        match self {
            Style::Series(number) => {
                let (colour, dash) = (number % SERIES.len(), number / SERIES.len() % DASHES.len());
                format!("c{colour} d{dash}")
            }
            Style::Limit => "limit".into(),
            Style::Idle => "idle".into(),
        }
    }

    /// A line through `places`, with a marker at each.
    pub(super) fn line(self, places: &[(f64, f64, &str)]) -> Markup {
        let points: Vec<_> = places
            .iter()
            .map(|(x, y, _)| format!("{},{}", short(*x), short(*y)))
            .collect();
        html! {
            g class=(self.class()) {
                polyline .line points=(points.join(" ")) {}
                @for (x, y, title) in places { (self.marker((*x, *y), title)) }
            }
        }
    }

    /// A dot, with how far times spread around it.
    pub(super) fn dot(self, (x, y): (f64, f64), spread: Option<(f64, f64)>, title: &str) -> Markup {
        html! {
            g class=(self.class()) {
                @if let Some((low, high)) = spread {
                    line .whisker x1=(short(low)) x2=(short(high)) y1=(short(y)) y2=(short(y)) {}
                }
                (self.marker((x, y), title))
            }
        }
    }

    pub(super) fn bar(
        self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        title: &str,
    ) -> Markup {
        html! {
            g class=(self.class()) {
                rect .mark x=(short(x)) y=(short(y)) width=(short(width.max(0.5))) height=(short(height)) {
                    @if !title.is_empty() { title { (title) } }
                }
            }
        }
    }

    /// A short piece of the line, for legends.
    pub(crate) fn swatch(self, (x, y): (f64, f64)) -> Markup {
        let middle = (x + 13.0, y);
        if self == Style::Idle {
            return self.bar((x, y - 4.0), (26.0, 8.0), "");
        }
        html! {
            g class=(self.class()) {
                line .line x1=(x) x2=(x + 26.0) y1=(y) y2=(y) {}
                (self.marker(middle, ""))
            }
        }
    }

    fn marker(self, (x, y): (f64, f64), title: &str) -> Markup {
        let Style::Series(number) = self else {
            return Markup::default();
        };
        let place = format!("translate({} {})", short(x), short(y));
        html! {
            path .mark d=(MARKERS[number % MARKERS.len()]) transform=(place) {
                @if !title.is_empty() { title { (title) } }
            }
        }
    }
}

/// The style sheet of drawings.
pub(crate) fn css() -> String {
    format!(
        "{SHAPES}{}{}",
        ground(|colour| colour.0),
        dark(&ground(|colour| colour.1))
    )
}

/// The colours of grounds and texts as custom properties, for what stands around drawings.
pub(crate) fn root_css() -> String {
    let properties = |of: fn(Colour) -> &'static str| {
        let names = [
            ("surface", SURFACE),
            ("ink", INK),
            ("muted", MUTED),
            ("grid", GRID),
            ("alarm", ALARM),
            ("link", SERIES[1]),
        ];
        let all = names.map(|(name, colour)| format!("--{name}:{}", of(colour)));
        format!(":root{{{}}}", all.join(";"))
    };
    format!(
        "{}{}",
        properties(|colour| colour.0),
        dark(&properties(|colour| colour.1))
    )
}

fn dark(css: &str) -> String {
    format!("@media (prefers-color-scheme:dark){{{css}}}")
}

fn ground(of: fn(Colour) -> &'static str) -> String {
    let [surface, ink, muted, grid] = [SURFACE, INK, MUTED, GRID].map(of);
    let mut css = format!(
        ".plot .surface{{fill:{surface}}}.plot text{{fill:{ink}}}\
         .plot .quiet{{fill:{muted}}}.plot .grid{{stroke:{grid}}}\
         .plot .label{{stroke:{surface};stroke-width:3px;paint-order:stroke}}\
         .plot .frame,.plot .limit,.plot .limit .line{{stroke:{muted}}}\
         .plot .idle .mark{{fill:{grid};stroke:{muted};stroke-width:.5}}"
    );
    for (number, colour) in SERIES.into_iter().enumerate() {
        // To a String nothing fails to be written.
        let _ = write!(css, ".plot .c{number}{{color:{}}}", of(colour));
    }
    for (number, dash) in DASHES.into_iter().enumerate() {
        let _ = write!(css, ".plot .d{number} .line{{stroke-dasharray:{dash}}}");
    }
    css
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red, green and blue as amounts of light.
    fn light(colour: &str) -> [f64; 3] {
        [1, 3, 5].map(|at| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            match value <= 0.040_45 {
                true => value / 12.92,
                false => ((value + 0.055) / 1.055).powf(2.4),
            }
        })
    }

    /// As WCAG 2 has it.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour| {
            let [r, g, b] = light(colour);
            0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05
        };
        let (a, b) = (luminance(a), luminance(b));
        a.max(b) / a.min(b)
    }

    /// What is seen with each kind of colour blindness: Machado, Oliveira and Fernandes, IEEE TVCG 15(6),
    /// 2009, severity 1.
    const SIGHTS: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.303_900],
        ],
    ];

    /// CIE L*a*b* under D65.
    fn lab(light: [f64; 3]) -> [f64; 3] {
        let [r, g, b] = light.map(|part| part.clamp(0.0, 1.0));
        let bend = |t: f64| match t > 0.008_856 {
            true => t.cbrt(),
            false => 7.787 * t + 16.0 / 116.0,
        };
        let x = bend((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505);
        let y = bend(0.2126 * r + 0.7152 * g + 0.0722 * b);
        let z = bend((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn texts_and_marks_stand_out_from_both_grounds() {
        for of in [|c: Colour| c.0, |c: Colour| c.1] {
            for text in [INK, MUTED, ALARM, SERIES[1]] {
                let ratio = contrast(of(text), of(SURFACE));
                assert!(ratio >= 4.5, "{}: {ratio}", of(text));
            }
            for mark in SERIES {
                let ratio = contrast(of(mark), of(SURFACE));
                assert!(ratio >= 3.0, "{}: {ratio}", of(mark));
            }
        }
    }

    #[test]
    fn colours_differ_for_every_kind_of_sight() {
        for of in [|c: Colour| c.0, |c: Colour| c.1] {
            for sight in SIGHTS {
                let seen = SERIES.map(|colour| {
                    let light = light(of(colour));
                    lab(sight.map(|row| (0..3).map(|i| row[i] * light[i]).sum()))
                });
                for (i, a) in seen.iter().enumerate() {
                    for (j, b) in seen.iter().enumerate().skip(i + 1) {
                        let distance: f64 = (0..3).map(|k| (a[k] - b[k]).powi(2)).sum();
                        // Ten is seen at a glance; lines are thin.
                        assert!(distance.sqrt() > 25.0, "{i} {j}: {}", distance.sqrt());
                    }
                }
            }
        }
    }

    #[test]
    fn as_many_lines_as_a_sweep_has_differ() {
        let look = |number| {
            let style = Style::Series(number);
            style.line(&[(0.0, 0.0, "")]).into_string()
        };
        let mut looks: Vec<_> = (0..21).map(look).collect();
        looks.sort_unstable();
        looks.dedup();
        assert_eq!(looks.len(), 21);
    }
}
