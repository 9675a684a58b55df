use super::*;
use crate::provenance::Provenance;

fn time(implementation: &str, samples: &[f64]) -> Time {
    Time {
        problem: "64x64x64 f16, 4 ranks".into(),
        implementation: implementation.into(),
        what: "call",
        samples: samples.into(),
    }
}

fn run(suite: &str, times: Vec<Time>) -> Saved {
    Saved {
        suite: suite.into(),
        provenance: Provenance::sample(),
        times,
        wrong: Vec::new(),
    }
}

const TIMES: [f64; 9] = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08];

fn compared(factor: f64, threshold: f64) -> Verdict {
    let new = TIMES.map(|time| time * factor);
    let (old, new) = (
        [run("gemm", vec![time("a", &TIMES)])],
        [run("gemm", vec![time("a", &new)])],
    );
    compare((&old, &new), ["A", "B"], threshold).unwrap().lines[0].verdict
}

#[test]
fn a_verdict_needs_the_median_and_the_bound() {
    let of = |medians, interval| Verdict::of(&Ratio { medians, interval }, 0.1);
    assert_eq!(of(1.2, Some((1.11, 1.3))), Verdict::Slower);
    assert_eq!(of(1.2, Some((1.09, 1.3))), Verdict::Unclear);
    assert_eq!(of(1.2, None), Verdict::Unclear);
    // Two humps: the rank sum has moved and the median has not.
    assert_eq!(of(1.05, Some((1.2, 1.3))), Verdict::Same);
    assert_eq!(of(0.8, Some((0.7, 0.9))), Verdict::Faster);
    assert_eq!(of(0.8, Some((0.7, 0.95))), Verdict::Unclear);
    assert_eq!(of(1.0, Some((0.5, 2.0))), Verdict::Same);
}

#[test]
fn the_threshold_decides_what_counts() {
    assert_eq!(compared(1.2, 0.05), Verdict::Slower);
    assert_eq!(compared(1.2, 0.25), Verdict::Same);
    assert_eq!(compared(1.0, 0.05), Verdict::Same);
    assert_eq!(compared(0.5, 0.25), Verdict::Faster);
    let host = [run("gemm", vec![])];
    assert_eq!(default_threshold(&host), 0.25);
    let mut cuda = host.clone();
    cuda[0].provenance.backend = "cuda".into();
    assert_eq!(default_threshold(&cuda), 0.05);
}

#[test]
fn what_one_run_has_alone_is_noted_and_no_regression() {
    let old = [
        run("gemm", vec![time("a", &TIMES), time("gone", &TIMES)]),
        run("quick", vec![]),
    ];
    let new = [
        run("gemm", vec![time("new", &TIMES), time("a", &TIMES)]),
        run("recipes", vec![]),
    ];
    let found = compare((&old, &new), ["A", "B"], 0.05).unwrap();
    assert!(found.holds() && found.lines.len() == 1);
    for (what, by) in [
        ("gone, call", "A"),
        ("new, call", "B"),
        ("suite quick", "A"),
        ("suite recipes", "B"),
    ] {
        let end = format!("is in {by} alone");
        let told = found.notes.iter().filter(|note| note.contains(what));
        assert_eq!(
            told.filter(|note| note.ends_with(&end)).count(),
            1,
            "{what}"
        );
    }
}

#[test]
fn a_time_is_found_in_every_file_of_its_suite() {
    let old = [
        run("gemm", vec![time("a", &TIMES)]),
        run("gemm", vec![time("b", &TIMES), time("gone", &TIMES)]),
    ];
    let slower = TIMES.map(|time| time * 2.0);
    // The files of the new run come in another order.
    let mut new = [
        run("gemm", vec![time("b", &slower)]),
        run("gemm", vec![time("a", &TIMES), time("new", &TIMES)]),
    ];
    let found = compare((&old, &new), ["A", "B"], 0.05).unwrap();
    assert_eq!((found.lines.len(), found.count(Verdict::Slower)), (2, 1));
    let alone = found.notes.iter().filter(|note| note.ends_with("alone"));
    assert_eq!(alone.count(), 2, "{:?}", found.notes);

    // Machines matter where there are times in common, and where they may be why there are none.
    let mut other = old.clone();
    (other[1].provenance.ranks, new[0].provenance.ranks) = (2, 2);
    let found = compare((&other, &new), ["A", "B"], 0.05).unwrap();
    assert_eq!(found.count(Verdict::Slower), 1);
    for old in [&old[..], &old[1..]] {
        let error = compare((old, &new[..1]), ["A", "B"], 0.05).unwrap_err();
        assert_eq!(error.exit_status(), 3, "{error}");
    }
    new[0].times = vec![time("other", &TIMES)];
    let error = compare((&old, &new[..1]), ["A", "B"], 0.05).unwrap_err();
    assert_eq!(error.exit_status(), 3, "{error}");
}

