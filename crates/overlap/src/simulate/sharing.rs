//! Sharing: who gets how much of what while several things run.

use std::collections::BTreeMap;

/// Something that several jobs can use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Resource {
    /// The SMs of a GPU.
    Sms(usize),
    /// A GPU's memory.
    Memory(usize),
    /// A GPU's link into its node's switch.
    LinkOut(usize),
    /// The way back.
    LinkIn(usize),
    /// A GPU's port to other nodes.
    NetworkOut(usize),
    /// The way back.
    NetworkIn(usize),
    /// A GPU's copy engines.
    Engines(usize),
    /// A GPU's power and memory, as far as GEMMs and transfers take them from each other.
    Power(usize),
}

impl Resource {
    /// The GPU whose it is.
    pub(super) const fn gpu(self) -> usize {
        match self {
            Resource::Sms(gpu)
            | Resource::Memory(gpu)
            | Resource::LinkOut(gpu)
            | Resource::LinkIn(gpu)
            | Resource::NetworkOut(gpu)
            | Resource::NetworkIn(gpu)
            | Resource::Engines(gpu)
            | Resource::Power(gpu) => gpu,
        }
    }
}

/// The parts of resources that a job takes while it runs at full speed; none above 1.
pub(crate) type Loads = Vec<(Resource, f64)>;

/// The speeds of all jobs, as parts of full speed: max-min fair, so that none can be raised but at the cost
/// of one that is not faster.
///
/// All speeds rise together; whoever meets a full resource, or full speed, stays where it is (progressive
/// filling). `capacity` is 1 for a resource that nothing slows down.
pub(super) fn speeds(jobs: &[&Loads], capacity: impl Fn(Resource) -> f64) -> Vec<f64> {
    let mut resources: Vec<Resource> = jobs.iter().flat_map(|j| j.iter().map(|l| l.0)).collect();
    resources.sort_unstable();
    resources.dedup();
    let index = |r: Resource| resources.partition_point(|&x| x < r);
    let loads: Vec<Vec<(usize, f64)>> = jobs
        .iter()
        .map(|job| job.iter().map(|&(r, load)| (index(r), load)).collect())
        .collect();
    let mut free: Vec<f64> = resources.iter().map(|&r| capacity(r)).collect();
    let mut speeds = vec![0.0; jobs.len()];
    let mut rising: Vec<usize> = (0..jobs.len()).collect();
    let mut level = 0.0;
    while !rising.is_empty() {
        let mut demand = vec![0.0; resources.len()];
        for &(r, load) in rising.iter().flat_map(|&j| &loads[j]) {
            demand[r] += load;
        }
        let room = |r: usize| (free[r] / demand[r]).max(0.0);
        let step = (0..resources.len())
            .filter(|&r| demand[r] > 0.0)
            .map(room)
            .fold(1.0 - level, f64::min);
        level += step;
        let full: Vec<bool> = (0..resources.len())
            .map(|r| demand[r] > 0.0 && room(r) <= step * (1.0 + 1e-12) + 1e-15)
            .collect();
        for (free, demand) in free.iter_mut().zip(&demand) {
            *free -= demand * step;
        }
        rising.retain(|&job| {
            let stays = level >= 1.0 - 1e-12 || loads[job].iter().any(|&(r, l)| l > 0.0 && full[r]);
            if stays {
                speeds[job] = level.min(1.0);
            }
            !stays
        });
    }
    speeds
}

/// The part of the SMs that it needs with which a GEMM begins. `pushChunks` in one chunk on four GPUs, whose
/// last waves leave 0.3 of the SMs to the next GEMM, gains nothing from two streams.
const LEAST: f64 = 0.4;

/// A job among others that are granted SMs one after the other.
pub(super) struct InTurn<'a> {
    /// What it takes at full speed.
    pub(super) loads: &'a Loads,
    /// How many go before it.
    pub(super) place: usize,
    /// Whether it gains nothing from a few SMs: a GEMM ends a wave after the last of its blocks has begun.
    pub(super) together: bool,
}

impl InTurn<'_> {
    /// Of what is left, the SMs that a job takes without going on, for they are too few of what it needs.
    fn stands_on(&self, left: impl Fn(Resource) -> f64) -> Option<(Resource, f64)> {
        let places = |r: &Resource| matches!(r, Resource::Sms(_));
        let (resource, load) = *self.loads.iter().find(|(r, _)| places(r))?;
        let left = left(resource);
        (self.together && left < load * LEAST).then_some((resource, left))
    }
}

/// As [`speeds`], but those at place 0 first, those at place 1 with what they leave, and so on.
pub(super) fn speeds_in_turn(jobs: &[InTurn<'_>], capacity: impl Fn(Resource) -> f64) -> Vec<f64> {
    let mut used: BTreeMap<Resource, f64> = BTreeMap::new();
    let mut found = vec![0.0; jobs.len()];
    let last = jobs.iter().map(|job| job.place).max();
    for place in 0..=last.unwrap_or(0) {
        let left = |r| (capacity(r) - used.get(&r).unwrap_or(&0.0)).max(0.0);
        let here = (0..jobs.len()).filter(|&i| jobs[i].place == place);
        let (stands, goes): (Vec<_>, Vec<_>) = here
            .map(|i| (i, jobs[i].stands_on(left)))
            .partition(|(_, stands)| stands.is_some());
        let turn: Vec<&Loads> = goes.iter().map(|&(i, _)| jobs[i].loads).collect();
        let speeds = speeds(&turn, left);
        for (resource, taken) in stands.into_iter().filter_map(|(_, stands)| stands) {
            *used.entry(resource).or_default() += taken;
        }
        for ((i, _), speed) in goes.into_iter().zip(speeds) {
            found[i] = speed;
            for &(resource, load) in jobs[i].loads {
                *used.entry(resource).or_default() += load * speed;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{InTurn, Resource::*, speeds, speeds_in_turn};

    #[test]
    fn alone_at_full_speed() {
        assert_eq!(speeds(&[&vec![(LinkOut(0), 0.9)]], |_| 1.0), [1.0]);
        assert_eq!(speeds(&[&vec![]], |_| 1.0), [1.0]);
    }

    #[test]
    fn what_one_cannot_use_is_the_others() {
        // Three share a link; one of them is held back elsewhere.
        let (a, b) = (vec![(LinkIn(0), 1.0)], vec![(LinkIn(0), 1.0)]);
        let slow = vec![(LinkIn(0), 1.0), (LinkOut(1), 1.0)];
        let found = speeds(
            &[&a, &b, &slow],
            |r| if r == LinkOut(1) { 0.1 } else { 1.0 },
        );
        for (found, expected) in found.iter().zip([0.45, 0.45, 0.1]) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
    }

    #[test]
    fn a_gemm_begins_when_enough_of_its_blocks_have_places() {
        let begun = |together| {
            let (first, second) = (vec![(Sms(0), 0.75)], vec![(Sms(0), 1.0)]);
            let job = |loads, place| InTurn {
                loads,
                place,
                together,
            };
            speeds_in_turn(&[job(&first, 0), job(&second, 1)], |_| 1.0)
        };
        assert_eq!(begun(true), [1.0, 0.0]);
        assert_eq!(begun(false), [1.0, 0.25]);
    }
}
