//! The report on a terminal: one table per problem where it is wide enough, else two that fit.

use std::io::{self, Write};

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, presets,
};

use super::sections::{View, sections};
use super::sentences;
use super::table::Grid;
use crate::model::Report;

/// Columns of a terminal of unknown width, as after a pipe.
const UNKNOWN_WIDTH: u16 = 80;
/// A table narrower than that is harder to read than one that the terminal wraps.
const LEAST_WIDTH: u16 = 60;
/// The first column of the second table.
const SECOND_HALF: &str = "graph";

/// Columns to write for: `COLUMNS` if it is set, else those of the terminal at standard output or, as under a
/// launcher that passes standard output on, at standard error, else 80.
pub fn width() -> u16 {
    let set = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let terminal = || {
        let out = rustix::termios::tcgetwinsize(io::stdout());
        let size = out.or_else(|_| rustix::termios::tcgetwinsize(io::stderr()));
        size.ok().map(|size| size.ws_col)
    };
    let known = set.or_else(terminal).filter(|&columns| columns > 0);
    known.unwrap_or(UNKNOWN_WIDTH).max(LEAST_WIDTH)
}

/// Writes `report` in at most `width` columns where its text allows it.
///
/// # Errors
/// What `out` reports.
pub fn print(report: &Report, width: u16, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {}", report.suite, report.provenance)?;
    if !report.reproduces.is_empty() {
        writeln!(out, "{}", report.reproduces)?;
    }
    for section in sections(report) {
        for table in section.tables(View::Terminal) {
            match table.caption.as_str() {
                "" => writeln!(out, "\n{}", section.title)?,
                caption => writeln!(out, "\n{}: {caption}", section.title)?,
            }
            print_grid(&table.grid, width, out)?;
        }
        for line in section.findings {
            writeln!(out, "{line}")?;
        }
    }
    if let Some(overview) = Grid::of_all_problems(report) {
        writeln!(out, "\nall problems")?;
        print_grid(&overview, width, out)?;
    }
    writeln!(out)?;
    for line in sentences::legend(report) {
        writeln!(out, "{line}")?;
    }
    let conclusions = sentences::conclusions(report);
    if !conclusions.is_empty() {
        writeln!(out)?;
    }
    conclusions
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))
}

pub(crate) fn print_grid(grid: &Grid, width: u16, out: &mut dyn Write) -> io::Result<()> {
    let whole = table(grid);
    let fits = |table: &Table| {
        let lines = table.lines();
        lines.map(|line| line.chars().count()).max() <= Some(width.into())
    };
    match grid.split(SECOND_HALF) {
        Some(halves) if !fits(&whole) => {
            for (i, half) in halves.iter().enumerate() {
                if i > 0 {
                    writeln!(out)?;
                }
                let mut half = table(half);
                if !fits(&half) {
                    shrink(&mut half, width);
                }
                write(&half, out)?;
            }
            Ok(())
        }
        _ => write(&whole, out),
    }
}

fn table(grid: &Grid) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_style(TableComponent::HeaderLines, '-')
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(&grid.headings)
        .add_rows(&grid.rows);
    let last = grid.headings.len().saturating_sub(1);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, u16::from(i < last)));
        if !grid.is_text(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Wraps words of every column but the first, whose names must stay whole.
fn shrink(table: &mut Table, width: u16) {
    table
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width);
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
}

fn write(table: &Table, out: &mut dyn Write) -> io::Result<()> {
    table
        .lines()
        .try_for_each(|line| writeln!(out, "{}", line.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::has;

    fn printed(width: u16) -> String {
        let mut out = Vec::new();
        print(&Report::sample(), width, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rows_that_ran_and_rows_that_did_not_are_both_told() {
        let text = printed(200);
        has(
            &text,
            &[
                "all-gather-matmul, M×N×K = 64x32x16, f16, 4 ranks",
                "published (8×H100, somebody): fused 0.0430 ms",
                " 0.0600 0.0520–0.0680 ",
                "exact; 2.1e-4",
                "multimemGatherScalarCompute was not run: multicast is off",
            ],
        );
        let lines = text.lines();
        let of_one = lines.filter(|line| line.starts_with("multimemGatherScalarCompute"));
        assert_eq!(of_one.count(), 2, "a row and the reason: {text}");
    }

    #[test]
    fn a_collective_has_two_tables() {
        let mut out = Vec::new();
        print(&Report::sample_of_collectives(), 80, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\nimplementation").count(), 2, "{text}");
        let mut lines = text.lines().skip(1);
        assert!(lines.all(|line| line.chars().count() <= 110), "{text}");
        assert!(Report::sample_of_collectives().is_right());
    }

    #[test]
    fn a_narrow_terminal_gets_two_tables_that_fit() {
        let text = printed(80);
        let tables = text
            .lines()
            .skip_while(|line| !line.starts_with("implementation"))
            .take_while(|line| !line.contains("was not run"));
        for line in tables.clone() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        let heads = tables.filter(|line| line.starts_with("implementation"));
        assert_eq!(heads.count(), 2, "{text}");
        let rows = text.lines();
        let rows: Vec<_> = rows
            .filter(|line| line.starts_with("baselineCudaAllgatherMatmul"))
            .collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert!(rows[0].contains("0.0520–0.0680") && rows[1].contains("copy-engine push"));
    }
}
