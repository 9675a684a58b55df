//! Correcting the model by what was measured.
//!
//! How far the model errs, the logarithm of measured over predicted, is taken for a sum of three parts, each
//! of which changes slowly from one problem to the next: one that all configurations of an operation have in
//! common (how fast the GPUs happened to be), one of the algorithm, and one of the algorithm with these
//! parameters. The best estimate where nothing was measured is then a linear one (Gaussian process
//! regression, kriging): a measurement counts the more, the nearer its problem and its parameters are and the
//! fewer others imply the same, and where none is near, the model's own prediction stands.

use super::regression;
use super::{Measurement, Request};
use crate::algorithms::{Algorithm, Configuration, Options, Parameter, Values};
use crate::operation::Operation;
use crate::plan::Problem;
use crate::simulate::simulate;

// These figures are those of the errors of h200x4 at 393 figures of two and four H200s
// (`tests/simulate/measured`), rounded: what makes the errors that were found likely, and chooses well for
// problems left out. Only the ratios of the four deviations count.

/// The standard deviation of what all configurations of an operation have in common, in logarithms as the
/// next three.
const COMMON: f64 = 0.03;

/// That of what an algorithm has to itself.
const ALGORITHM: f64 = 0.05;

/// That of what a configuration has to itself.
const PARAMETERS: f64 = 0.05;

/// That of a measurement: by how much medians of two runs differ.
const NOISE: f64 = 0.025;

/// The distance, in doublings of M, N or K, at which two problems have half of it in common.
const HALF_AT: f64 = 4.0;

/// How many such doublings a doubling of the ranks is worth: other links are busy then.
const RANKS: f64 = 6.0;

/// Algorithms with the same schedule, which differ only in how a weight is stored and in a bias: the second
/// of each pair stands for both.
const SAME_SCHEDULE: [(&str, &str); 5] = [
    ("rowParallelLinearPipeline", "allReducePipeline"),
    ("fusedRowParallelLinear", "fusedAllReduce"),
    ("fusedColumnParallelLinear", "fusedAllGather"),
    ("linearReduceScatterPipeline", "reduceScatterPipeline"),
    ("fusedLinearReduceScatter", "fusedReduceScatter"),
];

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

/// What the measurements imply for an operation.
pub(super) struct Correction<'a> {
    measured: Vec<&'a Measurement>,
    /// Of each, by which multiple of its covariance with a configuration it moves the estimate.
    weights: Vec<f64>,
}

impl<'a> Correction<'a> {
    /// From the measurements of the request's operation, or one that differs in how a weight is stored,
    /// element type, scales and activation. What the machine's model cannot predict, more ranks than it has
    /// GPUs, tells nothing of it.
    pub(super) fn of(request: &Request<'a>) -> Self {
        let (mut measured, mut errors) = (Vec::new(), Vec::new());
        for one in request.measurements.iter() {
            let Measurement {
                configuration,
                world,
                problem,
                us,
            } = one;
            let kind = |p: &Problem| (p.dtype, p.scaling, p.activation);
            if gemm_of(configuration.operation()) != gemm_of(request.operation)
                || kind(problem) != kind(&request.problem)
            {
                continue;
            }
            let timeline = configuration
                .plans(*world, problem)
                .ok()
                .and_then(|plans| simulate(&plans, request.machine, 1).ok());
            if let Some(timeline) = timeline {
                measured.push(one);
                errors.push((us / timeline.total().max(f64::MIN_POSITIVE)).ln());
            }
        }
        let covariance = |i: usize, j: usize| {
            let [one, other] = [i, j].map(|at: usize| Nearby::of(measured[at]));
            one.covariance(&other) + if i == j { NOISE * NOISE } else { 0.0 }
        };
        let weights = regression::weights(&errors, covariance);
        Correction { measured, weights }
    }

