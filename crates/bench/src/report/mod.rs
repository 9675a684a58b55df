//! What a run found, as data. Terminal tables, Markdown, the HTML page and the JSON file are views of a
//! [`Report`].
//!
//! # The JSON file
//!
//! One object whose fields are those of the types of this module; the crate's README lists them. `schema`
//! names the layout; a change that breaks readers changes its number. Times are in milliseconds, rates in
//! TFLOP/s per GPU and GB/s. A field that does not apply is `null`. [`compact`] is the same without
//! samples, in columns.

pub mod compact;
pub(crate) mod messages;
pub mod page;
mod plot;
mod read;
mod sections;
mod sentences;
pub(crate) mod table;
pub(crate) mod terminal;
mod text;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::candidate::Call;
use crate::limit::Links;
use crate::provenance::Provenance;
use crate::shape::Shape;
use crate::size::Bytes;
use crate::statistics::Spread;
use crate::suite::Figure;
use crate::timing::Times;
use crate::verification::Verdict;

pub use read::Document;
pub(crate) use sentences::ranks;
pub use terminal::{print, width};
pub use text::{markdown, summary};

/// The layout of a suite of plans.
pub const PLANS: &str = "warpweave-bench/2";

/// The layout of the suite `collectives`.
pub const COLLECTIVES: &str = "warpweave-bench-collectives/1";

/// A name: a constant where this program measures, text where it reads a file.
pub type Name = Cow<'static, str>;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`PLANS`] or [`COLLECTIVES`].
    pub schema: Name,
    /// Name of the suite.
    pub suite: Name,
    /// What it measures, and whose figures it reproduces.
    #[serde(default)]
    pub reproduces: Name,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// A single call of nothing: what the clock itself costs, in each of the times.
    pub clock_ms: Option<Spread>,
    /// Collectives: the links between the ranks; `null` for one rank.
    pub links: Option<Links>,
    /// Collectives: who measured the rows of peers.
    pub peers: Option<String>,
    /// One for each problem and operation.
    #[serde(default)]
    pub results: Vec<Outcome>,
    /// How implementations compare over all problems, where the suite asks for that.
    #[serde(default)]
    pub means: Vec<Mean>,
    /// Findings over all problems.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// An implementation against the suite's first one, over all problems of an element type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mean {
    /// The implementation.
    pub implementation: String,
    /// The suite's first one.
    pub baseline: String,
    /// Element type of the problems.
    pub dtype: Name,
    /// How many problems.
    pub problems: usize,
    /// Geometric mean of `times_baseline`.
    pub times_baseline: f64,
    /// The same of `back_to_back_ms`.
    pub times_baseline_back_to_back: Option<f64>,
}

/// An operation on a problem, or on messages of a size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What is computed; `null` for GEMMs without communication.
    pub operation: Option<Name>,
    /// What it is computed on.
    #[serde(flatten)]
    pub on: Operands,
    /// Element type.
    pub dtype: Name,
    /// Number of ranks.
    pub world: usize,
    /// What no implementation can beat, where it was measured, in the rounds of the first group.
    pub limit: Option<Limit>,
    /// Where the time of one of the implementations goes, where it ran on several ranks.
    pub breakdown: Option<Breakdown>,
    /// What others published of this problem.
    #[serde(default)]
    pub published: Vec<Figure>,
    /// The groups in which the implementations were measured, one after the other; one where memory allows
    /// it.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// Collectives: the variant of ours whose single call is the fastest.
    pub best: Option<String>,
    /// Collectives: the variant that the library selects by size and machine.
    pub selected: Option<String>,
    /// The implementations, those of a group interleaved in time, then those of peers.
    #[serde(default)]
    pub rows: Vec<Row>,
}

/// What an operation works on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Operands {
    /// The matrices of a GEMM.
    Matrices {
        /// M, N and K; M over all ranks.
        shape: Shape,
    },
    /// A message.
    Message {
        /// What a rank brings, as asked for.
        size: Bytes,
        /// The same as measured: what ranks cannot share evenly is rounded down.
        input_bytes: usize,
        /// What a rank gets.
        output_bytes: usize,
    },
}

/// What rows are compared with: measured anew in the rounds of each group.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Group {
    /// The baseline, single calls.
    pub baseline_ms: Option<Spread>,
    /// The GEMM alone, single calls.
    pub gemm_ms: Option<Spread>,
    /// The limit.
    pub limit_ms: Option<f64>,
}

/// What no implementation can beat: the larger of the GEMM alone and the transfer alone, both of this run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The limit.
    pub ms: f64,
    /// Plans: the GEMM of one rank with its operands local, by cuBLASLt's best (on the host its own).
    pub gemm_ms: Option<Spread>,
    /// Its rate.
    pub gemm_tflops: Option<f64>,
    /// The algorithms that tuning chose.
    #[serde(default)]
    pub gemm_algorithms: Vec<String>,
    /// The fewest bytes that must come into a rank.
    pub bytes: usize,
    /// How the bandwidth of the links was measured.
    pub transport: Option<String>,
    /// All-gather traffic into each rank, so measured.
    pub bandwidth_gb_s: Option<f64>,
    /// `bytes` at that bandwidth; 0 for one rank.
    pub transfer_ms: Option<f64>,
}

