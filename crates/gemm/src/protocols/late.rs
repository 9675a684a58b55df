//! The models with waits that fail: a rank that so reads what it was not meant to is told of it.

use super::Model;
use super::all_gather::AllGather;
use super::eager::Eager;
use super::explore::explore_late;
use super::health::{Late, SILENCE};
use super::multimem::Multimem;
use super::one_shot::OneShot;
use super::reduction::Reduction;

const RULE: Late = Late {
    impatient: 0,
    notices: true,
    silence: true,
    checks: true,
};

/// `copies`: whether rows are copied before others read them.
fn all_gather(chunks: &[usize], (pushed, copies): (usize, bool), blocks: &[usize]) -> Model {
    let all_gather = AllGather {
        chunks,
        pushed,
        copies,
        blocks,
        calls: 2,
        overlapped: true,
        planted: None,
    };
    all_gather.model()
}

fn reduction(groups: &[usize], everyone: bool) -> Model {
    let reduction = Reduction {
        groups,
        blocks: &[1, 1],
        calls: 2,
        everyone,
        overlapped: true,
        planted: None,
    };
    reduction.model()
}

/// Those that pull, whose calls end with a wait.
fn that_pull() -> Vec<(&'static str, Model)> {
    let [plain, pushed, copied] = [(0, false), (1, false), (0, true)];
    vec![
        ("all-gather", all_gather(&[1, 1], plain, &[1, 1])),
        (
            "all-gather by two blocks",
            all_gather(&[1, 0], plain, &[2, 1]),
        ),
        (
            "all-gather of pushed rows",
            all_gather(&[2, 0], pushed, &[1, 1]),
        ),
        ("all-gather of copies", all_gather(&[1, 1], copied, &[1, 1])),
        (
            "all-gather of copies by two",
            all_gather(&[1, 0], copied, &[2, 1]),
        ),
        ("reduction", reduction(&[1, 1], false)),
        ("reduction for everyone", reduction(&[1, 0], true)),
        ("reduction by multimem", by_multimem(&[1, 0])),
    ]
}

/// The one that pushes results and ends with a wait.
fn by_multimem(groups: &[usize]) -> Model {
    let multimem = Multimem {
        groups,
        blocks: &[1, 1],
        calls: 2,
        planted: None,
    };
    multimem.model()
}

/// Those that push, whose calls end with a read.
fn that_push() -> Vec<(&'static str, Model)> {
    let eager = |chunks: &[usize]| {
        let eager = Eager {
            chunks,
            blocks: &[1, 1],
            calls: 3,
            overlapped: true,
            planted: None,
        };
        eager.model()
    };
    let one_shot = OneShot {
        pieces: 1,
        unit: 1,
        tiles: &[1, 1],
        blocks: &[1, 1],
        calls: 3,
        overlapped: 1,
        planted: None,
    };
    vec![
        ("eager", eager(&[1, 1])),
        ("eager, one without rows", eager(&[1, 0])),
        ("one shot", one_shot.model()),
    ]
}

/// What is found with each rank as the impatient one.
fn found(model: &Model, late: Late) -> Vec<Result<usize, String>> {
    let impatient = |impatient| explore_late(model, Late { impatient, ..late });
    [0, 1].map(impatient).to_vec()
}

#[test]
fn a_rank_that_ends_without_error_has_read_what_it_was_meant_to() {
    for (name, model) in that_pull().into_iter().chain(that_push()) {
        for found in found(&model, RULE) {
            assert!(found.is_ok(), "{name}: {found:?}");
        }
    }
}

fn is_found(models: Vec<(&'static str, Model)>, late: Late) {
    for (name, model) in models {
        let found = found(&model, late);
        let silent = |found: &Result<usize, String>| {
            found.as_ref().is_err_and(|why| why.starts_with(SILENCE))
        };
        assert!(found.iter().any(silent), "{name}: {found:?}");
    }
}

#[test]
fn signals_after_a_failed_wait_without_notice_are_found() {
    let late = Late {
        notices: false,
        silence: false,
        ..RULE
    };
    is_found(that_pull(), late);
    is_found(that_push(), late);
}

#[test]
fn calls_that_end_with_a_read_and_no_check_are_found() {
    let late = Late {
        silence: false,
        checks: false,
        ..RULE
    };
    is_found(that_push(), late);
}