    /// What is to be expected of `configuration` on the request's problem.
    pub(super) fn basis(&self, configuration: &Configuration, request: &Request<'_>) -> Basis {
        let here = Nearby {
            configuration,
            world: request.world,
            problem: &request.problem,
        };
        let same = |m: &&&Measurement| {
            m.configuration == *configuration && here.distance(&Nearby::of(m)) == 0.0
        };
        let mut times: Vec<f64> = self.measured.iter().filter(same).map(|m| m.us).collect();
        times.sort_by(f64::total_cmp);
        if let Some(&us) = times.get(times.len() / 2) {
            return Basis::Measured { us };
        }
        if self.measured.is_empty() {
            return Basis::Model;
        }
        let moved = self.measured.iter().zip(&self.weights);
        let error: f64 = moved
            .map(|(measured, weight)| weight * here.covariance(&Nearby::of(measured)))
            .sum();
        Basis::Corrected {
            factor: error.exp(),
            points: self.measured.len(),
        }
    }
}

/// What the model errs about.
struct Nearby<'a> {
    configuration: &'a Configuration,
    world: usize,
    problem: &'a Problem,
}

impl<'a> Nearby<'a> {
    fn of(measured: &'a Measurement) -> Self {
        Nearby {
            configuration: &measured.configuration,
            world: measured.world,
            problem: &measured.problem,
        }
    }

    /// What the model's errors at two places have in common: 0.5 to the power of a distance is a covariance,
    /// and so are sums and GEMMs of such.
    fn covariance(&self, other: &Nearby<'_>) -> f64 {
        let (one, two) = (self.configuration, other.configuration);
        let mut common = COMMON * COMMON;
        if schedule(one.algorithm()) == schedule(two.algorithm()) {
            let changed = changed(
                one.algorithm().parameters,
                [one, two].map(Configuration::options),
            );
            common += ALGORITHM * ALGORITHM + PARAMETERS * PARAMETERS * 0.5f64.powf(changed);
        }
        common * 0.5f64.powf(self.distance(other) / HALF_AT)
    }

    /// How far two problems lie apart, in doublings of a size.
    fn distance(&self, other: &Nearby<'_>) -> f64 {
        let (one, two) = (self.problem, other.problem);
        let sizes = [(one.m, two.m), (one.n, two.n), (one.k, two.k)];
        let sizes: f64 = sizes.into_iter().map(doublings).sum();
        sizes + RANKS * doublings((self.world, other.world))
    }
}

fn doublings((one, other): (usize, usize)) -> f64 {
    (one as f64 / other as f64).log2().abs()
}

/// How far two choices of these parameters lie apart: doublings of counts, and 1 for another flag.
fn changed(parameters: &[Parameter], [one, other]: [&Options; 2]) -> f64 {
    let change = |Parameter { key, values, .. }: &Parameter| match values {
        Values::Counts(_) => doublings((one.count(key), other.count(key))),
        Values::Choices(_) => f64::from(u8::from(one.choice(key) != other.choice(key))),
    };
    parameters.iter().map(change).sum()
}

/// The name of the algorithm whose schedule it has.
fn schedule(algorithm: &Algorithm) -> &'static str {
    let same = SAME_SCHEDULE
        .iter()
        .find(|(name, _)| *name == algorithm.name);
    same.map_or(algorithm.name, |(_, schedule)| schedule)
}

/// The operation with a plain weight that this one is but for how its weight is stored and for a bias.
fn gemm_of(operation: Operation) -> Operation {
    match operation {
        Operation::RowParallelLinear => Operation::MatmulAllReduce,
        Operation::ColumnParallelLinear => Operation::AllGatherMatmul,
        Operation::LinearReduceScatter => Operation::MatmulReduceScatter,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::SAME_SCHEDULE;
    use crate::algorithms;
    use crate::plan::Problem;
    use crate::simulate::{Machine, simulate};
    use warpweave_symm_mem::DType;

    #[test]
    fn what_has_the_same_schedule_takes_the_same_time() {
        let machine = Machine::named("h200x4").unwrap();
        let problem = Problem::new(1024, 512, 2048, DType::Bf16);
        for (one, other) in SAME_SCHEDULE {
            let [one, other] = [one, other].map(|name| {
                let plans = algorithms::find(name).unwrap().plans(4, &problem).unwrap();
                simulate(&plans, &machine, 1).unwrap().total()
            });
            assert_eq!(one, other);
        }
    }
}
