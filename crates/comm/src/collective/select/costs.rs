//! Measured times of variants.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::collective::operation::Operation;
use crate::collective::variant::Variant;

/// A measured series: an operation in a variant among so many ranks.
type Series = (Operation, Variant, usize);

/// Times of calls, by operation, variant, number of ranks and [size](Operation::size).
///
/// The text format has one line for each series: operation, ranks, variant and `bytes=microseconds` pairs,
/// separated by blanks. Lines that begin with `#` are comments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Costs {
    series: BTreeMap<Series, BTreeMap<usize, f64>>,
}

/// An error in the text of [`Costs`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the costs: {why}")]
pub struct MalformedCosts {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl Costs {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Records that a call of `size` bytes took `microseconds`.
    pub fn insert(
        &mut self,
        operation: Operation,
        variant: Variant,
        world: usize,
        size: usize,
        microseconds: f64,
    ) {
        let series = self.series.entry((operation, variant, world)).or_default();
        series.insert(size.max(1), microseconds);
    }

    /// Takes over the series of `newer`. They replace all series of their operations: times of two machines,
    /// or of two days, do not compare.
    pub fn replace(&mut self, newer: Costs) {
        let is_older = |operation| newer.series.keys().all(|series| series.0 != operation);
        self.series.retain(|series, _| is_older(series.0));
        self.series.extend(newer.series);
    }