#[test]
fn a_row_that_is_wrong_now_is_told_and_counts() {
    let old = [run("gemm", vec![time("a", &TIMES), time("b", &TIMES)])];
    let mut new = [run("gemm", vec![time("a", &TIMES)])];
    new[0].wrong = vec!["64x64x64 f16, 4 ranks, b: 3 of 8 elements".into()];
    let found = compare((&old, &new), ["A", "B"], 0.05).unwrap();
    assert!(!found.holds());
    let mut out = Vec::new();
    found.print(&mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    let line = "WRONG in B: gemm: 64x64x64 f16, 4 ranks, b: 3 of 8 elements\n";
    assert!(
        out.contains(line) && out.contains("0 unclear, 1 wrong"),
        "{out}"
    );
    // Where it was wrong and is right, nothing has become worse.
    assert!(compare((&new, &old), ["B", "A"], 0.05).unwrap().holds());
    // All that ran is wrong: there is no time, and still something to tell.
    new[0].times.clear();
    assert!(!compare((&old, &new), ["A", "B"], 0.05).unwrap().holds());
}

#[test]
fn other_machines_are_refused_and_other_versions_are_noted() {
    let old = [run("gemm", vec![time("a", &TIMES)])];
    let with = |change: fn(&mut Provenance)| {
        let mut new = old.clone();
        change(&mut new[0].provenance);
        compare((&old, &new), ["A", "B"], 0.05)
    };
    for change in [
        (|p| p.devices[0].name = "NVIDIA H200".into()) as fn(&mut Provenance),
        |p| p.ranks = 2,
        |p| p.host.processor = Some("another".into()),
        |p| p.host.cores += 1,
        |p| p.backend = "cuda".into(),
    ] {
        let error = with(change).unwrap_err();
        assert!(
            matches!(error, ReportError::MachinesDiffer { .. }),
            "{error}"
        );
        assert_eq!(error.exit_status(), 3);
    }
    let error = with(|p| p.ranks = 2).unwrap_err().to_string();
    assert!(
        error.contains("ranks 4 in A, 2 in B") && error.contains("gemm"),
        "{error}"
    );
    let newer = with(|p| {
        p.commit = "abc".into();
        p.driver = Some("580.1".into());
    });
    let notes = newer.unwrap().notes;
    assert!(
        notes
            .iter()
            .any(|n| n.contains("driver none in A, 580.1 in B")),
        "{notes:?}"
    );
    assert!(
        notes
            .iter()
            .any(|n| n.contains("commit unknown in A, abc in B"))
    );
}

#[test]
fn too_few_samples_are_told_and_nothing_in_common_is_an_error() {
    let (few, other) = (time("few", &TIMES[..3]), time("b", &TIMES));
    let old = [run("gemm", vec![few.clone(), other.clone()])];
    let found = compare((&old, &old), ["A", "B"], 0.05).unwrap();
    assert_eq!(found.lines.len(), 1);
    assert!(
        found.notes[0].contains("1 times of too few samples"),
        "{:?}",
        found.notes
    );
    let [old, new] = [few, other].map(|time| [run("gemm", vec![time])]);
    let error = compare((&old, &new), ["A", "B"], 0.05).unwrap_err();
    assert!(error.to_string().contains("no time in common"), "{error}");
    assert_eq!(error.exit_status(), 2);
}
