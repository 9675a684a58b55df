//! Two runs of a suite, time by time.

use super::ratio::{Ratio, ratio};
use super::saved::{Saved, Time};
use crate::error::{ReportError, Result};
use crate::provenance::{Fact, HOST};
use crate::statistics::distinct;

/// How a time changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The median and the lower bound of the ratio are above the threshold.
    Slower,
    /// The median and the upper bound are below its inverse.
    Faster,
    /// The median is within the threshold.
    Same,
    /// The median is beyond the threshold and the bound is not: noise, or too few samples to tell.
    Unclear,
}

impl Verdict {
    /// The verdict on a ratio, for a threshold as a part of one.
    pub fn of(ratio: &Ratio, threshold: f64) -> Self {
        let most = 1.0 + threshold;
        // Where there is no interval, nothing is sure.
        let (low, high) = ratio.interval.unwrap_or((0.0, f64::INFINITY));
        match ratio.medians {
            median if median > most && low > most => Verdict::Slower,
            median if median * most < 1.0 && high * most < 1.0 => Verdict::Faster,
            median if median > most || median * most < 1.0 => Verdict::Unclear,
            _ => Verdict::Same,
        }
    }

    /// Its word in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Slower => "SLOWER",
            Verdict::Faster => "faster",
            Verdict::Same => "same",
            Verdict::Unclear => "unclear",
        }
    }
}

/// A time of both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name of the suite.
    pub suite: String,
    /// The old time; its samples are the old ones.
    pub old: Time,
    /// The samples of the new run.
    pub new: Vec<f64>,
    /// New over old.
    pub ratio: Ratio,
    /// How it changed.
    pub verdict: Verdict,
}

/// Two baselines against each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Their names.
    pub names: [String; 2],
    /// How much slower a time may be, as a part of one.
    pub threshold: f64,
    /// The suites of each, with machine and software.
    pub runs: Vec<String>,
    /// What was compared, in the order of the old runs.
    pub lines: Vec<Line>,
    /// The rows that were wrong in the new runs, with the reasons.
    pub wrong: Vec<String>,
    /// Notes for the reader: times that only one of them has, and software that differs.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Whether no time is slower and no row of the new runs is wrong.
    pub fn holds(&self) -> bool {
        self.count(Verdict::Slower) == 0 && self.wrong.is_empty()
    }

    /// How many times have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        let has = |line: &&Line| line.verdict == verdict;
        self.lines.iter().filter(has).count()
    }

    /// Compares the times that two runs of a suite have in common.
    fn add(&mut self, old: &Saved, new: &Saved) -> Result<()> {
        let (suite, [first, second]) = (&old.suite, &self.names);
        // Times of different machines say nothing about the program.
        let differences = differing(old.provenance.machine(), new.provenance.machine());
        if !differences.is_empty() {
            return Err(ReportError::MachinesDiffer {
                suite: suite.clone(),
                names: self.names.clone(),
                differences,
            });
        }
        // It may be the cause of a difference though the machine is the same.
        let changed = differing(old.provenance.software(), new.provenance.software());
        for (what, a, b) in changed {
            let note = format!("{suite}: {what} {a} in {first}, {b} in {second}");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        let mut few = 0;
        for time in &old.times {
            let Some(other) = new.times.iter().find(|other| other.is_same(time)) else {
                continue;
            };
            match ratio(&time.samples, &other.samples) {
                Some(ratio) if ratio.interval.is_some() => self.lines.push(Line {
                    suite: suite.clone(),
                    old: time.clone(),
                    new: other.samples.clone(),
                    ratio,
                    verdict: Verdict::of(&ratio, self.threshold),
                }),
                _ => few += 1,
            }
        }
        if few > 0 {
            self.notes.push(format!(
                "{suite}: {few} times of too few samples for an interval are left out; \
                 --iterations takes more"
            ));
        }
        Ok(())
    }
}

/// The threshold where none is asked for, as a part of one. Two runs of the same program are 1 to 3% apart on
/// GPUs whose clocks follow their power; on the host backend processes share cores with whatever else runs
/// there.
pub fn default_threshold(runs: &[Saved]) -> f64 {
    match runs.iter().any(|run| run.provenance.backend == HOST) {
        true => 0.25,
        false => 0.05,
    }
}

/// Compares the suites that both have, `new` with `old`, in all of their files; `names` are what they are
/// called.
///
/// # Errors
/// [`ReportError::MachinesDiffer`]; [`ReportError::Usage`] where they have no time in common and
/// nothing is wrong.
pub fn compare(
    (old, new): (&[Saved], &[Saved]),
    names: [&str; 2],
    threshold: f64,
) -> Result<Comparison> {
    let runs = names.iter().zip([old, new]).flat_map(|(name, runs)| {
        let line = move |run: &Saved| format!("{name}: {}, {}", run.suite, run.provenance);
        runs.iter().map(line)
    });
    let wrong = new.iter().flat_map(|run| {
        let line = move |row: &String| format!("{}: {row}", run.suite);
        run.wrong.iter().map(line)
    });
    let mut found = Comparison {
        names: names.map(str::to_owned),
        threshold,
        runs: runs.collect(),
        lines: Vec::new(),
        wrong: wrong.collect(),
        notes: Vec::new(),
    };
    for (have, others, name) in [(old, new, names[0]), (new, old, names[1])] {
        let alone = have.iter().flat_map(|run| run.alone_among(others));
        let alone = alone.map(|what| format!("{what} is in {name} alone"));
        found.notes.extend(alone);
    }
    for suite in distinct(old.iter().map(|run| &run.suite)) {
        let of_suite = |run: &&Saved| run.suite == *suite;
        let news: Vec<_> = new.iter().filter(of_suite).collect();
        let olds = old.iter().filter(of_suite);
        let mut pairs: Vec<_> = olds
            .flat_map(|old| news.iter().map(move |new| (old, *new)))
            .collect();
        // Files of a suite may be of different machines. Where no two have a time in common, that may be why.
        if pairs.iter().any(|(old, new)| old.shares_times(new)) {
            pairs.retain(|(old, new)| old.shares_times(new));
        }
        for (old, new) in pairs {
            found.add(old, new)?;
        }
    }
    if found.lines.is_empty() && found.wrong.is_empty() {
        let notes = found.notes.iter().map(|note| format!("; {note}"));
        let (notes, [a, b]) = (notes.collect::<String>(), names);
        let why = format!("{a} and {b} have no time in common{notes}");
        return Err(ReportError::Usage(why));
    }
    Ok(found)
}

/// What differs between two lists of the same facts, with both values.
fn differing(old: Vec<Fact>, new: Vec<Fact>) -> Vec<(&'static str, String, String)> {
    let both = old.into_iter().zip(new);
    both.filter(|(old, new)| old != new)
        .map(|((name, old), (_, new))| (name, old, new))
        .collect()
}

#[cfg(test)]
mod tests;
