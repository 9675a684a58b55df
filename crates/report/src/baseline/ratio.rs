//! How many times as long one sample of times is as another, and how sure that is.
//!
//! Times of calls are not normal: they have a floor, a long tail and now and then two humps. So the interval
//! is one that assumes no distribution: that of Moses, the set of all factors which a rank-sum test (Mann and
//! Whitney) at the same level does not reject. Its ends are order statistics of the ratios of all pairs,
//! whose median is the estimator of Hodges and Lehmann. It is exact for small samples, needs no random
//! numbers, and says so where samples are too few to say anything.
//!
//! - J. L. Hodges, E. L. Lehmann: *Estimates of location based on rank tests*, Ann. Math. Statist. 34 (1963)
//!   598–611.
//! - E. L. Lehmann: *Nonparametric confidence intervals for a shift parameter*, Ann. Math. Statist. 34 (1963)
//!   1507–1512.
//! - D. F. Bauer: *Constructing confidence sets using rank statistics*, J. Amer. Statist. Assoc. 67 (1972)
//!   687–690.
//! - M. Hollander, D. A. Wolfe, E. Chicken: *Nonparametric Statistical Methods*, 3rd ed. 2014, section 4.3.
//!
//! A shift of the logarithms of times is a factor of the times. What the interval cannot know is what differs
//! between two runs and not within one: clocks, neighbours, the place of memory. That is what the threshold
//! of a comparison is for.

/// Confidence of the interval, two-sided: one bound alone is wrong once in 200 times.
pub const CONFIDENCE: f64 = 0.99;

/// The fewest samples on each of two equal sides that give an interval at all.
pub const FEWEST_SAMPLES: usize = 5;

/// The quantile of the normal distribution that belongs to [`CONFIDENCE`].
const NORMAL_QUANTILE: f64 = 2.575_829_303_548_901;

/// Pairs of samples up to which the distribution of the rank sum is computed; beyond that it is taken to be
/// normal.
const EXACT_PAIRS: usize = 1000;

/// The most samples of a side that are compared: the number of pairs is the product of both sides.
const MOST_SAMPLES: usize = 1000;

/// The ratio of new times to old ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The median of the new ones over that of the old ones: more is slower.
    pub medians: f64,
    /// Lower and upper bound at [`CONFIDENCE`]; `None` where samples are too few.
    pub interval: Option<(f64, f64)>,
}

/// `new` times over `old` ones. `None` if there are none on a side, or some that are not positive and finite.
pub fn ratio(old: &[f64], new: &[f64]) -> Option<Ratio> {
    let is_time = |time: &f64| time.is_finite() && *time > 0.0;
    if !old.iter().chain(new).all(is_time) {
        return None;
    }
    let medians = median(new)? / median(old)?;
    let (old, new) = (thinned(old), thinned(new));
    let interval = lowest_pair(old.len(), new.len()).map(|place| {
        let pairs = new.iter().flat_map(|n| old.iter().map(move |o| n / o));
        let mut pairs: Vec<f64> = pairs.collect();
        pairs.sort_unstable_by(f64::total_cmp);
        (pairs[place], pairs[pairs.len() - 1 - place])
    });
    Some(Ratio { medians, interval })
}

fn median(times: &[f64]) -> Option<f64> {
    crate::statistics::Spread::of(times).map(|spread| spread.median)
}

/// At most [`MOST_SAMPLES`], evenly from the first to the last.
fn thinned(times: &[f64]) -> Vec<f64> {
    let step = times.len().div_ceil(MOST_SAMPLES).max(1);
    times.iter().copied().step_by(step).collect()
}

/// The place of the lower bound among the sorted ratios of all pairs, from 0: the largest k for which a rank
/// sum statistic of at most k is rarer than half of what [`CONFIDENCE`] leaves. `None` if even 0 is not rare
/// enough.
fn lowest_pair(old: usize, new: usize) -> Option<usize> {
    let tail = (1.0 - CONFIDENCE) / 2.0;
    // A few samples against many have a distribution that is far from normal, and soon computed.
    if old * new > EXACT_PAIRS && old.min(new) >= FEWEST_SAMPLES {
        let (old, new) = (old as f64, new as f64);
        let deviation = (old * new * (old + new + 1.0) / 12.0).sqrt();
        // The half is for the statistic's being a whole number.
        let place = old * new / 2.0 - NORMAL_QUANTILE * deviation - 0.5;
        return (place >= 0.0).then_some(place as usize);
    }
    let counts = rank_sums(old, new);
    let all: f64 = counts.iter().sum();
    let mut below = 0.0;
    let rare = counts.iter().take_while(|&&count| {
        below += count;
        below / all <= tail
    });
    rare.count().checked_sub(1)
}

/// In how many orders of `old` and `new` distinct values the statistic of Mann and Whitney, the number of
/// pairs in which the new value is the smaller, is 0, 1, … `old · new`.
fn rank_sums(old: usize, new: usize) -> Vec<f64> {
    // By whether the largest value is an old one, above all new ones, or a new one, below no old one.
    let mut by_new = vec![vec![1.0]; new + 1];
    for olds in 1..=old {
        let mut row: Vec<Vec<f64>> = vec![vec![1.0]];
        for news in 1..=new {
            let mut counts = vec![0.0; olds * news + 1];
            for (i, count) in by_new[news].iter().enumerate() {
                counts[i + news] += count;
            }
            for (i, count) in row[news - 1].iter().enumerate() {
                counts[i] += count;
            }
            row.push(counts);
        }
        by_new = row;
    }
    by_new.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests;
