//! Measuring on this machine what could compute a layer.

use super::Result;
use super::linear::Linear;
use crate::algorithms::Configuration;
use crate::execute::{ExecuteBackend, ExecuteError, Operands, Prepared};
use crate::plan::Problem;
use crate::select::Measurement;
use warpweave_symm_mem::{BackendKind, agree};

/// Rounds in which every candidate runs once.
const ROUNDS: usize = 9;

/// Calls back to back that are timed together.
const CALLS: usize = 4;

/// The best of a ranking that are tried, besides the best of each algorithm.
const BEST: usize = 3;

/// A time of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Rows.
    pub m: usize,
    /// The schedule.
    pub configuration: Configuration,
    /// The median of a call on the slowest rank, µs.
    pub us: f64,
}

impl<B: ExecuteBackend> Linear<B> {
    /// Collective. The layer stays as it was until all is measured.
    pub fn tune(&mut self, stream: &B::Stream, operands: &Operands<'_>) -> Result<Vec<Trial>> {
        let mut trials = Vec::new();
        for class in self.rankings()? {
            let mut candidates = Vec::new();
            for configuration in worth_trying(&class.ranking) {
                candidates.extend(self.prepare(&configuration, class.last)?);
            }
            let times = self.measure(stream, operands, class.last, &candidates)?;
            let found = candidates.iter().zip(times).map(|(one, us)| Trial {
                m: class.last,
                configuration: one.schedule().configuration().clone(),
                us,
            });
            trials.extend(found);
        }
        let (world, problem) = (self.world(), self.problem);
        let found: Vec<Measurement> = trials
            .iter()
            .map(|trial| Measurement {
                configuration: trial.configuration.clone(),
                world,
                problem: Problem {
                    m: trial.m,
                    ..problem
                },
                us: trial.us,
            })
            .collect();
        self.learn(&found);
        self.choose()?;
        Ok(trials)
    }

    /// Medians of single calls on the slowest rank, µs.
    fn measure(
        &self,
        stream: &B::Stream,
        operands: &Operands<'_>,
        m: usize,
        candidates: &[Prepared<B>],
    ) -> Result<Vec<f64>> {
        // Ranks that run alone are measured at the same time all the same: that is how they are used.
        let exchange = self.layers.executor().exchange().as_ref();
        let backend = self.executor().backend();
        let tuned = candidates.iter().try_for_each(|one| match B::KIND {
            BackendKind::Cuda => one.tune(stream, operands, m),
            BackendKind::Host => Ok(()),
        });
        agree(exchange, "tuning of the GEMMs of a layer", tuned)?;
        let events = backend
            .event()
            .and_then(|from| Ok((from, backend.event()?)));
        let (from, to) = agree(
            exchange,
            "events of a tuning",
            events.map_err(ExecuteError::from),
        )?;
        let mut times = vec![Vec::new(); candidates.len()];
        // The first round warms up.
        for round in 0..=ROUNDS {
            for (one, times) in candidates.iter().zip(&mut times) {
                exchange.barrier("layers.tune")?;
                let sample = || -> Result<f64, ExecuteError> {
                    backend.record(&from, stream)?;
                    (0..CALLS).try_for_each(|_| one.run(stream, operands, m))?;
                    backend.record(&to, stream)?;
                    one.executor().synchronize(stream)?;
                    Ok(backend.elapsed(&from, &to)?.as_secs_f64() * 1e6 / CALLS as f64)
                };
                let us = agree(exchange, "a call of a tuning", sample())?;
                if round > 0 {
                    times.push(us);
                }
            }
        }
        let medians: Vec<f64> = times
            .into_iter()
            .map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            })
            .collect();
        let mine: Vec<u8> = medians.iter().flat_map(|us| us.to_le_bytes()).collect();
        let all = exchange.all_gather("layers.times", &mine)?;
        let of = |rank: &Vec<u8>, place: usize| {
            let (times, _) = rank.as_chunks::<8>();
            times
                .get(place)
                .map_or(f64::INFINITY, |us| f64::from_le_bytes(*us))
        };
        // Two digits after the point: what is kept in text is what all ranks know.
        let slowest = |place| all.iter().map(|rank| of(rank, place)).fold(0.01, f64::max);
        Ok((0..candidates.len())
            .map(|place| (slowest(place) * 100.0).round() / 100.0)
            .collect())
    }
}

/// The best of a ranking, and the best of each algorithm.
fn worth_trying(ranking: &[Configuration]) -> Vec<Configuration> {
    let mut some: Vec<Configuration> = Vec::new();
    for configuration in ranking {
        let is_new = some
            .iter()
            .all(|one| one.algorithm() != configuration.algorithm());
        if some.len() < BEST || is_new {
            some.push(configuration.clone());
        }
    }
    some
}
