//! The next token of a request, from its logits.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable token; else logits are divided by it.
    pub temperature: f64,
    /// Only the most probable tokens, whose probabilities add up to this.
    pub top_p: f64,
    /// Of the random numbers of a request.
    pub seed: u64,
}

impl Sampling {
    /// Whether the most probable token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }
}

/// Chooses the tokens of one request. It has random numbers of its own, so that its tokens do not depend on
/// other requests; and every rank has the same, so that all choose alike.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: StdRng,
}

impl Sampler {
    /// For one request.
    pub fn new(sampling: Sampling) -> Self {
        Sampler {
            sampling,
            random: StdRng::seed_from_u64(sampling.seed),
        }
    }

    /// The next token. Of equal logits the first counts. None if a logit is NaN or ∞, or all are −∞.
    pub fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if !largest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
            return None;
        }
        if self.sampling.is_greedy() {
            let best = |best: usize, at: usize| match logits[at] > logits[best] {
                true => at,
                false => best,
            };
            return (0..logits.len()).reduce(best).map(|best| best as u32);
        }
        let Sampling {
            temperature, top_p, ..
        } = self.sampling;
        let weight = |logit: &f32| (f64::from(logit - largest) / temperature).exp();
        let weights: Vec<f64> = logits.iter().map(weight).collect();
        let sum: f64 = weights.iter().sum();
        // All that weigh less have less than the rest to 1 together, so that they are cut.
        let least = (1.0 - top_p) * sum / weights.len() as f64;
        let mut order: Vec<usize> = (0..weights.len())
            .filter(|&at| weights[at] >= least)
            .collect();
        if least > 0.0 {
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        }
        let mut total = 0.0;
        let mut nucleus = Vec::new();
        for token in order {
            total += weights[token];
            nucleus.push((token, total));
            if total >= top_p * sum {
                break;
            }
        }
        let drawn = self.random.random::<f64>() * total;
        let chosen = nucleus
            .iter()
            .find(|(_, upto)| drawn < *upto)
            .or(nucleus.last());
        chosen.map(|(token, _)| *token as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(temperature: f64, top_p: f64, seed: u64) -> Vec<u32> {
        let mut sampler = Sampler::new(Sampling {
            temperature,
            top_p,
            seed,
        });
        (0..200)
            .map(|_| sampler.choose(&[0.0, 3.0, 2.0, 3.0, -1.0]).unwrap())
            .collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(tokens(0.0, 1.0, 7), [1; 200]);
    }

    #[test]
    fn logits_that_are_not_finite_have_no_token() {
        const INF: f32 = f32::INFINITY;
        for temperature in [0.0, 1.0] {
            let mut sampler = Sampler::new(Sampling {
                temperature,
                top_p: 1.0,
                seed: 7,
            });
            for logits in [
                [f32::NAN, 1.0],
                [1.0, f32::NAN],
                [-f32::NAN, 1.0],
                [INF, 0.0],
                [-INF; 2],
            ] {
                assert_eq!(sampler.choose(&logits), None, "{logits:?} at {temperature}");
            }
            // A token that is ruled out is none.
            assert_eq!(sampler.choose(&[-INF, 1.0]), Some(1));
        }
    }

    #[test]
    fn top_p_cuts_the_tail_and_seeds_repeat() {
        // 1 and 3 have 0.41 of the probability each.
        let some = tokens(1.0, 0.8, 7);
        assert!(some.iter().all(|token| [1, 3].contains(token)));
        assert!(some.contains(&1) && some.contains(&3));
        assert_eq!(some, tokens(1.0, 0.8, 7));
        assert_ne!(some, tokens(1.0, 0.8, 8));
        assert!(tokens(1.0, 1.0, 7).contains(&2));
    }
}
