//! What a run of the suite found, as data: tables, Markdown, JSON and plot are views of a [`Report`].

mod grid;
mod plot;
pub(crate) mod section;
mod sentences;
mod text;

use serde::{Deserialize, Serialize};
use warpweave_comm::collective::{Costs, Operation, Variant};

use super::size::Bytes;
use crate::provenance::Provenance;
use crate::report::{Name, Status};
use crate::statistics::Spread;
use crate::timing::Times;
use crate::verification::Verdict;

/// Identifies the layout of the JSON file.
pub const SCHEMA: &str = "warpweave-bench-collectives/1";

/// The row that others are compared with.
pub const BASELINE: &str = "nccl";

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: Name,
    /// `collectives`.
    pub suite: Name,
    /// Where the numbers come from.
    pub provenance: Provenance,
    /// The links between the ranks; `null` for a rank alone.
    pub links: Option<LinkSpeed>,
    /// Who measured the rows that are marked as a peer's, if there are any.
    pub peers: Option<String>,
    /// One for each operation and size, by operation.
    pub results: Vec<Outcome>,
    /// Findings over all of them, in words.
    pub notes: Vec<String>,
}

/// How fast the links between the ranks were.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// All-gather traffic into each rank in GB/s.
    pub bandwidth_gb_s: f64,
    /// What it was measured with.
    pub transport: String,
}

/// An operation at a size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the operation.
    pub operation: Name,
    /// What a rank brings, as asked for.
    pub size: Bytes,
    /// The same, as measured: a size that ranks cannot share evenly is rounded down.
    pub input_bytes: usize,
    /// What a rank gets.
    pub output_bytes: usize,
    /// Element type.
    pub dtype: Name,
    /// Number of ranks.
    pub world: usize,
    /// What no implementation can beat; `null` for a rank alone.
    pub limit: Option<Limit>,
    /// The variant of ours whose single call is the quickest.
    pub best: Option<String>,
    /// The variant that is chosen by size and machine.
    pub selected: Option<String>,
    /// The implementations, interleaved in time.
    pub rows: Vec<Row>,
}

/// The fewest bytes into a GPU at the speed of the links.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// The bytes.
    pub bytes: usize,
    /// The time.
    pub ms: f64,
}

/// Whose a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A variant of Warpweave's.
    Ours,
    /// NCCL, called by this program.
    Nccl,
    /// Measured by another program.
    Peer,
}

/// One implementation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub implementation: String,
    /// Whose it is.
    pub kind: Kind,
    /// Whether it ran, and was right. A peer's is taken to be.
    pub status: Status,
    /// Why not, or why there are no graphs.
    pub reason: Option<String>,
    /// One call, the ranks aligned before it.
    pub single_ms: Option<Spread>,
    /// One graph launch, the ranks aligned before it.
    pub graph_single_ms: Option<Spread>,
    /// A call of several that follow each other.
    pub back_to_back_ms: Option<Spread>,
    /// A graph launch of several that follow each other.
    pub graph_ms: Option<Spread>,
    /// NCCL's median over this row's.
    pub times_nccl: Ratios,
    /// The limit over the median of `single_ms`.
    pub efficiency: Option<f64>,
    /// What the comparison with the reference gave.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// `single_ms`.
    Single,
    /// `graph_single_ms`.
    GraphSingle,
    /// `back_to_back_ms`.
    BackToBack,
    /// `graph_ms`.
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

    /// What is timed.
    pub const fn title(self) -> &'static str {
        match self {
            Metric::Single => "one call",
            Metric::GraphSingle => "one graph launch",
            Metric::BackToBack => "a call in a row",
            Metric::Graph => "a graph launch in a row",
        }
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
            single_ms: None,
            graph_single_ms: None,
            back_to_back_ms: None,
            graph_ms: None,
            times_nccl: Ratios::default(),
            efficiency: None,
            verification: None,
            samples: Times::default(),
        }
    }

    /// The median of one of its times in ms.
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

impl Outcome {
    /// The row of this name.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.implementation == name)
    }

    /// The quickest of ours that was right.
    pub fn best(&self, metric: Metric) -> Option<&Row> {
        let ours = self
            .rows
            .iter()
            .filter(|row| row.kind == Kind::Ours && row.status == Status::Ok);
        let timed = ours.filter_map(|row| Some((row.median(metric)?, row)));
        timed
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .map(|(_, row)| row)
    }

    /// NCCL's median over `ms`.
    pub fn times_nccl(&self, metric: Metric, ms: Option<f64>) -> Option<f64> {
        let nccl = self.row(BASELINE).filter(|row| row.status == Status::Ok)?;
        Some(nccl.median(metric)? / ms?)
    }

    /// Fills in what follows from the times.
    #[must_use]
    pub fn compared(mut self) -> Self {
        let of = |row: &Row, metric| self.times_nccl(metric, row.median(metric));
        let ratios: Vec<_> = self
            .rows
            .iter()
            .map(|row| Ratios {
                single: of(row, Metric::Single),
                graph_single: of(row, Metric::GraphSingle),
                back_to_back: of(row, Metric::BackToBack),
                graph: of(row, Metric::Graph),
            })
            .collect();
        for (row, ratios) in self.rows.iter_mut().zip(ratios) {
            row.times_nccl = ratios;
            row.efficiency = self
                .limit
                .and_then(|limit| Some(limit.ms / row.median(Metric::Single)?));
        }
        self.best = self
            .best(Metric::Single)
            .map(|row| row.implementation.clone());
        self
    }
}

