//! What stands in words around the tables.

use super::grid::names;
use super::{Kind, Metric, Outcome, Report};
use crate::collectives::size::Bytes;
use crate::report::Status;
use crate::report::grid::rate;

/// What tables and lines mean.
pub(super) const LEGEND: [&str; 7] = [
    "µs, median of the slowest rank; columns: what a rank brings in bytes.",
    "one call, one graph launch: ranks aligned on the device before each.",
    "in a row: of calls or graph launches that follow each other.",
    "limit: the fewest bytes into a GPU over the links' speed; eff.: limit / time.",
    "best: the quickest of ours; × nccl: NCCL's time over it, more is faster.",
    "select: the variant chosen by size and machine; its own row, not timed twice.",
    "check: every element of every rank, exact; – was not run, WRONG was not right.",
];

/// The operation.
pub(super) fn operation(sizes: &[Outcome]) -> String {
    let Some(first) = sizes.first() else {
        return String::new();
    };
    let ranks = match first.world {
        1 => "1 rank".into(),
        world => format!("{world} ranks"),
    };
    format!("{}, {}, {ranks}", first.operation, first.dtype)
}

/// Which variants are quickest, why rows did not run or were wrong, and how much was compared.
pub(super) fn findings(sizes: &[Outcome]) -> Vec<String> {
    let mut lines = Vec::new();
    for metric in [Metric::Single, Metric::GraphSingle] {
        let best = sizes.iter().filter_map(|outcome| {
            Some((outcome.best(metric)?.implementation.as_str(), outcome.size))
        });
        let best: Vec<_> = best.collect();
        if !best.is_empty() {
            lines.push(format!(
                "quickest, {}: {}",
                metric.title(),
                ranges(&best).join(", ")
            ));
        }
    }
    for name in names(sizes) {
        let rows = || {
            let of_name = sizes
                .iter()
                .filter_map(|outcome| Some((outcome.row(&name)?, outcome.size)));
            of_name.filter_map(|(row, size)| Some((row, size, row.reason.as_deref()?)))
        };
        for (what, status) in [
            ("was WRONG", Status::Wrong),
            ("was not run", Status::NotRun),
            ("has no graph", Status::Ok),
        ] {
            let all: Vec<_> = rows().filter(|(row, ..)| row.status == status).collect();
            for same in all.chunk_by(|(_, _, a), (_, _, b)| a == b) {
                let sizes: Vec<_> = same.iter().map(|(_, size, _)| size.to_string()).collect();
                let (_, _, reason) = same[0];
                lines.push(format!("{name} {what} at {}: {reason}", sizes.join(", ")));
            }
        }
    }
    let verified = sizes.iter().flat_map(|outcome| &outcome.rows);
    let verified: Vec<_> = verified
        .filter_map(|row| row.verification.as_ref())
        .collect();
    let (calls, elements, wrong) = verified.iter().fold((0, 0, 0), |(c, e, w), verdict| {
        (c + verdict.calls, e + verdict.elements, w + verdict.wrong)
    });
    if calls > 0 {
        lines.push(format!(
            "{calls} calls verified on every rank: {elements} elements compared, {wrong} wrong"
        ));
    }
    lines
}

/// Names with the sizes that follow each other: `packets at 4K–64K`.
fn ranges(best: &[(&str, Bytes)]) -> Vec<String> {
    let runs = best.chunk_by(|(a, _), (b, _)| a == b);
    runs.map(|run| match run {
        [(name, size)] => format!("{name} at {size}"),
        [(name, first), .., (_, last)] => format!("{name} at {first}–{last}"),
        [] => String::new(),
    })
    .collect()
}

/// Findings of the whole run.
pub(super) fn conclusions(report: &Report) -> Vec<String> {
    let links = report.links.iter().map(|links| {
        format!(
            "links: {} GB/s into each GPU ({})",
            rate(links.bandwidth_gb_s),
            links.transport
        )
    });
    let shown = |kind| {
        report
            .results
            .iter()
            .flat_map(|o| &o.rows)
            .any(|row| row.kind == kind)
    };
    let peers = report.peers.iter().filter(|_| shown(Kind::Peer)).map(|by| {
        format!(
            "rows torch-*: measured by {by} in a process of its own, not by this program's clock"
        )
    });
    links
        .chain(peers)
        .chain(report.notes.iter().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run_is_told_once_and_peers_are_marked() {
        let report = Report::sample();
        let lines = findings(&report.results);
        assert_eq!(
            lines,
            [
                "quickest, one call: packets at 4K, push at 16M",
                "quickest, one graph launch: packets at 4K, push at 16M",
                "packets was not run at 16M: 16777216 bytes | too many",
            ]
        );
        let lines = conclusions(&report);
        assert!(lines[0].contains("381 GB/s"), "{lines:?}");
        assert!(lines[1].contains("PyTorch 2.11.0"), "{lines:?}");
        let one = [
            ("push", Bytes(4096)),
            ("push", Bytes(8192)),
            ("pull", Bytes(16384)),
        ];
        assert_eq!(ranges(&one), ["push at 4K–8K", "pull at 16K"]);
    }
}
