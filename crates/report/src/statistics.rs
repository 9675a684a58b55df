//! From samples to figures: the slowest rank of each iteration, then the median and the spread over
//! iterations.

use serde::{Deserialize, Serialize};

/// The median of a sample and its spread, in milliseconds.
///
/// It is written as an object, and also read as a median alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written")]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Tenth percentile.
    pub p10: f64,
    /// Ninetieth percentile.
    pub p90: f64,
    /// How many times were taken.
    pub samples: usize,
}

/// A spread as files have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Median(f64),
    Fields {
        median: f64,
        p10: f64,
        p90: f64,
        samples: usize,
    },
}

impl From<Written> for Spread {
    fn from(written: Written) -> Self {
        let (median, p10, p90, samples) = match written {
            Written::Median(median) => (median, median, median, 1),
            Written::Fields {
                median,
                p10,
                p90,
                samples,
            } => (median, p10, p90, samples),
        };
        Self {
            median,
            p10,
            p90,
            samples,
        }
    }
}

impl Spread {
    /// The spread of `times`; `None` if there are none.
    pub fn of(times: &[f64]) -> Option<Self> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |part: f64| {
            let place = part * last as f64;
            let (low, high) = (
                sorted[place.floor() as usize],
                sorted[place.ceil() as usize],
            );
            low + (high - low) * place.fract()
        };
        Some(Self {
            median: at(0.5),
            p10: at(0.1),
            p90: at(0.9),
            samples: sorted.len(),
        })
    }
}

/// For each iteration the time of the slowest rank. `ranks` holds the times of each rank, in the same order.
pub fn slowest(ranks: &[Vec<f64>]) -> Vec<f64> {
    let iterations = ranks.iter().map(Vec::len).min().unwrap_or(0);
    (0..iterations)
        .map(|i| ranks.iter().map(|times| times[i]).fold(0.0, f64::max))
        .collect()
}

/// Each of `items` once, in the order in which they come first.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut once = Vec::new();
    for item in items {
        if !once.contains(&item) {
            once.push(item);
        }
    }
    once
}

/// Each of `names` once, with how often it is there.
pub(crate) fn counted(names: &[String]) -> String {
    let told = distinct(names).into_iter().map(|name| {
        match names.iter().filter(|other| *other == name).count() {
            1 => name.clone(),
            count => format!("{name} ({count} times)"),
        }
    });
    told.collect::<Vec<_>>().join(", ")
}

/// The geometric mean; `None` of no values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|v| v.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_slowest_ranks() {
        // Each rank alone has a median of 1; the slowest of each iteration never is below 5.
        let ranks = [vec![1.0, 5.0, 1.0, 9.0, 1.0], vec![5.0, 1.0, 6.0, 1.0, 7.0]];
        let worst = slowest(&ranks);
        assert_eq!(worst, [5.0, 5.0, 6.0, 9.0, 7.0]);
        assert_eq!(Spread::of(&worst).unwrap().median, 6.0);
    }

    #[test]
    fn percentiles_are_interpolated() {
        let times: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let spread = Spread::of(&times).unwrap();
        assert_eq!(
            (spread.p10, spread.median, spread.p90, spread.samples),
            (1.0, 5.0, 9.0, 11)
        );
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn the_geometric_mean_of_inverses_is_one() {
        assert!((geometric_mean(&[4.0, 0.25]).unwrap() - 1.0).abs() < 1e-12);
    }
}
