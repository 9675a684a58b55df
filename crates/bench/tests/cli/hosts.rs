//! Jobs over two hosts, which are network namespaces with a cable between them.

use crate::cable::{ADDRESSES, Hosts};
use crate::job::{self, Outcome, Patience, has, names_one_of};

use std::process::Child;
use std::time::Duration;

use serde_json::Value;

/// Runs the words of `line` on four ranks, two a host.
fn run_on(
    hosts: &Hosts,
    line: &str,
    patience: impl Into<Patience>,
    meanwhile: impl FnOnce(&mut [Child]),
) -> Outcome {
    let (patience, store) = (patience.into(), format!("{}:4000", ADDRESSES[0]));
    let ranks = (0..4).map(|rank| {
        let mut command = job::rank_of((rank, 4), &store, patience);
        command.args(job::args(line));
        hosts.on(rank / 2, &command)
    });
    job::run_commands(ranks.collect(), Duration::from_secs(120), meanwhile)
}

/// Runs a suite, and gives what it reports.
fn measured(hosts: &Hosts, suite: &str, more: &str) -> (Outcome, Value) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let bench = format!("bench --device host --suite {suite} --iterations 1 --shape 64x48x40");
    let line = format!("{bench} --json {}{more}", file.display());
    let outcome = run_on(hosts, &line, job::PATIENT, |_| ());
    let text = std::fs::read_to_string(&file);
    let text = text.unwrap_or_else(|_| panic!("{suite}: {}", outcome.errors(0)));
    (outcome, serde_json::from_str(&text).unwrap())
}

#[test]
fn plans_over_nodes_run_on_two_hosts_and_are_exact() {
    let Some(hosts) = Hosts::new() else { return };
    let (outcome, report) = measured(&hosts, "recipes", " --impl hierarchical");
    outcome.succeeded();
    let row = &report["results"][0]["rows"][0];
    assert_eq!(row["status"], "ok", "{}", row["reason"]);
    assert_eq!(row["verification"]["wrong"], 0);
    assert_eq!(report["provenance"]["nodes"], 2);
}

#[test]
fn every_suite_runs_on_two_hosts_what_spans_them_and_says_why_not_the_rest() {
    let Some(hosts) = Hosts::new() else { return };
    let suites = [
        (
            "recipes",
            " --impl baselineNcclAllgatherMatmul,hierarchical,hierarchical:chunks=2,ringPut",
            "hierarchical:chunks=2",
        ),
        (
            "row-parallel",
            " --impl rowParallelLinear,rowParallelLinear:reduce=symmetric,rowParallelLinearPipeline",
            "rowParallelLinearPipeline:nodes=2",
        ),
        ("column-parallel", "", "hierarchicalColumnParallelLinear"),
        ("matmul-reduce-scatter", "", "reduceScatterPipeline:nodes=2"),
        ("matmul-all-reduce", "", "allReducePipeline:nodes=2"),
        ("overlap-allgather", "", "overlappedAllGather"),
        (
            "layers",
            " --impl columnParallelLinear,rowParallelLinearPipeline",
            "rowParallelLinearPipeline:nodes=2",
        ),
        ("gemm", "", "cublasLt"),
    ];
    for (suite, more, spans) in suites {
        let (outcome, report) = measured(&hosts, suite, more);
        outcome.succeeded();
        let results = report["results"].as_array().unwrap();
        let rows = results
            .iter()
            .flat_map(|result| result["rows"].as_array().unwrap());
        let mut ran = Vec::new();
        for row in rows {
            let name = format!("{suite}: {}", row["implementation"]);
            if row["status"] == "ok" {
                assert_eq!(row["verification"]["wrong"], 0, "{name}");
                ran.push(row["implementation"].as_str().unwrap());
                continue;
            }
            assert_eq!(row["status"], "not-run", "{name}: {}", row["reason"]);
            has(
                row["reason"].as_str().unwrap(),
                &["rank 0 is in node 0 and rank 2 in node 1"],
            );
        }
        assert!(ran.contains(&spans), "{suite}: {ran:?}");
    }
}

/// Waits on the device, and in the exchange.
const PATIENCE: Patience = Patience {
    device: Duration::from_secs(2),
    exchange: Duration::from_secs(4),
};

/// For a whole run: every wait of a rank, one after the other, on a machine that does other work too.
const BOUND: Duration = Duration::from_secs(40);

/// Four ranks in the middle of endless calls, when `happens` does something to them.
fn in_mid_run(hosts: &Hosts, happens: impl FnOnce(&mut [Child])) -> Outcome {
    let line = "bench --device host --suite recipes --shape 256x64x64 --impl hierarchical \
                --iterations 4000";
    let outcome = run_on(hosts, line, PATIENCE, |ranks| {
        std::thread::sleep(Duration::from_secs(2));
        happens(ranks);
    });
    assert!(outcome.took < BOUND, "{:?}", outcome.took);
    outcome
}

#[test]
fn a_cut_cable_is_an_error_that_names_the_other_host() {
    let Some(hosts) = Hosts::new() else { return };
    let outcome = in_mid_run(&hosts, |_| hosts.cut());
    for rank in 0..4 {
        let error = outcome.errors(rank);
        assert!(
            !outcome.ranks[rank].status.success(),
            "rank {rank}: {error}"
        );
        let others = [2..4, 0..2][rank / 2].clone();
        assert!(names_one_of(&error, others), "rank {rank}: {error}");
        println!("{rank}: {error} {:?}", outcome.ends[rank]);
    }
}

#[test]
fn a_host_whose_ranks_are_killed_is_named() {
    let Some(hosts) = Hosts::new() else { return };
    let outcome = in_mid_run(&hosts, |ranks| {
        ranks[2..].iter_mut().for_each(|rank| rank.kill().unwrap());
    });
    for rank in 0..2 {
        let error = outcome.errors(rank);
        assert!(
            !outcome.ranks[rank].status.success(),
            "rank {rank}: {error}"
        );
        assert!(names_one_of(&error, 2..4), "rank {rank}: {error}");
        println!("{rank}: {error} {:?}", outcome.ends[rank]);
    }
}

#[test]
fn a_slow_cable_takes_longer_and_is_right() {
    let Some(hosts) = Hosts::new() else { return };
    if let Err(reason) = hosts.slow_down(10) {
        eprintln!("skipped: no slow cable here: {reason}");
        return;
    }
    let (outcome, report) = measured(&hosts, "recipes", " --impl hierarchical");
    outcome.succeeded();
    let row = &report["results"][0]["rows"][0];
    assert_eq!(
        (&row["status"], row["verification"]["wrong"].as_u64()),
        (&"ok".into(), Some(0))
    );
}
