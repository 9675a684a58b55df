use std::time::Duration;

use super::super::wire::{Gathered, REPLY_LIMIT};
use super::*;

struct Table {
    state: State,
    start: Instant,
    next: u64,
}

impl Table {
    fn new(world: usize) -> Self {
        let mut state = State::new(world);
        for rank in 0..world {
            state.join(rank).unwrap();
        }
        Self {
            state,
            start: Instant::now(),
            next: 0,
        }
    }

    fn ask(&mut self, rank: usize, op: Op) -> Vec<(usize, Answer)> {
        self.next += 1;
        let deadline = self.start + Duration::from_secs(self.next);
        let effects = self.state.request(
            Waiter {
                rank,
                id: self.next,
                deadline,
            },
            op,
        );
        answers(effects)
    }

    fn all_gather(&mut self, rank: usize, call: u64, tag: &str) -> Vec<(usize, Answer)> {
        let bytes = vec![rank as u8];
        self.ask(
            rank,
            Op::AllGather {
                scope: "s".into(),
                call,
                tag: tag.into(),
                bytes,
            },
        )
    }
}

fn answers(effects: Vec<Effect>) -> Vec<(usize, Answer)> {
    let mut list: Vec<_> = effects
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::Answer { rank, answer, .. } => Some((rank, answer)),
            Effect::Broadcast(_) => None,
        })
        .collect();
    list.sort_by_key(|(rank, _)| *rank);
    list
}

fn set(key: &str, value: &[u8]) -> Op {
    Op::Set {
        key: key.into(),
        value: value.into(),
    }
}

fn get(key: &str) -> Op {
    Op::Get { key: key.into() }
}

#[test]
fn members_never_come_back() {
    let mut state = State::new(2);
    assert_eq!(state.join(2), Err(Refusal::Rank));
    assert_eq!(state.join(0), Ok(()));
    assert_eq!(state.join(0), Err(Refusal::Taken));
    state.leave(0);
    assert_eq!(state.join(0), Err(Refusal::Taken));
    assert!(
        state.lose(0, "late").is_empty(),
        "a goodbye is the last word"
    );
    assert!(state.lose(1, "never came").is_empty());
    assert!(state.failure().is_none());
}

#[test]
fn keys_wake_their_waiters() {
    let mut t = Table::new(2);
    assert!(t.ask(1, get("k")).is_empty());
    assert!(
        t.ask(
            0,
            Op::Wait {
                keys: vec!["k".into(), "l".into()]
            }
        )
        .is_empty()
    );
    assert_eq!(
        t.ask(0, set("k", b"v")),
        [(0, Answer::Done), (1, Answer::Value(b"v".to_vec()))]
    );
    assert_eq!(
        t.ask(1, set("l", b"")),
        [(0, Answer::Done), (1, Answer::Done)]
    );
    assert_eq!(t.ask(1, get("k")), [(1, Answer::Value(b"v".to_vec()))]);
}

#[test]
fn numbers_add_and_values_swap() {
    let mut t = Table::new(1);
    let add = |delta| Op::Add {
        key: "n".into(),
        delta,
    };
    assert_eq!(t.ask(0, add(5)), [(0, Answer::Number(5))]);
    assert_eq!(t.ask(0, add(-7)), [(0, Answer::Number(-2))]);
    assert!(matches!(
        t.ask(0, add(i64::MIN))[..],
        [(0, Answer::Rejected(_))]
    ));
    t.ask(0, set("n", b"text"));
    assert!(matches!(t.ask(0, add(1))[..], [(0, Answer::Rejected(_))]));

    let swap = |expected: Option<&[u8]>, value: &[u8]| Op::CompareAndSet {
        key: "c".into(),
        expected: expected.map(Into::into),
        value: value.into(),
    };
    let swapped = |stored, now: &[u8]| Answer::Swapped {
        stored,
        current: Some(now.into()),
    };
    assert_eq!(t.ask(0, swap(None, b"a")), [(0, swapped(true, b"a"))]);
    assert_eq!(t.ask(0, swap(None, b"b")), [(0, swapped(false, b"a"))]);
    assert_eq!(t.ask(0, swap(Some(b"a"), b"b")), [(0, swapped(true, b"b"))]);
}

#[test]
fn all_ranks_gather_or_none() {
    let mut t = Table::new(3);
    assert!(t.all_gather(2, 0, "x").is_empty());
    assert!(t.all_gather(0, 0, "x").is_empty());
    let all = Answer::Gathered(Gathered::new(&[vec![0], vec![1], vec![2]]));
    assert_eq!(
        t.all_gather(1, 0, "x"),
        [(0, all.clone()), (1, all.clone()), (2, all)]
    );
    assert!(t.state.gathers.is_empty());
}

#[test]
fn another_call_is_named_to_every_rank() {
    let mut t = Table::new(3);
    t.all_gather(0, 0, "x");
    let named = |rank, theirs: &str| Answer::Mismatch {
        rank,
        theirs: theirs.into(),
    };
    assert_eq!(
        t.all_gather(1, 0, "y"),
        [(0, named(1, "y")), (1, named(0, "x"))]
    );
    assert_eq!(t.all_gather(2, 0, "x"), [(2, named(1, "y"))]);
    assert!(t.state.gathers.is_empty());
}

#[test]
fn a_deadline_ends_the_gather_for_all() {
    let mut t = Table::new(3);
    t.all_gather(0, 0, "x");
    t.all_gather(1, 0, "x");
    assert_eq!(
        t.state.next_deadline(),
        Some(t.start + Duration::from_secs(1))
    );
    assert!(t.state.expire(t.start).is_empty());
    let timed_out = Answer::TimedOut {
        waiting_for: vec![2],
    };
    let effects = t.state.expire(t.start + Duration::from_secs(1));
    assert_eq!(answers(effects), [(0, timed_out.clone()), (1, timed_out)]);
    assert!(matches!(&t.all_gather(2, 0, "x")[..], [(2, Answer::Failed(f))] if f.rank == 0));
    assert!(t.state.gathers.is_empty());
    assert_eq!(t.state.next_deadline(), None);
}

