//! A comparison as a table.

use std::io::{self, Write};

use super::comparison::{Comparison, Line, Verdict};
use super::ratio::CONFIDENCE;
use crate::statistics::Spread;
use crate::view::table::Grid;
use crate::view::terminal;

impl Comparison {
    /// Writes what was compared, what only one side has, and what follows.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let [old, new] = self.names.each_ref().map(String::as_str);
        for run in &self.runs {
            writeln!(out, "{run}")?;
        }
        writeln!(out)?;
        let headings = [
            "suite",
            "problem",
            "implementation",
            "time",
            old,
            new,
            "ratio",
            "interval",
            "verdict",
        ];
        let grid = Grid::new(headings, self.lines.iter().map(cells));
        terminal::print_grid(&grid, terminal::width(), out)?;
        writeln!(out)?;
        for row in &self.wrong {
            writeln!(out, "WRONG in {new}: {row}")?;
        }
        for note in &self.notes {
            writeln!(out, "{note}")?;
        }
        let (confidence, most) = (CONFIDENCE * 100.0, 1.0 + self.threshold);
        writeln!(
            out,
            "Medians in ms; ratio {new} / {old}; intervals of the ratio at {confidence:.0}% by rank sums. \
             SLOWER: median and lower bound above {most:.3}."
        )?;
        let counts = [
            Verdict::Slower,
            Verdict::Faster,
            Verdict::Same,
            Verdict::Unclear,
        ];
        let counts = counts.map(|v| format!("{} {}", self.count(v), v.name().to_lowercase()));
        writeln!(out, "{}, {} wrong", counts.join(", "), self.wrong.len())
    }
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
