//! The result of verification.

use serde::{Deserialize, Deserializer, Serialize};

/// The outcome over all calls and all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    /// Calls verified, on each rank.
    pub calls: u64,
    /// Elements compared, over all ranks.
    pub elements: u64,
    /// Elements that were wrong, over all ranks.
    #[serde(default)]
    pub wrong: u64,
    /// Elements of calls with integer inputs, which must be equal to the one right value.
    #[serde(default)]
    pub exact_elements: u64,
    /// ‖out − reference‖ / ‖reference‖ of the worst call with real inputs.
    #[serde(default = "infinite", deserialize_with = "finite_or_infinite")]
    pub relative_error: f64,
    /// The largest `relative_error` that is right.
    #[serde(default)]
    pub tolerance: f64,
    /// Where the first rank that has one found its first wrong element.
    pub first: Option<Finding>,
}

/// A wrong element and where it was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The rank.
    pub rank: usize,
    /// The element.
    pub what: String,
}

impl Verdict {
    /// Whether all was right.
    pub fn is_right(&self) -> bool {
        self.wrong == 0 && self.relative_error <= self.tolerance
    }

    /// What was wrong first; `None` where all was right.
    pub fn reason(&self) -> Option<String> {
        if self.is_right() {
            return None;
        }
        let Verdict {
            elements, wrong, ..
        } = self;
        Some(match &self.first {
            Some(Finding { rank, what }) => {
                format!("{wrong} of {elements} elements; rank {rank}, {what}")
            }
            None => format!(
                "relative error {:.2e}, at most {:.2e} is right",
                self.relative_error, self.tolerance
            ),
        })
    }

    /// The verdict of all ranks, from what each has found.
    pub fn of_ranks(all: Vec<Self>) -> Self {
        // All ranks make the same calls.
        let calls = all.last().map_or(0, |rank| rank.calls);
        Verdict {
            calls,
            ..all.into_iter().fold(Verdict::default(), Verdict::and)
        }
    }

    /// Both verdicts as one.
    #[must_use]
    pub fn and(self, other: Verdict) -> Verdict {
        Verdict {
            calls: self.calls + other.calls,
            elements: self.elements + other.elements,
            wrong: self.wrong + other.wrong,
            exact_elements: self.exact_elements + other.exact_elements,
            relative_error: worst(self.relative_error, other.relative_error),
            tolerance: self.tolerance.max(other.tolerance),
            first: self.first.or(other.first),
        }
    }
}

fn infinite() -> f64 {
    f64::INFINITY
}

/// JSON has no infinity: it is `null`, or left out.
fn finite_or_infinite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// The larger, with no number the largest.
fn worst(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::INFINITY
    } else {
        a.max(b)
    }
}