#[test]
fn a_lost_rank_ends_every_wait_now_and_later() {
    let mut t = Table::new(3);
    t.ask(0, get("k"));
    t.all_gather(1, 0, "x");
    let effects = t.state.lose(2, "killed");
    let failure = Failure {
        rank: 2,
        kind: FailureKind::Lost,
        cause: "killed".into(),
    };
    assert!(effects.contains(&Effect::Broadcast(failure.clone())));
    let failed = Answer::Failed(failure);
    assert_eq!(answers(effects), [(0, failed.clone()), (1, failed.clone())]);
    assert_eq!(t.all_gather(0, 0, "x"), [(0, failed.clone())]);
    assert_eq!(t.ask(0, get("k")), [(0, failed.clone())]);
    assert_eq!(t.ask(0, set("k", b"v")), [(0, Answer::Done)]);
    assert_eq!(t.ask(0, get("k")), [(0, Answer::Value(b"v".to_vec()))]);
    t.state.lose(1, "second");
    assert_eq!(
        t.state.failure().map(|f| f.rank),
        Some(2),
        "the first failure stands"
    );
}

#[test]
fn an_abort_reaches_all() {
    let mut t = Table::new(2);
    t.all_gather(0, 0, "x");
    let answers = t.ask(
        1,
        Op::Abort {
            message: "out of memory".into(),
        },
    );
    assert!(
        matches!(&answers[..], [(0, Answer::Failed(f)), (1, Answer::Done)]
        if f.rank == 1 && f.kind == FailureKind::Aborted && f.cause == "out of memory")
    );
}

#[test]
fn who_left_is_missed_only_where_needed() {
    let mut t = Table::new(3);
    t.all_gather(0, 0, "x");
    t.ask(1, get("k"));
    let left = answers(t.state.leave(2));
    assert!(
        matches!(&left[..], [(0, Answer::Failed(f))] if f.rank == 2 && f.kind == FailureKind::Left)
    );
    assert_eq!(
        t.ask(0, set("k", b"v"))[1],
        (1, Answer::Value(b"v".to_vec()))
    );
    assert!(matches!(&t.all_gather(1, 0, "x")[..], [(1, Answer::Failed(f))] if f.rank == 2));
    assert!(t.state.gathers.is_empty());
}

#[test]
fn what_is_too_large_is_rejected() {
    let mut t = Table::new(1);
    let long = "k".repeat(LONGEST_KEY + 1);
    assert!(matches!(
        t.ask(0, get(&long))[..],
        [(0, Answer::Rejected(_))]
    ));
    let large = vec![0; LARGEST_VALUE + 1];
    assert!(matches!(
        t.ask(0, set("k", &large))[..],
        [(0, Answer::Rejected(_))]
    ));
    assert!(matches!(
        t.ask(0, Op::Wait { keys: vec![] })[..],
        [(0, Answer::Rejected(_))]
    ));
    let full = vec![0; LARGEST_VALUE];
    let fits = LARGEST_STORE / (LARGEST_VALUE + PER_KEY + 4);
    for n in 0..fits {
        assert_eq!(
            t.ask(0, set(&format!("{n:04}"), &full)),
            [(0, Answer::Done)]
        );
    }
    assert!(matches!(
        t.ask(0, set("more", &full))[..],
        [(0, Answer::Rejected(_))]
    ));
    assert_eq!(
        t.ask(0, set("0000", &full)),
        [(0, Answer::Done)],
        "replacing costs nothing"
    );
}

#[test]
fn what_a_rank_may_have_waiting_is_bounded() {
    let mut t = Table::new(2);
    for _ in 0..MOST_WAITS {
        assert!(t.ask(0, get("never")).is_empty());
    }
    assert!(matches!(
        t.ask(0, get("never"))[..],
        [(0, Answer::Rejected(_))]
    ));
    assert!(
        t.ask(1, get("never")).is_empty(),
        "each rank has its own bound"
    );
    for call in 0..MOST_WAITS as u64 {
        assert!(t.all_gather(0, call, "x").is_empty());
    }
    assert!(matches!(
        t.all_gather(0, 9999, "x")[..],
        [(0, Answer::Rejected(_))]
    ));
    let gathered = t.all_gather(1, 0, "x");
    assert!(matches!(
        gathered[..],
        [(0, Answer::Gathered(_)), (1, Answer::Gathered(_))]
    ));
    assert!(t.all_gather(0, 9999, "x").is_empty(), "one has ended");
    let keys = vec![String::new(); MOST_KEYS + 1];
    assert!(matches!(
        t.ask(0, Op::Wait { keys })[..],
        [(0, Answer::Rejected(_))]
    ));
}

#[test]
fn a_gather_that_no_answer_could_hold_keeps_nothing() {
    let world = REPLY_LIMIT / LARGEST_VALUE + 1;
    let mut t = Table::new(world);
    let bytes = vec![1; LARGEST_VALUE];
    for rank in 0..world {
        let op = Op::AllGather {
            scope: "s".into(),
            call: 0,
            tag: "t".into(),
            bytes: bytes.clone(),
        };
        let answers = t.ask(rank, op);
        if rank + 1 == world {
            assert_eq!(answers.len(), world);
            assert!(
                answers
                    .iter()
                    .all(|(_, a)| matches!(a, Answer::Rejected(_)))
            );
        } else {
            assert!(answers.is_empty());
        }
    }
    assert!(t.state.gathers.is_empty());
}