/// The parts of an implementation that gathers and then multiplies, each timed alone in the rounds of the
/// rows. A part that cannot run here has no time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Breakdown {
    /// The implementation.
    pub implementation: String,
    /// A call of nothing: the clock's own cost.
    pub empty_ms: Option<Spread>,
    /// The gather of as many rows of 16 bytes: its launch, its signals and its waits.
    pub handshake_ms: Option<Spread>,
    /// The gather.
    pub gather_ms: Option<Spread>,
    /// The CUTLASS GEMM with all of A local; on the host backend its own GEMM.
    #[serde(rename = "product_ms")]
    pub gemm_ms: Option<Spread>,
    /// The implementation, as in its row.
    pub together_ms: Option<Spread>,
}

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
    /// Why not, or why there are no graphs.
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
    /// What was published of the same, on another machine.
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

/// Which of a row's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Metric {
    /// A call by itself.
    #[serde(rename = "single_ms")]
    Single,
    /// A graph launch by itself.
    #[serde(rename = "graph_single_ms")]
    GraphSingle,
    /// One of several calls.
    #[serde(rename = "back_to_back_ms")]
    BackToBack,
    /// One of several graph launches.
    #[serde(rename = "graph_ms")]
    Graph,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 4] = [
        Metric::Single,
        Metric::GraphSingle,
        Metric::BackToBack,
        Metric::Graph,
    ];

    /// How what is timed is enqueued.
    pub const fn call(self) -> Call {
        match self {
            Metric::Single | Metric::BackToBack => Call::Run,
            Metric::GraphSingle | Metric::Graph => Call::Replay,
        }
    }

    /// What is timed.
    pub const fn title(self) -> &'static str {
        match self {
            Metric::Single => "one call",
            Metric::GraphSingle => "one graph launch",
            Metric::BackToBack => "calls back to back",
            Metric::Graph => "graph launches back to back",
        }
    }
}

impl Report {
    /// As JSON, without what does not apply.
    pub fn to_json(&self) -> Value {
        let whole = serde_json::to_value(self).unwrap_or_default();
        compact::without_nothing(whole)
    }

    /// Whether every row that ran was right.
    pub fn is_right(&self) -> bool {
        self.wrong().next().is_none()
    }

    /// The rows that ran and were wrong, with what they are of.
    pub fn wrong(&self) -> impl Iterator<Item = (&Outcome, &Row)> {
        self.rows().filter(|(_, row)| row.status == Status::Wrong)
    }

    /// All rows, with what they are of.
    pub fn rows(&self) -> impl Iterator<Item = (&Outcome, &Row)> {
        let results = self.results.iter();
        results.flat_map(|outcome| outcome.rows.iter().map(move |row| (outcome, row)))
    }

    /// Whether it is of the suite `collectives`.
    pub fn is_of_collectives(&self) -> bool {
        self.schema == COLLECTIVES
    }

    /// As a drawing in SVG, where the suite has one.
    pub fn plot(&self) -> Option<String> {
        self.is_of_collectives().then(|| plot::svg(self))
    }
}

impl Outcome {
    /// Nothing measured yet.
    pub fn new(operation: Option<Name>, on: Operands, dtype: Name, world: usize) -> Self {
        Self {
            operation,
            on,
            dtype,
            world,
            limit: None,
            breakdown: None,
            published: Vec::new(),
            groups: Vec::new(),
            best: None,
            selected: None,
            rows: Vec::new(),
        }
    }

    /// The matrices, as `64x32x16`, or the size of the message, as `4K`.
    pub fn size(&self) -> String {
        match self.on {
            Operands::Matrices { shape } => shape.to_string(),
            Operands::Message { size, .. } => size.to_string(),
        }
    }

    /// The row of this name.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.implementation == name)
    }
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

    /// A row of an implementation that cannot run here.
    pub fn not_run(implementation: &str, reason: String) -> Self {
        Self::new(implementation, Kind::Ours, Status::NotRun, Some(reason))
    }

    /// A row that another program measured.
    pub fn of_peer(implementation: &str, single_ms: Spread) -> Self {
        Self {
            single_ms: Some(single_ms),
            ..Self::new(implementation, Kind::Peer, Status::Ok, None)
        }
    }

    /// Fills in what was measured. The row is wrong where `verdict` is.
    pub(crate) fn fill(&mut self, times: &Times, verdict: Verdict) {
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

    /// Compares it with what was measured in the rounds of its group.
    pub(crate) fn compare(&mut self, group: &Group) {
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

    /// Median of a single call.
    pub fn ms(&self) -> Option<f64> {
        self.median(Metric::Single)
    }

    /// The median of one of its times.
    pub fn median(&self, metric: Metric) -> Option<f64> {
        self.spread(metric).map(|spread| spread.median)
    }

    /// One of its times.
    pub fn spread(&self, metric: Metric) -> Option<Spread> {
        match metric {
            Metric::Single => self.single_ms,
            Metric::GraphSingle => self.graph_single_ms,
            Metric::BackToBack => self.back_to_back_ms,
            Metric::Graph => self.graph_ms,
        }
    }
}

#[cfg(test)]
pub(crate) mod samples;
