//! The report as Markdown.

use std::io::{self, Write};

use super::sections::{View, sections};
use super::sentences;
use super::table::Grid;
use crate::model::Report;

/// Writes all of `report`.
///
/// # Errors
/// What `out` reports.
pub fn markdown(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    head(report, out)?;
    for section in sections(report) {
        writeln!(out, "\n## {}\n", section.title)?;
        for table in section.tables(View::Markdown) {
            if !table.caption.is_empty() {
                writeln!(out, "### {}\n", table.caption)?;
            }
            write_table(&table.grid, out)?;
            writeln!(out)?;
        }
        list(&section.findings, out)?;
        list(&section.algorithms, out)?;
    }
    writeln!(out, "\n## Columns\n")?;
    list(sentences::legend(report), out)
}

pub(super) fn head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "# {}\n\n{}", report.suite, report.provenance)?;
    if !report.reproduces.is_empty() {
        writeln!(out, "\n{}", escaped(&report.reproduces))?;
    }
    if let Some(overview) = Grid::of_all_problems(report) {
        writeln!(out, "\n## All problems\n")?;
        write_table(&overview, out)?;
    }
    let conclusions = sentences::conclusions(report);
    if !conclusions.is_empty() {
        writeln!(out)?;
        list(&conclusions, out)?;
    }
    Ok(())
}

pub(super) fn write_table(grid: &Grid, out: &mut dyn Write) -> io::Result<()> {
    row(&grid.headings, out)?;
    let rules = (0..grid.headings.len()).map(|column| match grid.is_text(column) {
        true => "---",
        false => "---:",
    });
    row(rules, out)?;
    grid.rows.iter().try_for_each(|cells| row(cells, out))
}

fn row<S: AsRef<str>>(cells: impl IntoIterator<Item = S>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "|")?;
    for cell in cells {
        write!(out, " {} |", escaped(cell.as_ref()))?;
    }
    writeln!(out)
}

pub(super) fn list<S: AsRef<str>>(lines: &[S], out: &mut dyn Write) -> io::Result<()> {
    let mut lines = lines.iter();
    lines.try_for_each(|line| writeln!(out, "- {}", escaped(line.as_ref())))
}

/// Text that Markdown would take for markup or for the end of a cell.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => escaped.push(' '),
            '|' | '<' | '*' | '`' => escaped.extend(['\\', c]),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Group, Outcome};
    use crate::statistics::Spread;

    fn written(report: &Report) -> String {
        let mut out = Vec::new();
        markdown(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_document_has_the_tables_the_reasons_and_the_legend() {
        let plans = [
            "# fused-matmul\n\n4 × host",
            "## all-gather-matmul, M×N×K = 64x32x16, f16, 4 ranks\n\n| implementation | ms |",
            "|\n| --- | ---: |",
            "| baselineCudaAllgatherMatmul | 0.0600 | 0.0520–0.0680 |",
            "- multimemGatherScalarCompute was not run: multicast is off \\| \\`0\\`",
            "- baselineCudaAllgatherMatmul multiplies by blocked",
            "- second is 0.990 × first: geometric mean over 10 bf16 problems",
        ];
        let collectives = [
            "# collectives\n\n4 × host",
            "## all-gather, bf16, 4 ranks\n",
            "### µs of one call\n\n| implementation | 4K | 16M |\n| --- | ---: | ---: |\n\
             | nccl | 21.0 | 197 |",
            "### µs of one graph launch\n",
            "### p10–p90 of one call, µs\n",
            "- packets was not run at 16M: 16777216 bytes \\| too many",
        ];
        let reports =
            [Report::sample(), Report::sample_of_collectives()].map(|report| written(&report));
        for (text, parts) in reports.iter().zip([&plans[..], &collectives]) {
            for part in parts {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        assert!(!reports[1].contains("back to back\n"), "{}", reports[1]);
    }

    /// A report whose rows were measured in two groups, with a peer.
    fn in_two_groups() -> Report {
        let mut report = Report::sample();
        let result = &mut report.results[0];
        let group = |baseline: f64, limit: f64| Group {
            baseline_ms: Spread::of(&[baseline]),
            limit_ms: Some(limit),
            ..Group::default()
        };
        result.groups = vec![group(0.0700, 0.0300), group(0.0800, 0.0400)];
        let mut second = result.rows[0].clone();
        second.implementation = "second".into();
        result.rows[0].group = Some(0);
        second.group = Some(1);
        result.rows.insert(1, second);
        let results = report.results.into_iter().map(Outcome::compared);
        report.results = results.collect();
        report
    }

    #[test]
    fn every_ratio_follows_from_what_the_document_says() {
        let text = written(&in_two_groups());
        let table = text
            .lines()
            .skip_while(|line| !line.starts_with("| implementation"));
        let mut table = table.filter_map(|line| line.strip_prefix("| "));
        let cells = |line: &str| {
            let cells = line.split('|').map(|cell| cell.trim().to_owned());
            cells.collect::<Vec<_>>()
        };
        let headings = cells(table.next().unwrap());
        let column = |name: &str| headings.iter().position(|heading| heading == name).unwrap();
        // What stands of a group below the table, as `group 2: baseline 0.0800 ms, limit 0.0400 ms`.
        let said = |group: &str, what: &str| -> f64 {
            let prefix = format!("- group {group}: ");
            let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
            let after = line.unwrap().split(what).nth(1).unwrap();
            after.split_whitespace().next().unwrap().parse().unwrap()
        };
        let mut checked = Vec::new();
        for row in table
            .map(cells)
            .filter(|row| !row[column("ms")].is_empty() && row[1] != "---:")
        {
            let number = |name: &str| row[column(name)].parse::<f64>().unwrap();
            let group = &row[column("group")];
            let (base, limit) = (said(group, "baseline "), said(group, "limit "));
            assert_eq!(
                row[column("× base")],
                format!("{:.2}", base / number("ms")),
                "{text}"
            );
            assert_eq!(
                row[column("eff.")],
                format!("{:.3}", limit / number("ms")),
                "{text}"
            );
            checked.push(group.clone());
        }
        assert_eq!(checked, ["1", "2", "1"], "two rows of ours and the peer");
    }

    #[test]
    fn rows_of_a_single_group_do_not_name_it() {
        assert!(!written(&Report::sample()).contains("group"));
    }
}
