//! What a rank found, and its encoding for the others.

use super::comparison::{Comparison, WrongElement};
use super::{Finding, Verdict, worst};
use crate::inputs::Numbers;

/// What one rank found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    calls: u64,
    elements: u64,
    wrong: u64,
    exact_elements: u64,
    relative_error: f64,
    tolerance: f64,
    first: String,
}

impl Findings {
    pub fn add(
        &mut self,
        numbers: Numbers,
        comparison: Comparison,
        tolerance: f64,
        words: impl FnOnce(&WrongElement) -> String,
    ) {
        self.calls += 1;
        self.elements += comparison.elements;
        self.wrong += comparison.wrong;
        match numbers {
            Numbers::Integers => self.exact_elements += comparison.elements,
            Numbers::Reals => {
                self.relative_error = worst(self.relative_error, comparison.relative_error());
                self.tolerance = self.tolerance.max(tolerance);
            }
        }
        if let (true, Some(first)) = (self.first.is_empty(), &comparison.first) {
            self.first = words(first);
        }
    }

    pub fn to_words(&self) -> Vec<u8> {
        let numbers = [
            self.calls,
            self.elements,
            self.wrong,
            self.exact_elements,
            self.relative_error.to_bits(),
            self.tolerance.to_bits(),
        ];
        let mut words: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        words.extend_from_slice(self.first.as_bytes());
        words
    }

    pub fn from_words(words: &[u8]) -> Self {
        let (numbers, first) = words.split_at(words.len().min(48));
        let (numbers, _) = numbers.as_chunks();
        let mut numbers = numbers.iter().copied().map(u64::from_le_bytes);
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            calls: next(),
            elements: next(),
            wrong: next(),
            exact_elements: next(),
            relative_error: f64::from_bits(next()),
            tolerance: f64::from_bits(next()),
            first: String::from_utf8_lossy(first).into_owned(),
        }
    }

    pub fn verdict(self, rank: usize) -> Verdict {
        Verdict {
            calls: self.calls,
            elements: self.elements,
            wrong: self.wrong,
            exact_elements: self.exact_elements,
            relative_error: self.relative_error,
            tolerance: self.tolerance,
            first: (!self.first.is_empty()).then_some(Finding {
                rank,
                what: self.first,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_survive_the_exchange_and_one_wrong_rank_is_enough() {
        let wrong = Findings {
            calls: 4,
            elements: 40,
            wrong: 2,
            exact_elements: 20,
            relative_error: f64::INFINITY,
            tolerance: 0.5,
            first: "C[1, 2] is NaN".into(),
        };
        let right = Findings {
            wrong: 0,
            relative_error: 0.1,
            first: String::new(),
            ..Findings {
                calls: 4,
                elements: 40,
                exact_elements: 20,
                tolerance: 0.5,
                ..Findings::default()
            }
        };
        let verdict = Findings::from_words(&right.to_words())
            .verdict(0)
            .and(Findings::from_words(&wrong.to_words()).verdict(1));
        assert!(!verdict.is_right());
        assert_eq!(
            (verdict.elements, verdict.wrong, verdict.exact_elements),
            (80, 2, 40)
        );
        let first = verdict.first.unwrap();
        assert_eq!((first.rank, first.what.as_str()), (1, "C[1, 2] is NaN"));
        assert!(
            Findings::from_words(&right.to_words())
                .verdict(0)
                .is_right()
        );
    }
}
