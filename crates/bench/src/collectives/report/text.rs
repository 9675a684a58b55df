//! The report for eyes and as a Markdown document.

use std::io::{self, Write};

use super::{Metric, Report, grid, plot, sentences};
use crate::report::{Document, View, markdown, terminal};

impl View for Report {
    fn is_right(&self) -> bool {
        self.wrong().next().is_none()
    }

    fn terminal(&self, width: u16, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}: {}", self.suite, self.provenance)?;
        for sizes in self.operations() {
            for metric in [Metric::Single, Metric::GraphSingle] {
                if let Some(grid) = grid::times(sizes, metric) {
                    writeln!(
                        out,
                        "\n{}: µs of {}",
                        sentences::operation(sizes),
                        metric.title()
                    )?;
                    terminal::print(&grid, width, out)?;
                }
            }
            for line in sentences::findings(sizes) {
                writeln!(out, "{line}")?;
            }
        }
        writeln!(out)?;
        let conclusions = sentences::conclusions(self);
        for line in sentences::LEGEND
            .into_iter()
            .map(str::to_owned)
            .chain(conclusions)
        {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    fn markdown(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "# {}\n\n{}", self.suite, self.provenance)?;
        let conclusions = sentences::conclusions(self);
        if !conclusions.is_empty() {
            writeln!(out)?;
            markdown::list(&conclusions, out)?;
        }
        for sizes in self.operations() {
            writeln!(out, "\n## {}\n", sentences::operation(sizes))?;
            markdown::list(&sentences::findings(sizes), out)?;
            for metric in Metric::ALL {
                if let Some(grid) = grid::times(sizes, metric) {
                    writeln!(out, "\n### µs of {}\n", metric.title())?;
                    markdown::table(&grid, out)?;
                }
            }
            let spreads = grid::spreads(sizes);
            if !spreads.rows.is_empty() {
                writeln!(out, "\n### p10–p90 of one call, µs\n")?;
                markdown::table(&spreads, out)?;
            }
        }
        writeln!(out, "\n## Rows and columns\n")?;
        markdown::list(&sentences::LEGEND, out)
    }

    fn document(&self) -> Document {
        Document::Collectives(self.clone())
    }

    fn costs(&self) -> Option<String> {
        let by = "operation, ranks, variant, bytes=microseconds; single calls, medians of the slowest rank";
        Some(format!(
            "# {by}\n# {}\n{}",
            self.provenance,
            Report::costs(self)
        ))
    }

    fn plot(&self) -> Option<String> {
        Some(plot::svg(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_a_table_for_each_time_that_was_taken() {
        let mut out = Vec::new();
        Report::sample().markdown(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "# collectives\n\n4 × host",
            "## all-gather, bf16, 4 ranks\n",
            "### µs of one call\n\n| implementation | 4K | 16M |\n| --- | ---: | ---: |\n| nccl | 21.0 | 197 |",
            "### µs of one graph launch\n",
            "### p10–p90 of one call, µs\n",
            "- packets was not run at 16M: 16777216 bytes \\| too many",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("in a row\n"), "{text}");
    }

    #[test]
    fn the_terminal_gets_two_tables_an_operation() {
        let mut out = Vec::new();
        Report::sample().terminal(80, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("\nimplementation").count(), 2, "{text}");
        assert!(
            text.lines().skip(1).all(|line| line.chars().count() <= 110),
            "{text}"
        );
        assert!(Report::sample().is_right());
    }
}
