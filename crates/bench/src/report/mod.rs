//! What a run found, as data: the table, the Markdown and the JSON file are three views of a [`Report`].
//!
//! # The JSON file
//!
//! One object: `schema` (`"warpweave-bench/2"`; a change that breaks readers changes the number), `suite`, `provenance`,
//! `reproduces`, `results`, one for each problem and operation, `means` and `notes`. Times are in milliseconds, rates in TFLOP/s per GPU and GB/s; a
//! field that does not apply is `null`. The fields are those of the types of this module, under the same names; the
//! crate's README lists them.

pub(crate) mod grid;
pub(crate) mod markdown;
pub mod page;
mod read;
mod sentences;
pub(crate) mod terminal;

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::provenance::Provenance;
use crate::shape::Shape;
use crate::statistics::Spread;
#[cfg(test)]
use crate::suite::Beside;
use crate::suite::Figure;
use crate::timing::Times;
use crate::verification::Verdict;

pub use markdown::markdown;
pub use read::Document;
pub use terminal::{terminal, width};

/// What is written of a report, whichever suite it is of.
pub trait View: Serialize {
    /// Whether every row that ran was right.
    fn is_right(&self) -> bool;

    /// For eyes, in at most `width` columns where words allow it.
    ///
    /// # Errors
    /// What `out` reports.
    fn terminal(&self, width: u16, out: &mut dyn Write) -> io::Result<()>;

    /// As a Markdown document.
    ///
    /// # Errors
    /// What `out` reports.
    fn markdown(&self, out: &mut dyn Write) -> io::Result<()>;

    /// As what a file of it is read as.
    fn document(&self) -> Document;

    /// As what the library chooses variants by, where the suite measures them.
    fn costs(&self) -> Option<String> {
        None
    }

    /// As a drawing in SVG, where the suite has one.
    fn plot(&self) -> Option<String> {
        None
    }
}

impl View for Report {
    fn is_right(&self) -> bool {
        self.wrong().next().is_none()
    }

    fn terminal(&self, width: u16, out: &mut dyn Write) -> io::Result<()> {
        terminal(self, width, out)
    }

    fn markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        markdown(self, out)
    }

    fn document(&self) -> Document {
        Document::Plans(self.clone())
    }
}

/// Identifies the layout of the JSON file.
pub const SCHEMA: &str = "warpweave-bench/2";

/// A name: a constant where this program measures, text where it reads a file.
pub type Name = Cow<'static, str>;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: Name,
    /// Name of the suite.
    pub suite: String,
    /// What it measures, and whose figures it reproduces.
    #[serde(default)]
    pub reproduces: String,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// What the clock itself costs, in each of the times: a single call of nothing.
    pub clock_ms: Option<Spread>,
    /// One for each problem.
    pub results: Vec<ProblemReport>,
    /// How implementations compare over all problems, where the suite asks for that.
    pub means: Vec<Mean>,
    /// Findings over all problems, in words.
    pub notes: Vec<String>,
}

impl Report {
    /// The rows that ran and were wrong, with their problem.
    pub fn wrong(&self) -> impl Iterator<Item = (&ProblemReport, &Row)> {
        self.results
            .iter()
            .flat_map(|result| result.rows.iter().map(move |row| (result, row)))
            .filter(|(_, row)| row.status == Status::Wrong)
    }
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

/// One problem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProblemReport {
    /// M, N and K.
    pub shape: Shape,
    /// What is computed; `None` for products without communication.
    pub operation: Option<Name>,
    /// Element type of all matrices.
    pub dtype: Name,
    /// Number of ranks.
    pub world: usize,
    /// What no implementation can beat here, where it was measured, in the rounds of the first group.
    pub limit: Option<Limit>,
    /// Where the time of one of the implementations goes, where it ran on several ranks.
    pub breakdown: Option<Breakdown>,
    /// What others published of this problem.
    #[serde(default)]
    pub published: Vec<Figure>,
    /// The groups in which the implementations were measured, one after the other; one where memory allows it.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// The implementations, those of a group interleaved in time, then those of peers.
    pub rows: Vec<Row>,
}

