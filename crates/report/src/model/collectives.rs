//! What follows from the times: ratios to the baseline of a group; of collectives, ratios to NCCL and the
//! fastest variant.

use super::{Group, Kind, Limit, Metric, Operands, Outcome, Ratios, Report, Row};

/// The row that others are compared with.
pub const BASELINE: &str = "nccl";

impl Limit {
    /// The time of this many bytes into a GPU at the bandwidth of the links.
    pub fn of_transfer(bytes: usize, bandwidth_gb_s: f64) -> Self {
        Self {
            ms: bytes as f64 / bandwidth_gb_s / 1e6,
            bytes,
            ..Self::default()
        }
    }
}

impl Outcome {
    /// The fastest of ours that was right.
    pub fn fastest(&self, metric: Metric) -> Option<&Row> {
        let ours = self.rows.iter().filter(|row| row.kind == Kind::Ours);
        Row::fastest(ours, metric)
    }

    /// NCCL's median over `ms`.
    pub fn times_nccl(&self, metric: Metric, ms: Option<f64>) -> Option<f64> {
        Some(self.row(BASELINE)?.median(metric)? / ms?)
    }

    /// Where all rows were measured in one group: what they are compared with.
    fn only_group(&self) -> Option<Group> {
        let mut rows = self.rows.iter().filter(|row| row.group.is_some());
        let baseline = rows.next()?;
        rows.all(|row| row.group == Some(0)).then(|| Group {
            baseline_ms: baseline.single_ms.filter(|_| baseline.ms().is_some()),
            gemm_ms: self.limit.as_ref().and_then(|limit| limit.gemm_ms),
            limit_ms: self.limit.as_ref().map(|limit| limit.ms),
        })
    }

    /// Leaves out what [`compared`](Self::compared) fills in.
    pub(crate) fn leave_out(&mut self) {
        if self.groups.len() == 1 && self.groups.first() == self.only_group().as_ref() {
            self.groups.clear();
        }
        let Some(limit) = &self.limit else { return };
        for row in &mut self.rows {
            let (told, rate) = (row.tflops, row.rate(limit));
            let same = told
                .zip(rate)
                .is_some_and(|(told, rate)| (told / rate - 1.0).abs() < 1e-3);
            row.tflops = told.filter(|_| !same);
        }
    }

    /// Fills in what follows from the times.
    #[must_use]
    pub fn compared(mut self) -> Self {
        if let Operands::Matrices { .. } = self.on {
            if self.groups.is_empty() {
                self.groups.extend(self.only_group());
            }
            for row in &mut self.rows {
                row.tflops = row.tflops.or_else(|| row.rate(self.limit.as_ref()?));
                let group = row.compared_with().and_then(|at| self.groups.get(at));
                group.inspect(|group| row.compare(group));
            }
            return self;
        }
        let ratios = self.rows.iter().map(|row| {
            let of = |metric| self.times_nccl(metric, row.median(metric));
            let [single, graph_single, back_to_back, graph] = Metric::ALL.map(of);
            Ratios {
                single,
                graph_single,
                back_to_back,
                graph,
            }
        });
        let ratios: Vec<_> = ratios.collect();
        let limit = self.limit.as_ref().map(|limit| limit.ms);
        for (row, ratios) in self.rows.iter_mut().zip(ratios) {
            row.times_nccl = ratios;
            row.efficiency = limit.zip(row.ms()).map(|(limit, ms)| limit / ms);
        }
        let best = self.fastest(Metric::Single);
        self.best = best.map(|row| row.implementation.clone());
        self
    }
}

impl Report {
    /// The results of each operation, in order.
    pub fn operations(&self) -> Vec<&[Outcome]> {
        self.results
            .chunk_by(|a, b| a.operation == b.operation)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Status;

    #[test]
    fn rows_are_compared_with_nccl_and_with_the_limit() {
        let report = Report::sample_of_collectives();
        let [small, large] = report.results.as_slice() else {
            panic!("two sizes");
        };
        assert_eq!(small.best.as_deref(), Some("packets"));
        assert_eq!(large.best.as_deref(), Some("push"));
        let ratio = small.row("packets").unwrap().times_nccl;
        assert!((ratio.single.unwrap() - 4.0).abs() < 1e-9, "{ratio:?}");
        assert!((ratio.graph_single.unwrap() - 4.0).abs() < 1e-9 && ratio.graph.is_none());
        let efficiency = large.row("push").unwrap().efficiency.unwrap();
        assert!((efficiency - 132.1 / 163.8).abs() < 1e-3, "{efficiency}");
        assert!(large.row("packets").unwrap().times_nccl.single.is_none());
        assert_eq!(report.operations().len(), 1);
    }

    #[test]
    fn a_wrong_row_is_never_the_best_and_no_baseline() {
        let mut outcome = Report::sample_of_collectives().results.remove(0);
        outcome.rows[0].status = Status::Wrong;
        outcome.rows[1].status = Status::Wrong;
        let outcome = outcome.compared();
        assert_eq!(outcome.best.as_deref(), Some("push"));
        let none = |row: &Row| row.times_nccl == Ratios::default();
        assert!(outcome.rows.iter().all(none));
    }

    #[test]
    fn rows_of_a_problem_are_not_compared_with_a_wrong_one() {
        let mut outcome = Report::sample().results.remove(0);
        outcome.groups.clear();
        outcome.rows[0].status = Status::Wrong;
        outcome.rows.push(Row {
            implementation: "second".into(),
            status: Status::Ok,
            ..outcome.rows[0].clone()
        });
        let outcome = outcome.compared();
        assert_eq!(outcome.groups[0].baseline_ms, None);
        assert!(outcome.row("second").unwrap().times_baseline.is_none());
    }
}
