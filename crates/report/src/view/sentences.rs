//! The sentences around the tables, the same for every view.

use super::table::{ms, names, rate};
use crate::model::{
    Breakdown, Group, Kind, Limit, Mean, Metric, Operands, Outcome, Published, Report, Status,
};
use crate::statistics::{counted, distinct};

/// What the columns mean, line by line.
pub(super) fn legend(report: &Report) -> &'static [&'static str] {
    match report.is_of_collectives() {
        true => &OF_COLLECTIVES,
        false => &OF_PLANS,
    }
}

const OF_PLANS: [&str; 6] = [
    "ms, p10–p90: one call, ranks aligned on the device, slowest rank; median.",
    "× base: the baseline's ms over this row's. eff.: the limit over ms.",
    "published: ms of the same on another machine, which is named below a table.",
    "back to back, graph: ms of one of several calls, graph launches, in sequence.",
    "launches: kernels, GEMMs and collectives; no copies, signals or waits.",
    "check: every element of every rank; exact with integers; error with reals.",
];

const OF_COLLECTIVES: [&str; 7] = [
    "µs, median of the slowest rank; columns: what a rank brings in bytes.",
    "one call, one graph launch: ranks aligned on the device before each.",
    "back to back: one of several calls or graph launches in sequence.",
    "limit: the fewest bytes into a GPU over the links' bandwidth; eff.: limit / time.",
    "best: the fastest of ours; × nccl: NCCL's time over it, more is faster.",
    "select: the variant selected by size and machine; its own row, not timed twice.",
    "check: every element of every rank, exact; – was not run, WRONG was not right.",
];

/// The problem, or the operation without its size.
pub(super) fn title(result: &Outcome) -> String {
    let operation = result.operation.iter().map(|o| o.to_string());
    let shape = match result.on {
        Operands::Matrices { shape } => Some(format!("M×N×K = {shape}")),
        Operands::Message { .. } => None,
    };
    let parts = operation.chain(shape);
    let parts = parts.chain([result.dtype.to_string(), ranks(result.world)]);
    parts.collect::<Vec<_>>().join(", ")
}

/// As `4 ranks`.
pub fn ranks(world: usize) -> String {
    match world {
        1 => "1 rank".into(),
        world => format!("{world} ranks"),
    }
}

/// Why rows did not run or were wrong, the limit, and the breakdown.
pub(super) fn findings(result: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &result.rows {
        let what = match row.status {
            Status::Ok => continue,
            Status::Wrong => "WRONG",
            Status::NotRun => "not run",
        };
        let reason = row.reason.as_deref().unwrap_or("no reason known");
        lines.push(format!("{} was {what}: {reason}", row.implementation));
    }
    lines.extend(result.limit.as_ref().map(limit));
    lines.extend(result.breakdown.as_ref().map(breakdown));
    lines.extend(groups(result));
    lines.extend(published(&result.published));
    lines
}

fn limit(limit: &Limit) -> String {
    let transfer = match (limit.bandwidth_gb_s, &limit.transport) {
        (Some(bandwidth), Some(transport)) => format!(
            "{} into a rank in {} ms at {} GB/s ({transport})",
            size(limit.bytes),
            ms(limit.transfer_ms.unwrap_or_default()),
            rate(bandwidth)
        ),
        _ => "nothing to transfer".into(),
    };
    let gemm = limit.gemm_ms.map_or(f64::NAN, |spread| spread.median);
    format!(
        "limit {} ms: GEMM alone {} ms ({} TFLOP/s), {transfer}",
        ms(limit.ms),
        ms(gemm),
        rate(limit.gemm_tflops.unwrap_or(f64::NAN))
    )
}

