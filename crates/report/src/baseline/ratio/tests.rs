use super::*;
use proptest::prelude::*;

/// Numbers in (0, 1) that are the same in every run: a linear congruential generator, its upper bits.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Times as calls take them: a floor, an exponential tail, and one call in twenty that something came
    /// between.
    fn times(&mut self, count: usize, scale: f64) -> Vec<f64> {
        let mut one = || {
            let tail = -0.1 * self.unit().ln();
            let hit = if self.unit() < 0.05 { 3.0 } else { 1.0 };
            scale * (1.0 + tail) * hit
        };
        (0..count).map(|_| one()).collect()
    }
}

#[test]
fn the_rank_sums_are_those_of_the_tables() {
    assert_eq!(rank_sums(1, 2), [1.0, 1.0, 1.0]);
    assert_eq!(
        rank_sums(2, 3),
        [1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0],
        "ten orders of two and three"
    );
    // Every order once: the binomial coefficient of 20 over 10.
    assert_eq!(rank_sums(10, 10).iter().sum::<f64>(), 184_756.0);
    // Critical values of the two-sided test at 1%, as in Hollander and Wolfe's and in Mann and Whitney's
    // tables.
    for (old, new, critical) in [(5, 5, 0), (6, 6, 2), (8, 8, 7), (10, 10, 16), (20, 20, 105)] {
        assert_eq!(lowest_pair(old, new), Some(critical), "{old} and {new}");
    }
    assert_eq!(lowest_pair(4, 4), None);
    assert_eq!(lowest_pair(FEWEST_SAMPLES, FEWEST_SAMPLES), Some(0));
}

#[test]
fn the_normal_distribution_goes_on_where_the_exact_one_ends() {
    let [before, last, first] = [30, 31, 32].map(|count| lowest_pair(count, count).unwrap());
    const { assert!(31 * 31 <= EXACT_PAIRS && 32 * 32 > EXACT_PAIRS) };
    // A sample more on each side moves the bound by about as much as the one before it did.
    let steps = [last - before, first - last];
    assert!(steps[0].abs_diff(steps[1]) <= 3, "{steps:?}");
    // Few against many: one of 304 over 4 orders is the rarest.
    assert!(lowest_pair(4, 300).is_some());
    assert_eq!(lowest_pair(0, 9), None);
}

#[test]
fn an_interval_misses_the_truth_as_rarely_as_it_says() {
    for (count, truth) in [(5, 1.0), (9, 1.3), (50, 0.8)] {
        let mut random = Random(count as u64);
        let trials = 2000;
        let missed = (0..trials)
            .filter(|_| {
                let (old, new) = (random.times(count, 1.0), random.times(count, truth));
                let (low, high) = ratio(&old, &new).unwrap().interval.unwrap();
                truth < low || truth > high
            })
            .count();
        // 1% is 20 of 2000; four standard deviations of that are 18.
        assert!(missed <= 38, "{missed} of {trials} with {count} samples");
    }
}

#[test]
fn a_slowdown_of_a_tenth_is_seen_through_the_noise() {
    let mut random = Random(7);
    let trials = 200;
    let seen = (0..trials)
        .filter(|_| {
            let (old, new) = (random.times(50, 1.0), random.times(50, 1.2));
            ratio(&old, &new).unwrap().interval.unwrap().0 > 1.05
        })
        .count();
    assert!(seen * 10 > trials * 9, "{seen} of {trials}");
}

#[test]
fn what_is_no_time_has_no_ratio() {
    for wrong in [&[][..], &[0.0], &[-1.0], &[f64::NAN], &[f64::INFINITY]] {
        assert_eq!(ratio(wrong, &[1.0]), None, "{wrong:?}");
        assert_eq!(ratio(&[1.0], wrong), None, "{wrong:?}");
    }
    let few = ratio(&[2.0; 4], &[3.0; 4]).unwrap();
    assert_eq!((few.medians, few.interval), (1.5, None));
}

#[test]
fn a_hundred_thousand_samples_are_thinned() {
    let mut random = Random(3);
    let (old, new) = (random.times(100_000, 1.0), random.times(100_000, 2.0));
    let found = ratio(&old, &new).unwrap();
    let (low, high) = found.interval.unwrap();
    assert!(low > 1.95 && high < 2.05, "{low} {high}");
}

fn times() -> impl Strategy<Value = Vec<f64>> {
    proptest::collection::vec(1e-3..1e3f64, FEWEST_SAMPLES..60)
}

proptest! {
    /// Faster by what the other is slower: nothing depends on which side is which.
    #[test]
    fn exchanging_the_sides_inverts_the_ratio(old in times(), new in times()) {
        let (there, back) = (ratio(&old, &new).unwrap(), ratio(&new, &old).unwrap());
        prop_assert!((there.medians * back.medians - 1.0).abs() < 1e-9);
        let ((low, high), (low_back, high_back)) = (there.interval.unwrap(), back.interval.unwrap());
        prop_assert!((low * high_back - 1.0).abs() < 1e-9 && (high * low_back - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_factor_goes_straight_into_the_ratio(old in times(), new in times(), factor in 1e-2..1e2f64) {
        let scaled: Vec<f64> = new.iter().map(|time| time * factor).collect();
        let (plain, scaled) = (ratio(&old, &new).unwrap(), ratio(&old, &scaled).unwrap());
        let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        prop_assert!(close(scaled.medians, plain.medians * factor));
        let ((a, b), (c, d)) = (plain.interval.unwrap(), scaled.interval.unwrap());
        prop_assert!(close(c, a * factor) && close(d, b * factor));
    }

    #[test]
    fn the_same_times_are_never_apart(times in times()) {
        let same = ratio(&times, &times).unwrap();
        let (low, high) = same.interval.unwrap();
        prop_assert!(same.medians == 1.0 && low <= 1.0 && high >= 1.0);
    }

    /// The order of the samples tells nothing.
    #[test]
    fn the_order_does_not_matter(old in times(), new in times()) {
        let mut reversed = new.clone();
        reversed.reverse();
        prop_assert_eq!(ratio(&old, &new), ratio(&old, &reversed));
    }
}
