//! What a run found, as data. Terminal tables, Markdown, the HTML page and the JSON file are views of a
//! [`Report`].
//!
//! # The JSON file
//!
//! One object whose fields are those of the types of this module; the crate's README lists them. `schema`
//! names the layout; a change that breaks readers changes its number. Times are in milliseconds, rates in
//! TFLOP/s per GPU and GB/s. A field that does not apply is `null`. [`compact`](crate::compact) is the same
//! without samples, in columns.

mod collectives;
mod means;
mod row;
#[cfg(test)]
pub(crate) mod samples;
mod times;
mod verdict;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::provenance::Provenance;
use crate::sizes::{Bytes, Shape};
use crate::statistics::Spread;

pub use collectives::BASELINE;
pub use means::{means, over_bound};
pub use row::{Kind, Ratios, Row, Status};
pub use times::{Metric, Times};
pub use verdict::{Finding, Verdict};

/// The layout of a suite of plans.
pub const PLANS: &str = "warpweave-bench/2";

/// The layout of the suite `collectives`.
pub const COLLECTIVES: &str = "warpweave-bench-collectives/1";

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`PLANS`] or [`COLLECTIVES`].
    pub schema: String,
    /// Name of the suite.
    pub suite: String,
    /// What it measures, and whose figures it reproduces.
    #[serde(default)]
    pub reproduces: String,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// An empty call: what the clock itself costs, in each of the times.
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
    pub dtype: String,
    /// How many problems.
    pub problems: usize,
    /// Geometric mean of `times_baseline`.
    pub times_baseline: f64,
    /// The same of `back_to_back_ms`.
    pub times_baseline_back_to_back: Option<f64>,
}

/// The bandwidth of the links between the ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Links {
    /// All-gather traffic into each rank in GB/s.
    pub bandwidth_gb_s: f64,
    /// What it was measured with.
    pub transport: String,
}

/// A time that others published.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Published {
    /// The problem.
    pub shape: Shape,
    /// Its element type.
    pub dtype: String,
    /// What was measured.
    pub what: String,
    /// Milliseconds.
    pub ms: f64,
    /// On what, and by whom.
    pub source: String,
}

/// An operation on a problem, or on messages of a size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// What is computed; `null` for GEMMs without communication.
    pub operation: Option<String>,
    /// What it is computed on.
    #[serde(flatten)]
    pub on: Operands,
    /// Element type.
    pub dtype: String,
    /// Number of ranks.
    pub world: usize,
    /// What no implementation can beat, where it was measured, in the rounds of the first group.
    pub limit: Option<Limit>,
    /// Where the time of one of the implementations goes, where it ran on several ranks.
    pub breakdown: Option<Breakdown>,
    /// What others published of this problem.
    #[serde(default)]
    pub published: Vec<Published>,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// An empty call: the clock's own cost.
    pub empty_ms: Option<Spread>,
    /// The gather of as many rows of 16 bytes: its launch, its signals and its waits.
    pub handshake_ms: Option<Spread>,
    /// The gather.
    pub gather_ms: Option<Spread>,
    /// The CUTLASS GEMM with all of A local; on the host backend its own GEMM.
    #[serde(alias = "product_ms")]
    pub gemm_ms: Option<Spread>,
    /// The implementation, as in its row.
    pub together_ms: Option<Spread>,
}

impl Report {
    /// As JSON, without what does not apply.
    pub fn to_json(&self) -> Value {
        let whole = serde_json::to_value(self).unwrap_or_default();
        without_nothing(whole)
    }

    /// Whether every row that ran was right.
    pub fn is_right(&self) -> bool {
        self.wrong().next().is_none()
    }

    /// Whether any row ran, those of peers aside.
    pub fn has_run(&self) -> bool {
        let ran = |row: &Row| row.status != Status::NotRun && row.kind != Kind::Peer;
        self.rows().any(|(_, row)| ran(row))
    }

    /// The rows that ran and were wrong, with what they are of.
    pub fn wrong(&self) -> impl Iterator<Item = (&Outcome, &Row)> {
        self.rows().filter(|(_, row)| row.status == Status::Wrong)
    }

    /// Whether it has times as they were taken: summaries have none.
    pub fn has_samples(&self) -> bool {
        let has = |row: &Row| {
            Metric::ALL
                .iter()
                .any(|metric| !row.samples.of(*metric).is_empty())
        };
        self.rows().any(|(_, row)| has(row))
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
}

impl Outcome {
    /// A report without results yet.
    pub fn new(operation: Option<String>, on: Operands, dtype: String, world: usize) -> Self {
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

/// All but what is null, and objects that have nothing else.
fn without_nothing(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(name, value)| (name, without_nothing(value)));
            let is_something = |value: &Value| match value {
                Value::Object(fields) => !fields.is_empty(),
                other => !other.is_null(),
            };
            fields.filter(|(_, value)| is_something(value)).collect()
        }
        Value::Array(values) => values.into_iter().map(without_nothing).collect(),
        other => other,
    }
}