/// What rows are compared with: measured anew in the rounds of each group.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Group {
    /// The baseline, single calls.
    pub baseline_ms: Option<Spread>,
    /// The product alone, single calls.
    pub gemm_ms: Option<Spread>,
    /// The limit.
    pub limit_ms: Option<f64>,
}

/// The larger of the product alone and the transfer alone, both of this run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The limit.
    pub ms: f64,
    /// The product that a rank computes, with its operands at hand, by cuBLASLt's best (the host's own product on the host
    /// backend).
    pub gemm_ms: Spread,
    /// Its rate.
    pub gemm_tflops: f64,
    /// The algorithms that the library's tuning chose.
    pub gemm_algorithms: Vec<String>,
    /// The fewest bytes that must come into a rank.
    pub bytes: usize,
    /// How the speed of the links was measured: by copy engine, pushed on one stream, in large pieces; on the host backend by
    /// what stands in for that.
    pub transport: Option<String>,
    /// All-gather traffic into each rank, so measured.
    pub bandwidth_gb_s: Option<f64>,
    /// `bytes` at that bandwidth; 0 for a rank alone.
    pub transfer_ms: f64,
}

/// The parts of an implementation that gathers and then multiplies, each timed alone by single calls in the rounds of the rows.
/// A part that cannot run here has no time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Breakdown {
    /// The implementation.
    pub implementation: String,
    /// A call of nothing: the clock's own cost.
    pub empty_ms: Option<Spread>,
    /// The gather of as many rows of 16 bytes: nothing but its launch, its signals and its waits.
    pub handshake_ms: Option<Spread>,
    /// The gather.
    pub gather_ms: Option<Spread>,
    /// The CUTLASS product with all of A at hand; the host's own product on the host backend.
    pub product_ms: Option<Spread>,
    /// The implementation, as in its row.
    pub together_ms: Option<Spread>,
}

/// Whether a row ran, and was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It ran and every element was right.
    Ok,
    /// It ran and gave wrong results.
    Wrong,
    /// This machine or build cannot run it.
    NotRun,
}

/// Who measured a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// This program, in this run.
    #[default]
    Ours,
    /// Another program, on its own.
    Peer,
}

/// One implementation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub implementation: String,
    /// Who measured it.
    #[serde(default)]
    pub kind: Kind,
    /// The group in whose rounds it was measured, by its place in `groups`; `None` for peers.
    pub group: Option<usize>,
    /// Whether it does a part of the operation alone, for orientation; where a file does not say so, it does the whole.
    #[serde(default)]
    pub part: bool,
    /// Whether it ran, and was right.
    pub status: Status,
    /// Why not.
    pub reason: Option<String>,
    /// How bytes travel between the ranks.
    pub transport: Vec<String>,
    /// Kernels, products and collectives of a call; copies by copy engine, signals and waits are not counted.
    pub launches: Option<usize>,
    /// One call, the ranks aligned before it.
    pub single_ms: Option<Spread>,
    /// Twice the terms of all sums that a rank computes, over the median of `single_ms`.
    pub tflops: Option<f64>,
    /// A call of several that follow each other.
    pub back_to_back_ms: Option<Spread>,
    /// A graph launch of several that follow each other.
    pub graph_ms: Option<Spread>,
    /// `single_ms` of the baseline in the same group over this one's.
    pub times_baseline: Option<f64>,
    /// The limit of the same group over `single_ms`.
    pub efficiency: Option<f64>,
    /// What was published of the same, on another machine.
    pub published_ms: Option<f64>,
    /// The algorithms of the row's matrix products.
    pub algorithms: Vec<String>,
    /// What the comparison with the reference gave, before and after the timing.
    pub verification: Option<Verdict>,
    /// All times that the spreads are of, in the order in which they were taken; none of peers.
    #[serde(default)]
    pub samples: Times,
}

