//! The report as a Markdown document, for folders of results and for pull requests.

use std::io::{self, Write};

use super::grid::Grid;
use super::{Report, sentences};

/// Writes `report` to `out`.
///
/// # Errors
/// What `out` reports.
pub fn markdown(report: &Report, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    writeln!(out, "# {}\n\n{}\n", report.suite, report.provenance)?;
    writeln!(out, "{}", escaped(&report.reproduces))?;
    if let Some(overview) = Grid::of_all_problems(report) {
        writeln!(out, "\n## All problems\n")?;
        table(&overview, out)?;
    }
    let conclusions = sentences::conclusions(report);
    if !conclusions.is_empty() {
        writeln!(out)?;
        list(&conclusions, out)?;
    }
    for result in &report.results {
        writeln!(out, "\n## {}\n", sentences::problem(result))?;
        table(&Grid::of_problem(result), out)?;
        writeln!(out)?;
        list(&sentences::findings(result), out)?;
        list(&sentences::algorithms(result), out)?;
    }
    writeln!(out, "\n## Columns\n")?;
    list(&sentences::LEGEND, out)
}

pub(crate) fn table(grid: &Grid, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    row(&grid.headings, out)?;
    let rules = (0..grid.headings.len()).map(|column| match grid.is_words(column) {
        true => "---",
        false => "---:",
    });
    row(rules, out)?;
    grid.rows.iter().try_for_each(|cells| row(cells, out))
}

fn row<S: AsRef<str>>(
    cells: impl IntoIterator<Item = S>,
    out: &mut (impl Write + ?Sized),
) -> io::Result<()> {
    write!(out, "|")?;
    for cell in cells {
        write!(out, " {} |", escaped(cell.as_ref()))?;
    }
    writeln!(out)
}

pub(crate) fn list<S: AsRef<str>>(lines: &[S], out: &mut (impl Write + ?Sized)) -> io::Result<()> {
    lines
        .iter()
        .try_for_each(|line| writeln!(out, "- {}", escaped(line.as_ref())))
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

    #[test]
    fn a_document_has_the_tables_the_reasons_and_the_legend() {
        let mut out = Vec::new();
        markdown(&Report::sample(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "# fused-matmul\n\n4 × host",
            "## all-gather-matmul, M×N×K = 64x32x16, f16, 4 ranks\n\n| implementation | ms |",
            "|\n| --- | ---: |",
            "| baselineCudaAllgatherMatmul | 0.0600 | 0.0520–0.0680 |",
            "- multimemGatherScalarCompute was not run: multicast is off \\| \\`0\\`",
            "- baselineCudaAllgatherMatmul multiplies by blocked",
            "- second is 0.990 × first: geometric mean over 10 bf16 problems",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
