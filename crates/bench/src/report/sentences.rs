//! What stands in words around the tables, the same for every view.

use super::grid::{ms, rate};
use super::{Breakdown, Group, Mean, ProblemReport, Report, Status};
use crate::suite::Figure;

/// What the columns mean, line by line.
pub(super) const LEGEND: [&str; 6] = [
    "ms, p10–p90: one call, ranks aligned on the device, slowest rank; median.",
    "× base: the baseline's ms over this row's. eff.: the limit over ms.",
    "published: ms of the same on another machine, by whom is said below a table.",
    "in a row, graph: ms of a call among calls, graph launches, that follow on.",
    "launches: kernels, products and collectives; no copies, signals or waits.",
    "check: every element of every rank; exact with integers; error with reals.",
];

/// The problem.
pub(super) fn problem(result: &ProblemReport) -> String {
    let ranks = match result.world {
        1 => "1 rank".into(),
        world => format!("{world} ranks"),
    };
    let operation = result
        .operation
        .as_ref()
        .map_or(String::new(), |o| format!("{o}, "));
    format!(
        "{operation}M×N×K = {}, {}, {ranks}",
        result.shape, result.dtype
    )
}

/// Why rows did not run or were wrong, the limit, and the breakdown.
pub(super) fn findings(result: &ProblemReport) -> Vec<String> {
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
    if let Some(limit) = &result.limit {
        let transfer = match (limit.bandwidth_gb_s, &limit.transport) {
            (Some(bandwidth), Some(transport)) => format!(
                "{} into a rank in {} ms at {} GB/s ({transport})",
                size(limit.bytes),
                ms(limit.transfer_ms),
                rate(bandwidth)
            ),
            _ => "nothing to transfer".into(),
        };
        lines.push(format!(
            "limit {} ms: product alone {} ms ({} TFLOP/s), {transfer}",
            ms(limit.ms),
            ms(limit.gemm_ms.median),
            rate(limit.gemm_tflops)
        ));
    }
    lines.extend(result.breakdown.as_ref().map(breakdown));
    lines.extend(groups(result));
    lines.extend(published(&result.published));
    lines
}

/// The baseline and the limit of each group, where rows were not all measured in the same rounds.
fn groups(result: &ProblemReport) -> Vec<String> {
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
fn published(figures: &[Figure]) -> Vec<String> {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    for figure in figures {
        let told = format!("{} {} ms", figure.what, ms(figure.ms));
        match lines
            .iter_mut()
            .find(|(source, _)| *source == figure.source)
        {
            Some((_, line)) => line.push(told),
            None => lines.push((&figure.source, vec![told])),
        }
    }
    lines
        .into_iter()
        .map(|(source, told)| format!("published ({source}): {}", told.join("; ")))
        .collect()
}

fn breakdown(breakdown: &Breakdown) -> String {
    let parts = [
        ("empty call", breakdown.empty_ms),
        ("handshake", breakdown.handshake_ms),
        ("gather", breakdown.gather_ms),
        ("CUTLASS product", breakdown.product_ms),
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
pub(super) fn algorithms(result: &ProblemReport) -> Vec<String> {
    let alone = result
        .limit
        .iter()
        .map(|limit| ("product alone", &limit.gemm_algorithms));
    let rows = result.rows.iter();
    rows.map(|row| (row.implementation.as_str(), &row.algorithms))
        .chain(alone)
        .filter(|(_, algorithms)| !algorithms.is_empty())
        .map(|(name, algorithms)| format!("{name} multiplies by {}", counted(algorithms)))
        .collect()
}

/// Each of `names` once, with how often it is there.
fn counted(names: &[String]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| known == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    let told = counts.into_iter().map(|(name, count)| match count {
        1 => name.to_owned(),
        count => format!("{name} ({count} times)"),
    });
    told.collect::<Vec<_>>().join(", ")
}

/// The means over all problems and the findings of the whole run.
pub(super) fn conclusions(report: &Report) -> Vec<String> {
    let means = report.means.iter().map(mean);
    means.chain(report.notes.iter().cloned()).collect()
}

fn mean(mean: &Mean) -> String {
    let in_a_row = mean
        .times_baseline_back_to_back
        .map_or(String::new(), |ratio| format!(", {ratio:.3} in a row"));
    format!(
        "{} is {:.3} × {}{in_a_row}: geometric mean over {} {} problem{}",
        mean.implementation,
        mean.times_baseline,
        mean.baseline,
        mean.problems,
        mean.dtype,
        if mean.problems == 1 { "" } else { "s" }
    )
}