    /// The time of a call in microseconds: interpolated between measured sizes in log-log scale, and
    /// extrapolated from the nearest two. For a number of ranks that was not measured, that of the nearest
    /// one that was, at the size with as many incoming bytes. `None` where the variant was not measured at
    /// all.
    pub fn predict(
        &self,
        operation: Operation,
        variant: Variant,
        world: usize,
        size: usize,
    ) -> Option<f64> {
        let worlds = self
            .series
            .keys()
            .filter(|key| (key.0, key.1) == (operation, variant));
        let nearest = worlds
            .map(|key| key.2)
            .min_by_key(|measured| measured.abs_diff(world))?;
        let times = self.series.get(&(operation, variant, nearest))?;
        let same = operation.incoming(1 << 30, nearest).max(1) as f64
            / operation.incoming(1 << 30, world).max(1) as f64;
        let times: Vec<_> = times.iter().map(|(&s, &t)| (s as f64, t)).collect();
        Some(interpolate(&times, (size.max(1) as f64 / same).max(1.0)))
    }
}

/// The time of a call of `size` bytes from times measured at rising sizes, on the line through the nearest
/// two in log-log scale. Infinite where nothing was measured.
pub fn interpolate(times: &[(f64, f64)], size: f64) -> f64 {
    let points: Vec<(f64, f64)> = times.iter().map(|(s, t)| (s.ln(), t.ln())).collect();
    let at = size.ln();
    let above = points.iter().position(|point| point.0 >= at);
    let first = above.unwrap_or(points.len()).saturating_sub(1);
    let first = first.min(points.len().saturating_sub(2));
    match points.get(first..first + 2) {
        Some(&[(x0, y0), (x1, y1)]) => (y0 + (y1 - y0) * (at - x0) / (x1 - x0)).exp(),
        _ => points.first().map_or(f64::INFINITY, |point| point.1.exp()),
    }
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((operation, variant, world), times) in &self.series {
            write!(f, "{operation} {world} {variant}")?;
            for (size, time) in times {
                write!(f, " {size}={time:.1}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl FromStr for Costs {
    type Err = MalformedCosts;

    fn from_str(text: &str) -> Result<Self, MalformedCosts> {
        let mut costs = Costs::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            costs.read_line(line).map_err(|why| MalformedCosts {
                line: index + 1,
                why,
            })?;
        }
        Ok(costs)
    }
}

impl Costs {
    fn read_line(&mut self, line: &str) -> Result<(), String> {
        let mut fields = line.split_whitespace();
        let mut field = |what: &str| fields.next().ok_or_else(|| format!("{what} is missing"));
        let name = field("the operation")?;
        let operation = Operation::ALL
            .into_iter()
            .find(|operation| operation.name() == name)
            .ok_or_else(|| format!("unknown operation `{name}`"))?;
        let world = field("the number of ranks")?;
        let world = world
            .parse()
            .ok()
            .filter(|&world| world > 1)
            .ok_or_else(|| format!("`{world}` is no number of ranks above one"))?;
        let variant: Variant = field("the variant")?.parse()?;
        for pair in fields {
            let (size, time) = pair
                .split_once('=')
                .ok_or_else(|| format!("`{pair}` is not bytes=microseconds"))?;
            let size = size.parse().map_err(|_| format!("`{size}` is no size"))?;
            let time = time
                .parse()
                .ok()
                .filter(|time: &f64| time.is_finite() && *time > 0.0)
                .ok_or_else(|| format!("`{time}` is no time"))?;
            self.insert(operation, variant, world, size, time);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# a comment\nall-gather 4 packets 1000=10 10000=100\n\nall-reduce 2 two-shot 4096=7.5\n";

    #[test]
    fn times_lie_on_lines_between_sizes() {
        let costs: Costs = TEXT.parse().unwrap();
        let predict = |size| {
            costs
                .predict(Operation::AllGather, Variant::Packets, 4, size)
                .unwrap()
        };
        assert!((predict(1000) - 10.0).abs() < 1e-9);
        assert!((predict(3000) - 30.0).abs() < 1e-9);
        assert!((predict(100_000) - 1000.0).abs() < 1e-6, "beyond the last");
        assert!((predict(100) - 1.0).abs() < 1e-9, "before the first");
        let alone = costs.predict(Operation::AllReduce, Variant::TwoShot, 2, 1 << 20);
        assert!((alone.unwrap() - 7.5).abs() < 1e-9);
        assert_eq!(
            costs.predict(Operation::AllGather, Variant::Pull, 4, 1),
            None
        );
    }

    #[test]
    fn other_worlds_compare_what_comes_in() {
        let costs: Costs = TEXT.parse().unwrap();
        // Of 8 ranks 7 send, of 4 ranks 3.
        let eight = costs.predict(Operation::AllGather, Variant::Packets, 8, 3000);
        let four = costs.predict(Operation::AllGather, Variant::Packets, 4, 7000);
        assert!((eight.unwrap() - four.unwrap()).abs() < 1e-6);
    }

    #[test]
    fn newer_times_replace_those_of_their_operations() {
        let mut costs: Costs = TEXT.parse().unwrap();
        costs.replace("all-gather 4 push 1000=5".parse().unwrap());
        let time = |operation, variant| costs.predict(operation, variant, 4, 1000);
        assert_eq!(time(Operation::AllGather, Variant::Packets), None);
        assert!(time(Operation::AllGather, Variant::Push).is_some());
        assert!(time(Operation::AllReduce, Variant::TwoShot).is_some());
    }

    #[test]
    fn text_goes_round() {
        let costs: Costs = TEXT.parse().unwrap();
        assert_eq!(costs.to_string().parse::<Costs>().unwrap(), costs);
        let built_in: Costs = super::super::BUILT_IN.parse().unwrap();
        assert!(!built_in.is_empty());
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, why) in [
            ("all-gather", "ranks is missing"),
            ("all-together 4 packets", "unknown operation"),
            ("all-gather 1 packets", "above one"),
            ("all-gather 4 parcels", "unknown variant"),
            ("all-gather 4 packets 12", "bytes=microseconds"),
            ("all-gather 4 packets x=1", "no size"),
            ("all-gather 4 packets 1=nan", "no time"),
        ] {
            let error = format!("#\n{text}").parse::<Costs>().unwrap_err();
            assert!(
                error.line == 2 && error.why.contains(why),
                "{text}: {error}"
            );
        }
    }
}
