//! Correcting the model by what was measured.

use super::{Measurement, Request};
use crate::algorithms::Configuration;
use crate::plan::Problem;
use crate::simulate::simulate;

/// The distance, in doublings of M, N, K or the world, at which a measurement counts half as much as one right here.
const HALF_AT: f64 = 1.0;

/// The weight with which the model alone has the say, where a measurement right here has 1.
const PRIOR: f64 = 0.1;

/// How much less a measurement of the same algorithm with other parameters counts.
const OTHER_PARAMETERS: f64 = 0.25;

/// On what an expectation rests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Basis {
    /// The model alone.
    Model,
    /// The model times a factor, from this many measurements of other problems or parameters.
    Corrected {
        /// Measured over predicted, as far as it carries.
        factor: f64,
        /// Measurements.
        points: usize,
    },
    /// This very configuration and problem was measured.
    Measured {
        /// The median of its measurements, µs.
        us: f64,
    },
}

impl Basis {
    /// What is expected where the model predicts `predicted_us`.
    pub fn expected(self, predicted_us: f64) -> f64 {
        match self {
            Basis::Model => predicted_us,
            Basis::Corrected { factor, .. } => predicted_us * factor,
            Basis::Measured { us } => us,
        }
    }
}

/// A measurement of an operation, with how far the model errs there.
pub(super) struct Point<'a> {
    measured: &'a Measurement,
    /// Measured over predicted.
    ratio: f64,
}

impl<'a> Point<'a> {
    /// The measurements of the request's operation and element type. What the machine's model cannot predict, more ranks
    /// than it has GPUs, tells nothing of it.
    pub(super) fn of(request: &Request<'a>) -> Vec<Self> {
        let mut points = Vec::new();
        for measured in request.measurements.iter() {
            let Measurement {
                configuration,
                world,
                problem,
                us,
            } = measured;
            if configuration.operation() != request.operation
                || problem.dtype != request.problem.dtype
            {
                continue;
            }
            let timeline = configuration
                .plans(*world, problem)
                .ok()
                .and_then(|plans| simulate(&plans, request.machine, 1).ok());
            if let Some(timeline) = timeline {
                let ratio = us / timeline.total().max(f64::MIN_POSITIVE);
                points.push(Point { measured, ratio });
            }
        }
        points
    }
}

/// What the measurements say of `configuration` on the request's problem.
///
/// The factor is the weighted geometric mean of measured over predicted, with 1, the model's own word, among the terms. A
/// weight halves with each doubling of a size.
pub(super) fn basis(
    points: &[Point<'_>],
    configuration: &Configuration,
    request: &Request<'_>,
) -> Basis {
    let mut here = Vec::new();
    let (mut weights, mut logs, mut count) = (PRIOR, 0.0, 0);
    for Point { measured, ratio } in points {
        if measured.configuration.algorithm() != configuration.algorithm() {
            continue;
        }
        let same = measured.configuration == *configuration;
        let distance = distance(
            (measured.world, &measured.problem),
            (request.world, &request.problem),
        );
        if same && distance == 0.0 {
            here.push(measured.us);
            continue;
        }
        let kin = if same { 1.0 } else { OTHER_PARAMETERS };
        let weight = kin * 0.5f64.powf(distance / HALF_AT);
        weights += weight;
        logs += weight * ratio.ln();
        count += 1;
    }
    here.sort_by(f64::total_cmp);
    match (here.get(here.len() / 2), count) {
        (Some(&us), _) => Basis::Measured { us },
        (None, 0) => Basis::Model,
        (None, points) => Basis::Corrected {
            factor: (logs / weights).exp(),
            points,
        },
    }
}

/// How far two problems lie apart, in doublings of their sizes.
fn distance(one: (usize, &Problem), other: (usize, &Problem)) -> f64 {
    let sizes = |(world, p): (usize, &Problem)| [world, p.m, p.n, p.k];
    let doublings = |(a, b): (usize, usize)| (a as f64 / b as f64).log2().abs();
    let pairs = sizes(one).into_iter().zip(sizes(other));
    pairs.map(doublings).sum()
}
