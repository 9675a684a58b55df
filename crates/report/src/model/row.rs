//! A row of a report: an implementation with what was measured of it.

use serde::{Deserialize, Serialize};

use super::{Group, Limit, Metric, Times, Verdict};
use crate::statistics::Spread;

/// Whether a row ran, and was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It ran and every element was right.
    Ok,
    /// It ran and gave wrong results.
    Wrong,
    /// This machine or build cannot run it.
    #[default]
    NotRun,
}

/// Who measured a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// This program, in this run.
    #[default]
    Ours,
    /// NCCL, called by this program in this run; suite `collectives` only.
    Nccl,
    /// Another program, on its own. Its results are taken to be right.
    Peer,
}

/// One implementation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub implementation: String,
    /// Who measured it.
    #[serde(default)]
    pub kind: Kind,
    /// The group in whose rounds it was measured, by its place in `groups`; `null` for peers.
    pub group: Option<usize>,
    /// Whether it does only a part of the operation, for orientation.
    #[serde(default)]
    pub part: bool,
    /// Whether it ran, and was right.
    pub status: Status,
    /// Why it did not run or was wrong, or why there are no graphs.
    pub reason: Option<String>,
    /// How bytes travel between the ranks.
    #[serde(default)]
    pub transport: Vec<String>,
    /// Kernels, GEMMs and collectives of a call; copies by copy engine, signals and waits are not counted.
    pub launches: Option<usize>,
    /// One call, the ranks aligned before it.
    pub single_ms: Option<Spread>,
    /// Collectives: one graph launch, the ranks aligned before it.
    pub graph_single_ms: Option<Spread>,
    /// One of several calls back to back.
    pub back_to_back_ms: Option<Spread>,
    /// One of several graph launches back to back.
    pub graph_ms: Option<Spread>,
    /// Suite `layers`: µs that a call takes the host to enqueue on an idle stream, on the slowest rank.
    #[serde(default)]
    pub enqueue_us: Option<Spread>,
    /// The same where M changes from call to call.
    #[serde(default)]
    pub enqueue_changing_us: Option<Spread>,
    /// Twice the multiply-adds of a rank over the median of `single_ms`.
    pub tflops: Option<f64>,
    /// `single_ms` of the baseline in the same group over this one's.
    pub times_baseline: Option<f64>,
    /// Collectives: NCCL's median over this row's.
    #[serde(default)]
    pub times_nccl: Ratios,
    /// The limit of the same group over `single_ms`.
    pub efficiency: Option<f64>,
    /// A time of the same problem that others published, on another machine.
    pub published_ms: Option<f64>,
    /// The algorithms of the row's GEMMs.
    #[serde(default)]
    pub algorithms: Vec<String>,
    /// What the comparison with the reference gave, before and after the timing.
    pub verification: Option<Verdict>,
    /// All times that the spreads are of, in the order in which they were taken; none of peers.
    #[serde(default)]
    pub samples: Times,
}

/// A ratio for each of a row's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// Of `single_ms`.
    pub single: Option<f64>,
    /// Of `graph_single_ms`.
    pub graph_single: Option<f64>,
    /// Of `back_to_back_ms`.
    pub back_to_back: Option<f64>,
    /// Of `graph_ms`.
    pub graph: Option<f64>,
}

impl Row {
    /// A row without times.
    pub fn new(implementation: &str, kind: Kind, status: Status, reason: Option<String>) -> Self {
        Self {
            implementation: implementation.into(),
            kind,
            status,
            reason,
            ..Self::default()
        }
    }

    /// A row that another program measured.
    pub fn of_peer(implementation: &str, single_ms: Spread) -> Self {
        Self {
            single_ms: Some(single_ms),
            ..Self::new(implementation, Kind::Peer, Status::Ok, None)
        }
    }

    /// Fills in what was measured. The row is wrong where `verdict` is.
    pub fn fill(&mut self, times: &Times, verdict: Verdict) {
        if let Some(reason) = verdict.reason() {
            (self.status, self.reason) = (Status::Wrong, Some(reason));
        }
        self.single_ms = times.spread(Metric::Single);
        self.graph_single_ms = times.spread(Metric::GraphSingle);
        self.back_to_back_ms = times.spread(Metric::BackToBack);
        self.graph_ms = times.spread(Metric::Graph);
        self.verification = Some(verdict);
        self.samples = times.clone();
    }

    /// The rate of a row that does the whole operation, from that of the GEMM alone.
    pub(super) fn rate(&self, limit: &Limit) -> Option<f64> {
        let operations = limit.gemm_tflops? * limit.gemm_ms?.median;
        Some(operations / self.ms()?).filter(|_| !self.part)
    }

    /// Compares it with what was measured in the rounds of its group.
    pub(super) fn compare(&mut self, group: &Group) {
        let over = |time: Option<f64>| Some(time? / self.ms()?);
        let baseline = over(group.baseline_ms.map(|spread| spread.median));
        (self.times_baseline, self.efficiency) = (baseline, over(group.limit_ms));
    }

    /// The place in `groups` of the group with whose baseline and limit it is compared: its own, for peers
    /// the first. `None` where it was not timed.
    pub fn compared_with(&self) -> Option<usize> {
        let peer = || (self.kind == Kind::Peer).then_some(0);
        self.single_ms.and(self.group.or_else(peer))
    }

    /// The fastest of `rows` that was right.
    pub fn fastest<'a>(rows: impl Iterator<Item = &'a Self>, metric: Metric) -> Option<&'a Self> {
        let timed = rows.filter_map(|row| Some((row.median(metric)?, row)));
        let fastest = timed.min_by(|(a, _), (b, _)| a.total_cmp(b));
        fastest.map(|(_, row)| row)
    }

    /// Median of a single call, where it was right.
    pub fn ms(&self) -> Option<f64> {
        self.median(Metric::Single)
    }

    /// The median of one of its times, where it was right: others stand for nothing.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        let spread = self.spread(metric).filter(|_| self.status == Status::Ok);
        spread.map(|spread| spread.median)
    }

    /// One of its times, right or wrong.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        match metric {
            Metric::Single => self.single_ms,
            Metric::GraphSingle => self.graph_single_ms,
            Metric::BackToBack => self.back_to_back_ms,
            Metric::Graph => self.graph_ms,
        }
    }
}
