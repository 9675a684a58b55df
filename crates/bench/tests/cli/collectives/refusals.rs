//! What the suite `collectives` refuses to run, and what it says then.

use super::{BENCH, LIMIT, PATIENT};
use crate::job;

#[test]
fn ranks_with_different_sizes_tell_both() {
    let of = |sizes: &str| {
        let args = [&BENCH[..], &["--sizes", sizes]].concat();
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let outcome = job::run(&[of("4K"), of("8K")], PATIENT, LIMIT);
    for (rank, mine, theirs) in [
        (0, "4K on rank 0", "8K on rank 1"),
        (1, "8K on rank 1", "4K on rank 0"),
    ] {
        let error = outcome.errors(rank);
        let wanted = format!("the list of sizes differs between ranks: {mine}, {theirs}");
        assert!(error.contains(&wanted), "rank {rank}: {error}");
    }
}

#[test]
fn wrong_options_are_refused_with_what_there_is() {
    for (args, part) in [
        (
            &["--suite", "collectives", "--op", "all-scatter"][..],
            "reduce-scatter",
        ),
        (&["--suite", "collectives", "--sizes", "4X"], "4K"),
        (
            &["--suite", "collectives", "--impl", "fastest"],
            "packets-two-shot",
        ),
        (
            &["--suite", "collectives", "--shape", "1x2x3"],
            "--shape says nothing",
        ),
        (
            &["--suite", "collectives", "--peers", "none.json"],
            "--peers none.json",
        ),
        (
            &["--suite", "collectives", "--plot", "no/such.svg"],
            "--plot no/such.svg",
        ),
        (
            &["--suite", "gemm", "--sizes", "4K"],
            "--sizes says nothing to the suite gemm",
        ),
        (
            &["--suite", "gemm", "--peers", "x"],
            "--peers says nothing to the suite gemm",
        ),
    ] {
        let output = job::warpweave()
            .arg("bench")
            .args(args)
            .arg("--list")
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(part), "{args:?}: {error}");
    }
}