impl Report {
    /// The times of the variants that were right, as the library's `select` takes them; see
    /// [`Costs`].
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        for outcome in &self.results {
            let operation = Operation::ALL
                .into_iter()
                .find(|o| o.name() == outcome.operation);
            for row in outcome.rows.iter().filter(|row| row.status == Status::Ok) {
                let variant = row.implementation.parse::<Variant>().ok();
                let variant = variant.filter(|_| row.kind == Kind::Ours);
                let time = row.median(Metric::Single);
                if let (Some(operation), Some(variant), Some(ms)) = (operation, variant, time) {
                    costs.insert(
                        operation,
                        variant,
                        outcome.world,
                        outcome.input_bytes,
                        ms * 1e3,
                    );
                }
            }
        }
        costs
    }

    /// The rows that ran and were wrong, with what they are of.
    pub fn wrong(&self) -> impl Iterator<Item = (&Outcome, &Row)> {
        let results = self.results.iter();
        let rows = results.flat_map(|outcome| outcome.rows.iter().map(move |row| (outcome, row)));
        rows.filter(|(_, row)| row.status == Status::Wrong)
    }

    /// The outcomes of each operation, in order.
    pub fn operations(&self) -> Vec<&[Outcome]> {
        self.results
            .chunk_by(|a, b| a.operation == b.operation)
            .collect()
    }
}

#[cfg(test)]
impl Report {
    /// Two sizes of one operation, with NCCL, a variant that ran, one that did not everywhere, and a peer.
    pub(crate) fn sample() -> Self {
        let row = |name: &str, kind, us: f64| Row {
            single_ms: Spread::of(&[us / 1e3, us / 1e3 * 1.1]),
            graph_single_ms: Spread::of(&[us / 1.25e3]).filter(|_| kind != Kind::Peer),
            samples: match kind {
                Kind::Peer => Times::default(),
                _ => Times::sample_of_graphs(&[us / 1e3, us / 1e3 * 1.1], &[us / 1.25e3]),
            },
            ..Row::new(name, kind, Status::Ok, None)
        };
        let outcome = |size: usize, rows| {
            Outcome {
                operation: "all-gather".into(),
                size: Bytes(size),
                input_bytes: size,
                output_bytes: 4 * size,
                dtype: "bf16".into(),
                world: 4,
                limit: Some(Limit {
                    bytes: 3 * size,
                    ms: 3.0 * size as f64 / 381e6,
                }),
                best: None,
                selected: Some("push".into()),
                rows,
            }
            .compared()
        };
        let small = vec![
            row("nccl", Kind::Nccl, 20.0),
            row("packets", Kind::Ours, 5.0),
            row("push", Kind::Ours, 8.0),
            row("torch-nccl", Kind::Peer, 21.0),
        ];
        let not_run = Some("16777216 bytes | too many".into());
        let large = vec![
            row("nccl", Kind::Nccl, 188.0),
            Row::new("packets", Kind::Ours, Status::NotRun, not_run),
            row("push", Kind::Ours, 156.0),
        ];
        Self {
            schema: SCHEMA.into(),
            suite: "collectives".into(),
            provenance: Provenance::sample(),
            links: Some(LinkSpeed {
                bandwidth_gb_s: 381.0,
                transport: "copy-engine push".into(),
            }),
            peers: Some("PyTorch 2.11.0".into()),
            results: vec![outcome(4096, small), outcome(16 << 20, large)],
            notes: vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_compared_with_nccl_and_with_the_limit() {
        let report = Report::sample();
        let [small, large] = report.results.as_slice() else {
            panic!("two sizes");
        };
        assert_eq!(
            (small.best.as_deref(), large.best.as_deref()),
            (Some("packets"), Some("push"))
        );
        let ratio = small.row("packets").unwrap().times_nccl;
        assert!((ratio.single.unwrap() - 4.0).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.graph_single.unwrap() - 4.0).abs() < 1e-9 && ratio.graph.is_none());
        let efficiency = large.row("push").unwrap().efficiency.unwrap();
        assert!((efficiency - 132.1 / 163.8).abs() < 1e-3, "{efficiency}");
        assert!(large.row("packets").unwrap().times_nccl.single.is_none());
        assert_eq!(report.operations().len(), 1);
    }

    #[test]
    fn costs_are_those_of_variants_that_were_right() {
        let mut report = Report::sample();
        report.results[0].rows[2].status = Status::Wrong;
        let text = report.costs().to_string();
        assert_eq!(
            text,
            "all-gather 4 packets 4096=5.2\nall-gather 4 push 16777216=163.8\n"
        );
        assert_eq!(text.parse::<Costs>().unwrap().to_string(), text);
    }

    #[test]
    fn a_wrong_row_is_never_the_best_and_no_baseline() {
        let mut outcome = Report::sample().results.remove(0);
        outcome.rows[0].status = Status::Wrong;
        outcome.rows[1].status = Status::Wrong;
        let outcome = outcome.compared();
        assert_eq!(outcome.best.as_deref(), Some("push"));
        assert!(
            outcome
                .rows
                .iter()
                .all(|row| row.times_nccl == Ratios::default())
        );
    }
}