/// Which variants are fastest, why rows did not run or were wrong, and how much was compared.
pub(super) fn findings_over_sizes(sizes: &[Outcome]) -> Vec<String> {
    let mut lines = Vec::new();
    for metric in [Metric::Single, Metric::GraphSingle] {
        let best = sizes.iter().filter_map(|outcome| {
            let row = outcome.fastest(metric)?;
            Some((row.implementation.as_str(), outcome.size()))
        });
        let best: Vec<_> = best.collect();
        if !best.is_empty() {
            let ranges = ranges(&best).join(", ");
            lines.push(format!("fastest, {}: {ranges}", metric.title()));
        }
    }
    for name in names(sizes) {
        let rows = sizes.iter().filter_map(|outcome| {
            let row = outcome.row(&name)?;
            Some((row.status, outcome.size(), row.reason.as_deref()?))
        });
        let rows: Vec<_> = rows.collect();
        for (what, status) in [
            ("was WRONG", Status::Wrong),
            ("was not run", Status::NotRun),
            ("has no graph", Status::Ok),
        ] {
            let all: Vec<_> = rows.iter().filter(|(of, ..)| *of == status).collect();
            for same in all.chunk_by(|(_, _, a), (_, _, b)| a == b) {
                let sizes: Vec<_> = same.iter().map(|(_, size, _)| size.as_str()).collect();
                let (_, _, reason) = same[0];
                lines.push(format!("{name} {what} at {}: {reason}", sizes.join(", ")));
            }
        }
    }
    let verified = sizes.iter().flat_map(|outcome| &outcome.rows);
    let verified = verified.filter_map(|row| row.verification.as_ref());
    let (calls, elements, wrong) = verified.fold((0, 0, 0), |(c, e, w), verdict| {
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
fn ranges(best: &[(&str, String)]) -> Vec<String> {
    let runs = best.chunk_by(|(a, _), (b, _)| a == b);
    runs.map(|run| match run {
        [(name, size)] => format!("{name} at {size}"),
        [(name, first), .., (_, last)] => format!("{name} at {first}–{last}"),
        [] => String::new(),
    })
    .collect()
}

/// The baseline and the limit of each group, where rows were not all measured in the same rounds.
fn groups(result: &Outcome) -> Vec<String> {
    let count = result.groups.len();
    if count <= 1 {
        return Vec::new();
    }
    let group = |(number, group): (usize, &Group)| {
        let baseline = group
            .baseline_ms
            .map(|spread| format!("baseline {} ms", ms(spread.median)));
        let limit = group
            .limit_ms
            .map(|limit| format!("limit {} ms", ms(limit)));
        let told = baseline.into_iter().chain(limit).collect::<Vec<_>>();
        format!("group {number}: {}", told.join(", "))
    };
    let head = format!(
        "measured in {count} groups; × base and eff. are to the baseline and the limit of a row's group"
    );
    std::iter::once(head)
        .chain((1..).zip(&result.groups).map(group))
        .collect()
}

/// The figures of others, each source once.
fn published(figures: &[Published]) -> Vec<String> {
    let sources = distinct(figures.iter().map(|figure| &figure.source));
    let line = |source: &String| {
        let own = figures.iter().filter(|figure| figure.source == *source);
        let told = own.map(|figure| format!("{} {} ms", figure.what, ms(figure.ms)));
        let told = told.collect::<Vec<_>>().join("; ");
        format!("published ({source}): {told}")
    };
    sources.into_iter().map(line).collect()
}

fn breakdown(breakdown: &Breakdown) -> String {
    let parts = [
        ("empty call", breakdown.empty_ms),
        ("handshake", breakdown.handshake_ms),
        ("gather", breakdown.gather_ms),
        ("CUTLASS GEMM", breakdown.gemm_ms),
        ("together", breakdown.together_ms),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter_map(|(name, time)| Some(format!("{name} {}", ms((*time)?.median))))
        .collect();
    format!("{}: {} ms", breakdown.implementation, parts.join(", "))
}

fn size(bytes: usize) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e6 => format!("{:.1} MB", bytes / 1e6),
        bytes => format!("{:.1} kB", bytes / 1e3),
    }
}

/// The algorithms that tuning chose, row by row.
pub(super) fn algorithms(result: &Outcome) -> Vec<String> {
    let alone = result
        .limit
        .iter()
        .map(|limit| ("GEMM alone", &limit.gemm_algorithms));
    let rows = result.rows.iter();
    rows.map(|row| (row.implementation.as_str(), &row.algorithms))
        .chain(alone)
        .filter(|(_, algorithms)| !algorithms.is_empty())
        .map(|(name, algorithms)| format!("{name} multiplies by {}", counted(algorithms)))
        .collect()
}

/// The means over all problems and the findings of the whole run.
pub(super) fn conclusions(report: &Report) -> Vec<String> {
    let links = report.links.iter().map(|links| {
        let rate = rate(links.bandwidth_gb_s);
        format!("links: {rate} GB/s into each GPU ({})", links.transport)
    });
    let has_peers = report.rows().any(|(_, row)| row.kind == Kind::Peer);
    let peers = report.peers.iter().filter(|_| has_peers).map(|by| {
        format!(
            "rows torch-*: measured by {by} in a process of its own, not by this program's clock"
        )
    });
    let means = report.means.iter().map(mean);
    let notes = report.notes.iter().cloned();
    links.chain(peers).chain(means).chain(notes).collect()
}

fn mean(mean: &Mean) -> String {
    let back_to_back = mean
        .times_baseline_back_to_back
        .map_or(String::new(), |ratio| format!(", {ratio:.3} back to back"));
    format!(
        "{} is {:.3} × {}{back_to_back}: geometric mean over {} {} problem{}",
        mean.implementation,
        mean.times_baseline,
        mean.baseline,
        mean.problems,
        mean.dtype,
        if mean.problems == 1 { "" } else { "s" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_run_is_told_once_and_peers_are_marked() {
        let report = Report::sample_of_collectives();
        let lines = findings_over_sizes(&report.results);
        assert_eq!(
            lines,
            [
                "fastest, one call: packets at 4K, push at 16M",
                "fastest, one graph launch: packets at 4K, push at 16M",
                "packets was not run at 16M: 16777216 bytes | too many",
            ]
        );
        let lines = conclusions(&report);
        assert!(lines[0].contains("381 GB/s"), "{lines:?}");
        assert!(lines[1].contains("PyTorch 2.11.0"), "{lines:?}");
        let one = [("push", "4K"), ("push", "8K"), ("pull", "16K")];
        let one = one.map(|(name, size)| (name, size.to_owned()));
        assert_eq!(ranges(&one), ["push at 4K–8K", "pull at 16K"]);
    }
}