impl Row {
    /// A row of an implementation that cannot run here.
    pub fn not_run(implementation: &str, reason: String) -> Self {
        Self {
            implementation: implementation.into(),
            kind: Kind::Ours,
            group: None,
            part: false,
            status: Status::NotRun,
            reason: Some(reason),
            transport: Vec::new(),
            launches: None,
            single_ms: None,
            tflops: None,
            back_to_back_ms: None,
            graph_ms: None,
            times_baseline: None,
            efficiency: None,
            published_ms: None,
            algorithms: Vec::new(),
            verification: None,
            samples: Times::default(),
        }
    }

    /// A row that another program measured.
    pub fn of_peer(implementation: &str, single_ms: Spread) -> Self {
        Self {
            kind: Kind::Peer,
            status: Status::Ok,
            reason: None,
            single_ms: Some(single_ms),
            ..Self::not_run(implementation, String::new())
        }
    }

    /// Compares it with what was measured in the rounds of its group.
    pub(crate) fn compare(&mut self, group: &Group) {
        let over = |time: Option<f64>| Some(time? / self.ms()?);
        let baseline = over(group.baseline_ms.map(|spread| spread.median));
        (self.times_baseline, self.efficiency) = (baseline, over(group.limit_ms));
    }

    /// The place in `groups` of the group with whose baseline and limit it is compared: its own, for peers the
    /// first. `None` where it was not timed.
    pub fn compared_with(&self) -> Option<usize> {
        let peer = || (self.kind == Kind::Peer).then_some(0);
        self.single_ms.and(self.group.or_else(peer))
    }

    /// Median of a single call.
    pub fn ms(&self) -> Option<f64> {
        self.single_ms.map(|spread| spread.median)
    }
}

#[cfg(test)]
impl Report {
    /// A report with a row that ran, one that did not, and a mean.
    pub(crate) fn sample() -> Self {
        let ran = Row {
            status: Status::Ok,
            reason: None,
            transport: vec!["copy-engine push".into()],
            launches: Some(1),
            single_ms: Spread::of(&[0.05, 0.06, 0.07]),
            tflops: Some(412.3),
            back_to_back_ms: Spread::of(&[0.0511]),
            graph_ms: Spread::of(&[0.0498]),
            times_baseline: Some(1.25),
            efficiency: Some(0.912),
            algorithms: vec!["blocked".into()],
            samples: Times::sample(&[0.05, 0.06, 0.07], &[0.0511], &[0.0498]),
            verification: Some(Verdict {
                relative_error: 2.1e-4,
                ..Verdict::default()
            }),
            ..Row::not_run("baselineCudaAllgatherMatmul", String::new())
        };
        let peer = Row::of_peer("torch-fused", Spread::of(&[0.04]).unwrap_or_default());
        let not_run = Row::not_run(
            "multimemGatherScalarCompute",
            "multicast is off | `0`".into(),
        );
        Self {
            schema: SCHEMA.into(),
            suite: "fused-matmul".into(),
            reproduces: "somebody's figures".into(),
            provenance: Provenance::sample(),
            clock_ms: None,
            results: vec![ProblemReport {
                shape: Shape::new(64, 32, 16),
                operation: Some("all-gather-matmul".into()),
                dtype: "f16".into(),
                world: 4,
                limit: None,
                breakdown: None,
                published: vec![Figure {
                    shape: Shape::new(64, 32, 16),
                    dtype: "f16".into(),
                    what: "fused".into(),
                    ms: 0.043,
                    source: "8×H100, somebody".into(),
                    beside: Beside::Nothing,
                }],
                groups: vec![Group::default()],
                rows: vec![ran, not_run, peer],
            }],
            means: vec![Mean {
                implementation: "second".into(),
                baseline: "first".into(),
                dtype: "bf16".into(),
                problems: 10,
                times_baseline: 0.99,
                times_baseline_back_to_back: None,
            }],
            notes: vec![],
        }
    }
}
