//! A selection as text.

use super::{Basis, Choice, Selection};
use std::fmt;

/// Choices that are printed.
const SHOWN: usize = 10;

/// What was asked, the limit, the ranking, and why the first stands before the second.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = &self.problem;
        writeln!(
            f,
            "{} {}x{}x{} {} by {} ranks of {}",
            self.operation,
            problem.m,
            problem.n,
            problem.k,
            problem.dtype,
            self.world,
            self.machine
        )?;
        let limit = self.limit;
        let by = match limit.gemm_us >= limit.transfer_us {
            true => "the GEMM alone",
            false => "the bytes that come into a rank",
        };
        writeln!(
            f,
            "limit {:.1} µs, {by} (GEMM {:.1}, bytes {:.1})\n",
            limit.us(),
            limit.gemm_us,
            limit.transfer_us
        )?;
        let width = self
            .ranking
            .iter()
            .take(SHOWN)
            .map(|c| c.configuration.name().len());
        let width = width.max().unwrap_or(0);
        writeln!(
            f,
            "{:>11} {:>11} {:>6}  {:width$}  from",
            "expected µs", "model µs", "eff.", "configuration"
        )?;
        for choice in self.ranking.iter().take(SHOWN) {
            writeln!(
                f,
                "{:11.1} {:11.1} {:6.3}  {:width$}  {}",
                choice.expected_us,
                choice.predicted_us,
                limit.us() / choice.expected_us,
                choice.configuration.name(),
                choice.basis
            )?;
        }
        if self.ranking.len() > SHOWN {
            writeln!(f, "… and {} more", self.ranking.len() - SHOWN)?;
        }
        for reason in &self.left_out {
            writeln!(f, "left out: {reason}")?;
        }
        writeln!(f, "\n{}", Why(&self.ranking))
    }
}

/// What the critical paths of the first and of the next algorithm consist of.
struct Why<'a>(&'a [Choice]);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((best, others)) = self.0.split_first() else {
            return Ok(());
        };
        let summary = best.configuration.algorithm().summary;
        write!(
            f,
            "{}: {summary}.\nIts critical path by the model: {}.",
            best.configuration, best.breakdown
        )?;
        // The same algorithm with other parameters tells less than the next one.
        let other = |c: &&Choice| c.configuration.algorithm() != best.configuration.algorithm();
        if let Some(next) = others.iter().find(other) {
            let slower = 100.0 * (next.expected_us / best.expected_us - 1.0);
            write!(
                f,
                "\nThe next algorithm, {}, is expected {slower:.1} % slower: {}.",
                next.configuration, next.breakdown
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Basis::Model => f.write_str("the model"),
            Basis::Corrected { factor, points } => {
                let s = if *points == 1 { "" } else { "s" };
                write!(f, "the model, times {factor:.2} by {points} measurement{s}")
            }
            Basis::Measured { .. } => f.write_str("measured"),
        }
    }
}
