//! What the suite `collectives` refuses to run, and what it says then.

use super::BENCH;
use crate::job::{self, Said, has};

#[test]
fn ranks_with_different_sizes_tell_both() {
    let of = |sizes: &str| job::all(1, &job::args(&format!("{BENCH} --sizes {sizes}")));
    let ranks = [of("4K"), of("8K")].concat();
    let outcome = job::run(&ranks, job::PATIENT, job::PATIENT * 8);
    for (rank, values) in [
        (0, "4K on rank 0, 8K on rank 1"),
        (1, "8K on rank 1, 4K on rank 0"),
    ] {
        let wanted = format!("the list of sizes differs between ranks: {values}");
        has(&outcome.errors(rank), &[&wanted]);
    }
}

#[test]
fn wrong_options_are_refused_with_what_there_is() {
    for (line, part) in [
        ("collectives --op all-scatter", "reduce-scatter"),
        ("collectives --sizes 4X", "4K"),
        ("collectives --impl fastest", "packets-two-shot"),
        ("collectives --shape 1x2x3", "--shape says nothing"),
        ("collectives --peers none.json", "--peers none.json"),
        ("collectives --plot no/such.svg", "--plot no/such.svg"),
        ("gemm --sizes 4K", "--sizes says nothing to the suite gemm"),
        ("gemm --peers x", "--peers says nothing to the suite gemm"),
    ] {
        let Said { code, err, .. } = job::say(&format!("bench --suite {line} --list"));
        assert_eq!(code, Some(2), "{line}: {err}");
        has(&err, &[part]);
    }
}
