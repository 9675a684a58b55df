//! Axes: the place of a value, and ticks.

use maud::{Markup, html};

use super::short;

/// A range of values on a line from 0 to 1.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    is_logarithmic: bool,
    low: f64,
    high: f64,
    /// Values with a line of the grid, and what is written there.
    pub ticks: Vec<(f64, Option<String>)>,
}

impl Axis {
    /// From 0 to at least `high`, in round steps.
    pub fn linear(high: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let decade = 10f64.powf((high / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
        let step = steps.into_iter().find(|step| high / step <= 6.0);
        let step = step.unwrap_or(steps[3]);
        let count = (high / step - 1e-9).ceil() as usize;
        let digits = (-step.log10().floor()).max(0.0) as usize;
        let tick = |i: usize| {
            let value = i as f64 * step;
            (value, Some(format!("{value:.digits$}")))
        };
        Self {
            is_logarithmic: false,
            low: 0.0,
            high: count as f64 * step,
            ticks: (0..=count).map(tick).collect(),
        }
    }

    /// Over all positive `values`, from and to one of 1, 2 and 5 times a power of ten; `None` where there are
    /// none.
    pub fn logarithmic(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let positive = values.into_iter().filter(|&v| v > 0.0 && v.is_finite());
        let (low, high) = positive.fold((f64::INFINITY, 0.0), |(low, high), v| {
            (v.min(low), v.max(high))
        });
        if high == 0.0 {
            return None;
        }
        let first = low.log10().floor() as i32 - 1;
        let last = high.log10().ceil() as i32 + 1;
        let round: Vec<(f64, u32)> = (first..=last)
            .flat_map(|decade| [1, 2, 5].map(|step| (scaled(step, decade), step)))
            .collect();
        let from = round.iter().rposition(|&(v, _)| v <= low * (1.0 + 1e-9));
        let to = round.iter().position(|&(v, _)| v >= high * (1.0 - 1e-9));
        let (from, mut to) = (from?, to?);
        if from == to {
            to += 1;
        }
        let ticks = &round[from..=to];
        let tens = ticks.iter().filter(|(_, step)| *step == 1).count();
        let ticks = ticks.iter().map(|&(value, step)| {
            let is_told = step == 1 || tens <= 3;
            (value, is_told.then(|| value.to_string()))
        });
        Some(Self::between(ticks.collect()))
    }

    /// Values that are doubled, or more, from one to the next, each with its words.
    pub fn doubling(ticks: impl IntoIterator<Item = (f64, String)>) -> Option<Self> {
        let ticks = ticks.into_iter().map(|(value, words)| (value, Some(words)));
        let mut ticks: Vec<_> = ticks.filter(|(value, _)| *value > 0.0).collect();
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        ticks.dedup_by(|a, b| a.0 == b.0);
        if ticks.is_empty() {
            return None;
        }
        let mut axis = Self::between(ticks);
        axis.low -= 0.1;
        axis.high += 0.1;
        Some(axis)
    }

    fn between(ticks: Vec<(f64, Option<String>)>) -> Self {
        let ends = ticks.first().zip(ticks.last());
        let (low, high) = ends.map_or((1.0, 10.0), |(first, last)| (first.0, last.0));
        Self {
            is_logarithmic: true,
            low: low.log10(),
            high: high.log10(),
            ticks,
        }
    }

    /// The place of a value: 0 at the low end, 1 at the high one.
    pub fn place(&self, value: f64) -> f64 {
        let value = match self.is_logarithmic {
            true => value.log10(),
            false => value,
        };
        (value - self.low) / (self.high - self.low)
    }

    /// The axis below a drawing: lines of the grid through all of it, what is written there, and what the
    /// axis is of.
    pub fn below(
        &self,
        label: &str,
        (left, width): (f64, f64),
        (top, bottom): (f64, f64),
    ) -> Markup {
        html! {
            @for (value, words) in &self.ticks {
                @let x = short(left + width * self.place(*value));
                line .grid x1=(x) x2=(x) y1=(top) y2=(bottom) {}
                @if let Some(words) = words {
                    text .quiet.centre x=(x) y=(bottom + 15.0) { (words) }
                }
            }
            text .quiet.centre x=(left + width / 2.0) y=(bottom + 31.0) { (label) }
        }
    }

    /// Whether a value lies between the ends.
    pub fn holds(&self, value: f64) -> bool {
        (-1e-9..=1.0 + 1e-9).contains(&self.place(value))
    }
}

/// `step`·10^`decade`, as exact as its decimal digits.
fn scaled(step: u32, decade: i32) -> f64 {
    format!("{step}e{decade}").parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(axis: &Axis) -> Vec<&str> {
        let ticks = axis.ticks.iter();
        ticks.filter_map(|(_, words)| words.as_deref()).collect()
    }

    #[test]
    fn ends_are_round_and_hold_all_values() {
        let axis = Axis::logarithmic([0.025, 0.81, f64::NAN, 0.0]).unwrap();
        assert_eq!(told(&axis), ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
        assert!(axis.holds(0.025) && axis.holds(0.81) && !axis.holds(0.01) && !axis.holds(1.1));
        assert!((axis.place(0.1) - axis.place(0.05) - axis.place(0.02 * 2.0)).abs() < 1e-9);
        let wide = Axis::logarithmic([3.0, 2500.0]).unwrap();
        assert_eq!(
            told(&wide),
            [
                "2", "5", "10", "20", "50", "100", "200", "500", "1000", "2000", "5000"
            ]
        );
        let wider = Axis::logarithmic([3.0, 25000.0]).unwrap();
        assert_eq!(told(&wider), ["10", "100", "1000", "10000"]);
        assert_eq!(told(&Axis::logarithmic([1.0]).unwrap()), ["1", "2"]);
        assert!(Axis::logarithmic([]).is_none() && Axis::logarithmic([0.0]).is_none());
    }

    #[test]
    fn linear_steps_are_round() {
        assert_eq!(
            told(&Axis::linear(0.97)),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(
            told(&Axis::linear(23.0)),
            ["0", "5", "10", "15", "20", "25"]
        );
        assert_eq!(told(&Axis::linear(0.0)).first(), Some(&"0.0"));
        assert_eq!(Axis::linear(6.0).place(3.0), 0.5);
    }

    #[test]
    fn one_value_alone_lies_in_the_middle() {
        let axis = Axis::doubling([(4.0, "4".into()), (4.0, "4".into())]).unwrap();
        assert_eq!((told(&axis), axis.place(4.0)), (vec!["4"], 0.5));
        assert!(Axis::doubling([]).is_none());
    }
}
