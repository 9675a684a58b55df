//! What collectives of a library take, as measured.

use super::error::SimulateError;
use super::machine::whole;
use crate::plan::{Collective, Transport};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use warpweave_comm::collective::interpolate;

/// The libraries that do collectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collectives {
    /// NCCL.
    pub nccl: CollectiveTimes,
    /// `warpweave_comm`'s own over symmetric memory, in the variant that it selects.
    pub symmetric_memory: CollectiveTimes,
}

impl Collectives {
    /// The library after a transport.
    pub fn of(&self, transport: Transport) -> &CollectiveTimes {
        match transport {
            Transport::Nccl => &self.nccl,
            _ => &self.symmetric_memory,
        }
    }

    pub(super) fn validate(&self) -> Result<(), SimulateError> {
        self.nccl.validate("nccl")?;
        self.symmetric_memory.validate("symmetric_memory")
    }
}

/// Times of one library's collectives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveTimes {
    /// Ranks among which they were measured.
    pub ranks: usize,
    /// The part of the SMs that they take from GEMMs.
    #[serde(alias = "multiprocessors")]
    pub sms: f64,
    /// The part of their rate that is left while GEMMs hold all SMs; more of it while they hold fewer.
    #[serde(default = "whole")]
    pub during_gemms: f64,
    /// By the collective's name, `all-gather` at least: pairs of bytes and µs, without the cost of the clock,
    /// bytes rising. Bytes are those of an all-gather's input, a reduce-scatter's input and an all-reduce's
    /// message.
    pub times: Times,
    /// The same among two ranks, where that was measured: a library then takes other algorithms and fewer
    /// channels.
    #[serde(default, skip_serializing_if = "Times::is_empty")]
    pub pairs: Times,
    /// In files of the release before. It is not used any more.
    #[serde(default, skip_serializing)]
    pub by_engine: IgnoredAny,
}

/// By a collective's name pairs of bytes and µs.
type Times = BTreeMap<String, Vec<(f64, f64)>>;

impl CollectiveTimes {
    /// The time of a collective of `ranks` whose larger side has `whole` bytes, from the last rank's entry,
    /// µs.
    ///
    /// Between measured sizes it is on the line through them in logarithms. Among other ranks than were
    /// measured it is the time of the size with as many bytes into a rank; what was not measured is taken for
    /// such an all-gather.
    pub fn time(&self, collective: Collective, whole: f64, ranks: usize) -> f64 {
        let incoming = incoming(collective, whole, ranks);
        let name = collective.to_string();
        let pair = self.pairs.get(&name).filter(|_| ranks == 2);
        let (collective, among, times) = match (pair, self.times.get(&name)) {
            (Some(times), _) => (collective, 2, times),
            (None, Some(times)) => (collective, self.ranks, times),
            (None, None) => (Collective::AllGather, self.ranks, &self.times[ALL_GATHER]),
        };
        let measured = incoming / self::incoming(collective, 1.0, among);
        let size = match collective {
            Collective::AllGather => measured / among as f64,
            _ => measured,
        };
        interpolate(times, size.max(1.0))
    }

    fn validate(&self, library: &str) -> Result<(), SimulateError> {
        let refuse = |what: &str| {
            Err(SimulateError::Malformed {
                what: format!("collectives.{library}: {what}"),
            })
        };
        if self.ranks < 2 {
            return refuse("a collective has two ranks or more");
        }
        if !(0.0..=1.0).contains(&self.sms) {
            return refuse("sms is a part of 1");
        }
        if !(self.during_gemms > 0.0 && self.during_gemms <= 1.0) {
            return refuse("during_gemms is a part of 1, above 0");
        }
        if !self.times.contains_key(ALL_GATHER) {
            return refuse("there are no times of the all-gather");
        }
        for (name, times) in self.times.iter().chain(&self.pairs) {
            let figures = times.iter().flat_map(|&(bytes, us)| [bytes, us]);
            let rises = times.windows(2).all(|pair| pair[0].0 < pair[1].0);
            if times.is_empty() || !rises || !figures.clone().all(|f| f.is_finite() && f > 0.0) {
                return refuse(&format!("{name} is no list of rising bytes and their µs"));
            }
        }
        Ok(())
    }
}

const ALL_GATHER: &str = "all-gather";

/// The fewest bytes into each rank: the shards of the others once, or twice where results are sent on.
pub(super) fn incoming(collective: Collective, whole: f64, ranks: usize) -> f64 {
    let others = whole * ranks.saturating_sub(1) as f64 / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * others,
        Collective::AllGather | Collective::ReduceScatter => others,
    }
}
