//! The report for eyes: Markdown tables, which documents take as they are.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::{ProblemReport, Report, Row, Status};
use crate::statistics::Spread;

const COLUMNS: [&str; 11] = [
    "implementation",
    "ms",
    "p10–p90",
    "TFLOP/s",
    "in a row ms",
    "graph ms",
    "× baseline",
    "efficiency",
    "launches",
    "transport",
    "check",
];

/// Writes `report` to `out`.
///
/// # Errors
/// What `out` reports.
pub fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}: {}", report.suite, report.provenance)?;
    for result in &report.results {
        writeln!(out)?;
        problem(result, out)?;
    }
    for note in &report.notes {
        writeln!(out, "\n{note}")?;
    }
    Ok(())
}

fn problem(result: &ProblemReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "M×N×K = {}, {}, {} ranks",
        result.shape, result.dtype, result.world
    )?;
    let mut table = Table::new();
    table
        .load_preset(presets::ASCII_MARKDOWN)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(COLUMNS);
    for row in &result.rows {
        table.add_row(cells(row));
    }
    for column in 1..=8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}")?;
    for row in &result.rows {
        let what = match row.status {
            Status::Ok => continue,
            Status::Wrong => "WRONG",
            Status::NotRun => "not run",
        };
        let reason = row.reason.as_deref().unwrap_or("no reason known");
        writeln!(out, "{} was {what}: {reason}", row.implementation)?;
    }
    if let Some(limit) = &result.limit {
        let transfer = match limit.bandwidth_gb_s {
            Some(bandwidth) => format!(
                "{:.1} MB of A in {} ms at {} GB/s (copy-engine push)",
                limit.bytes as f64 / 1e6,
                ms(limit.transfer_ms),
                rate(bandwidth)
            ),
            None => "nothing to transfer".into(),
        };
        writeln!(
            out,
            "limit {} ms: product alone {} ms ({} TFLOP/s), {transfer}",
            ms(limit.ms),
            ms(limit.gemm.median),
            rate(limit.gemm_tflops)
        )?;
    }
    Ok(())
}

fn cells(row: &Row) -> Vec<String> {
    let median = |spread: Option<Spread>| spread.map_or(String::new(), |s| ms(s.median));
    let number = |value: Option<f64>, digits: usize| {
        value.map_or(String::new(), |v| format!("{v:.digits$}"))
    };
    vec![
        row.implementation.clone(),
        median(row.single_ms),
        row.single_ms
            .map_or(String::new(), |s| format!("{}–{}", ms(s.p10), ms(s.p90))),
        row.tflops.map_or(String::new(), rate),
        median(row.back_to_back_ms),
        median(row.graph_ms),
        number(row.times_baseline, 2),
        number(row.efficiency, 3),
        row.launches.map_or(String::new(), |n| n.to_string()),
        row.transport.join(", "),
        check(row),
    ]
}

fn check(row: &Row) -> String {
    match (row.status, &row.verification) {
        (Status::NotRun, _) | (Status::Ok, None) => "not run".into(),
        (Status::Wrong, Some(verdict)) if verdict.wrong > 0 => {
            format!("WRONG: {} of {}", verdict.wrong, verdict.elements)
        }
        (Status::Wrong, _) => "WRONG".into(),
        (Status::Ok, Some(verdict)) => format!("exact; {:.1e}", verdict.relative_error),
    }
}

/// Three or four significant digits, whether it is a microsecond or a second.
fn ms(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.1}"),
        v if v >= 10.0 => format!("{v:.2}"),
        v if v >= 1.0 => format!("{v:.3}"),
        v => format!("{v:.4}"),
    }
}

fn rate(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provenance::Provenance;
    use crate::shape::Shape;
    use crate::verification::Verdict;

    #[test]
    fn rows_that_ran_and_rows_that_did_not_are_both_told() {
        let ran = Row {
            status: Status::Ok,
            reason: None,
            transport: vec!["copy-engine".into()],
            single_ms: Spread::of(&[0.05, 0.06, 0.07]),
            times_baseline: Some(1.25),
            verification: Some(Verdict {
                relative_error: 2.1e-4,
                ..Verdict::default()
            }),
            ..Row::not_run("baselineCudaAllgatherMatmul", String::new())
        };
        let report = Report {
            schema: crate::report::SCHEMA,
            suite: "fused-matmul".into(),
            provenance: Provenance::sample(),
            results: vec![ProblemReport {
                shape: Shape::new(64, 32, 16),
                dtype: "f16",
                world: 4,
                limit: None,
                rows: vec![
                    ran,
                    Row::not_run("multimemGatherScalarCompute", "multicast is off".into()),
                ],
            }],
            notes: vec![],
        };
        let mut out = Vec::new();
        print(&report, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("M×N×K = 64x32x16, f16, 4 ranks"), "{text}");
        assert!(
            text.contains("| 0.0600 |") && text.contains("exact; 2.1e-4"),
            "{text}"
        );
        assert!(
            text.contains("multimemGatherScalarCompute was not run: multicast is off"),
            "{text}"
        );
        assert_eq!(report.wrong().count(), 0);
    }
}
