//! Ranks that die, stall or disagree: the job ends in bounded time, and every surviving rank names the culprit.

use crate::job;

use std::time::Duration;

/// How long a wait on the device may last; an exchange may last twice as long.
const PATIENCE: Duration = Duration::from_secs(2);
/// Both, and the time that an idle machine does not need.
const BOUND: Duration = Duration::from_secs(60);

fn with_fault(fault: &str, implementation: &str) -> job::Outcome {
    let args = [
        "bench", "--device", "host", "--shape", "32x16x24", "--inject", fault,
    ];
    let args = [&args[..], &["--impl", implementation]].concat();
    job::run(&job::all(4, &args), PATIENCE, BOUND)
}

#[test]
fn a_rank_that_dies_is_named_by_all_others() {
    for (culprit, implementation) in [
        (2, "baselineNcclAllgatherMatmul"),
        (0, "threadloadGatherScalarCompute"),
    ] {
        let outcome = with_fault(&format!("kill:{culprit}"), implementation);
        assert!(outcome.took < BOUND, "{:?}", outcome.took);
        assert_eq!(
            outcome.ranks[culprit].status.code(),
            None,
            "killed by a signal"
        );
        for rank in (0..4).filter(|&rank| rank != culprit) {
            let error = outcome.errors(rank);
            assert_eq!(
                outcome.ranks[rank].status.code(),
                Some(1),
                "rank {rank}: {error}"
            );
            assert!(
                error.contains(&format!("lost rank {culprit}")),
                "rank {rank}: {error}"
            );
            assert!(error.contains("the process ended"), "rank {rank}: {error}");
        }
    }
}

#[test]
fn a_rank_that_stalls_is_named_by_all_others() {
    for implementation in ["baselineCudaAllgatherMatmul", "multimemGatherThenCutlass"] {
        let outcome = with_fault("stall:1", implementation);
        assert!(outcome.took < BOUND, "{:?}", outcome.took);
        for rank in [0, 2, 3] {
            let error = outcome.errors(rank);
            assert_eq!(
                outcome.ranks[rank].status.code(),
                Some(1),
                "rank {rank}: {error}"
            );
            assert!(
                error.contains("for rank 1 to signal"),
                "rank {rank}: {error}"
            );
            assert!(error.contains(implementation), "rank {rank}: {error}");
        }
        let own = outcome.errors(1);
        assert!(own.contains("rank 1 stalled, as `--inject` asked"), "{own}");
    }
}

#[test]
fn ranks_with_different_shapes_tell_both() {
    let args = |shape: &str| {
        let args = ["bench", "--device", "host", "--shape", shape];
        args.map(str::to_owned).to_vec()
    };
    let ranks = [args("32x16x24"), args("32x16x24"), args("32x16x40")];
    let outcome = job::run(&ranks, PATIENCE, BOUND);
    for (rank, (mine, theirs, other)) in [("24", "40", 2), ("24", "40", 2), ("40", "24", 0)]
        .into_iter()
        .enumerate()
    {
        let error = outcome.errors(rank);
        assert_eq!(
            outcome.ranks[rank].status.code(),
            Some(1),
            "rank {rank}: {error}"
        );
        let wanted = format!(
            "the list of shapes differs between ranks: 32x16x{mine} bf16 on rank {rank}, 32x16x{theirs} bf16 on rank {other}"
        );
        assert!(error.contains(&wanted), "rank {rank}: {error}");
    }
}
