//! A comparison for eyes.

use std::io::{self, Write};

use super::comparison::{Comparison, Line, Verdict};
use super::ratio::CONFIDENCE;
use super::saved::Saved;
use crate::statistics::Spread;
use crate::view::table::Grid;
use crate::view::terminal;

/// Writes what was compared, what only one side has, and what follows.
pub fn print(
    found: &Comparison,
    (old, new): (&[Saved], &[Saved]),
    names: [&str; 2],
    threshold: f64,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (name, runs) in names.iter().zip([old, new]) {
        for run in runs {
            writeln!(out, "{name}: {}, {}", run.suite, run.provenance)?;
        }
    }
    writeln!(out)?;
    let headings = [
        "suite",
        "problem",
        "implementation",
        "time",
        names[0],
        names[1],
        "ratio",
        "interval",
        "verdict",
    ];
    let grid = Grid::new(&headings, found.lines.iter().map(cells));
    terminal::print_grid(&grid, terminal::width(), out)?;
    writeln!(out)?;
    for note in &found.notes {
        writeln!(out, "{note}")?;
    }
    writeln!(
        out,
        "Medians in ms; ratio {} / {}; intervals of the ratio at {:.0}% by rank sums. SLOWER: median and lower bound above {:.3}.",
        names[1],
        names[0],
        CONFIDENCE * 100.0,
        1.0 + threshold
    )?;
    let counts = [
        Verdict::Slower,
        Verdict::Faster,
        Verdict::Same,
        Verdict::Unclear,
    ];
    let counts = counts.map(|v| format!("{} {}", found.count(v), v.name().to_lowercase()));
    writeln!(out, "{}", counts.join(", "))
}

fn cells(line: &Line) -> Vec<String> {
    let median = |samples: &[f64]| {
        Spread::of(samples).map_or(String::new(), |spread| format!("{:.4}", spread.median))
    };
    let interval = line.ratio.interval;
    vec![
        line.suite.clone(),
        line.old.problem.clone(),
        line.old.implementation.clone(),
        line.old.what.to_owned(),
        median(&line.old.samples),
        median(&line.new),
        format!("{:.3}", line.ratio.medians),
        interval.map_or(String::new(), |(low, high)| format!("{low:.3}–{high:.3}")),
        line.verdict.name().to_owned(),
    ]
}
