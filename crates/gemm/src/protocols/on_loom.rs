//! The smallest models on loom's memory, which lets loads see old values.

use std::sync::Arc as StdArc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use warpweave_symm_mem::pad::flag::reached_call;

use super::all_gather::AllGather;
use super::eager::Eager;
use super::one_shot::OneShot;
use super::reduction::Reduction;
use super::{Model, Planted, Published, Step};

/// A thread that comes too early for what it waits for must be preempted before it looks, so that fewer leave
/// nothing to see; with more the models do not end in seconds.
const PREEMPTIONS: usize = 7;

struct Memory {
    /// Whether a poll failed.
    poll_failed: AtomicBool,
    atoms: Vec<AtomicU32>,
    cells: Vec<UnsafeCell<u32>>,
}

// SAFETY: loom reports the race if the protocol does not keep the threads apart.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

impl Memory {
    fn of(model: &Model) -> Self {
        Memory {
            poll_failed: AtomicBool::new(false),
            atoms: model
                .atoms
                .iter()
                .map(|&value| AtomicU32::new(value))
                .collect(),
            cells: model
                .cells
                .iter()
                .map(|&value| UnsafeCell::new(value))
                .collect(),
        }
    }

    fn load(&self, cell: usize) -> u32 {
        // SAFETY: loom checks it.
        self.cells[cell].with(|value| unsafe { *value })
    }

    fn store(&self, cell: usize, new: u32) {
        // SAFETY: loom checks it.
        self.cells[cell].with_mut(|value| unsafe { *value = new });
    }

    /// A failed poll prunes this branch: some other interleaving polls after the flag is set.
    fn until(&self, atom: usize, is_enough: impl Fn(u32) -> bool) {
        while !is_enough(self.atoms[atom].load(Ordering::Acquire)) {
            self.poll_failed.store(true, Relaxed);
            loom::skip_branch();
            thread::yield_now();
        }
    }

    fn run(&self, steps: &[Step]) {
        let mut next = 0;
        while let Some(&step) = steps.get(next) {
            next += 1;
            match step {
                Step::Wait { flag, counter } => {
                    let wanted = self.load(counter).wrapping_add(1);
                    self.until(flag, |seen| reached_call(seen, wanted));
                }
                Step::Signal { flag, counter } => {
                    let epoch = self.load(counter).wrapping_add(1);
                    self.atoms[flag].store(epoch, Ordering::Release);
                }
                Step::Advance { counter } => {
                    let epoch = self.load(counter).wrapping_add(1);
                    self.store(counter, epoch);
                }
                Step::Keep { counter, own } => self.store(own, self.load(counter)),
                Step::Ticket { ticket, all, skip } => {
                    let taken = self.atoms[ticket].fetch_add(1, Ordering::AcqRel) + 1;
                    if !taken.is_multiple_of(all) {
                        next += skip;
                    }
                }
                Step::Arrive { barrier } => {
                    self.atoms[barrier].fetch_add(1, Ordering::AcqRel);
                }
                Step::Barrier { barrier, all } => self.until(barrier, |seen| seen == all),
                Step::Write { cell, call } | Step::Push { cell, call } => self.store(cell, call),
                Step::Check => {}
                Step::Read { cell, call } => {
                    assert_eq!(self.load(cell), call, "data of another call")
                }
            }
        }
    }
}

fn check(model: Model) {
    check_with(PREEMPTIONS, model);
}

fn check_with(preemptions: usize, model: Model) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    let model = StdArc::new(model);
    let whole = StdArc::new(AtomicUsize::new(0));
    let counted = whole.clone();
    builder.check(move || {
        let memory = Arc::new(Memory::of(&model));
        let others: Vec<_> = (1..model.threads.len())
            .map(|other| {
                let (memory, model) = (memory.clone(), model.clone());
                thread::spawn(move || memory.run(&model.threads[other]))
            })
            .collect();
        memory.run(&model.threads[0]);
        for other in others {
            other.join().expect("every thread ends");
        }
        counted.fetch_add(usize::from(!memory.poll_failed.load(Relaxed)), Relaxed);
    });
    let whole = whole.load(Relaxed);
    assert!(whole > 50, "only {whole} orders were searched to their end");
}

/// Rank 1 pulls from rank 0, call after call: one block during its GEMM, or two before theirs.
fn all_gather(overlapped: bool, planted: Option<Planted>) -> Model {
    let all_gather = AllGather {
        chunks: &[1, 0],
        pushed: 0,
        copies: false,
        blocks: if overlapped { &[1, 1] } else { &[1, 2] },
        calls: 2,
        overlapped,
        planted,
    };
    all_gather.model()
}

/// Rank 0, which gets no more than flags, pushes to rank 1: concurrently with the rest of the one call, or
/// before it, call after call.
fn eager(overlapped: bool, planted: Option<Planted>) -> Model {
    let eager = Eager {
        chunks: &[1, 0],
        blocks: &[1, 1],
        calls: if overlapped { 1 } else { 4 },
        overlapped,
        planted,
    };
    eager.model()
}

/// Rank 1 pulls partials of rank 0, call after call, with these blocks: during its GEMM, where each rank has
/// one, or before.
fn reduction(blocks: [usize; 2], planted: Option<Planted>) -> Model {
    let reduction = Reduction {
        groups: &[0, 1],
        blocks: &blocks,
        calls: 2,
        everyone: false,
        overlapped: blocks == [1, 1],
        planted,
    };
    reduction.model()
}

/// Two ranks leave each other their partials of a unit, call after call: with a block each, or where rank 0
/// has two, with a tile for each of these, in the one call.
fn one_shot(blocks: [usize; 2], overlapped: usize, planted: Option<Planted>) -> Model {
    let shot = OneShot {
        pieces: blocks[0],
        unit: blocks[0],
        tiles: &[1, blocks[0]],
        blocks: &blocks,
        calls: if blocks == [1, 1] && overlapped == 0 {
            3
        } else {
            1
        },
        overlapped,
        planted,
    };
    shot.model()
}

#[test]
fn loom_a_block_pulls_rows_during_its_gemm() {
    check(all_gather(true, None));
}

#[test]
fn loom_two_blocks_pull_rows_for_each_other() {
    check(all_gather(false, None));
}

#[test]
fn loom_a_block_pulls_partials_during_its_gemm() {
    // It waits more often than the others.
    check_with(PREEMPTIONS + 1, reduction([1, 1], None));
}

#[test]
fn loom_one_block_pulls_partials_of_two() {
    check(reduction([2, 1], None));
}

#[test]
fn loom_two_blocks_pull_partials_of_one() {
    check(reduction([1, 2], None));
}

#[test]
fn loom_rows_are_pushed_call_after_call() {
    check(eager(false, None));
}

#[test]
fn loom_a_block_pushes_during_its_gemm() {
    // One call waits less often than several.
    check_with(PREEMPTIONS - 1, eager(true, None));
}

#[test]
fn loom_partials_are_left_call_after_call() {
    check(one_shot([1, 1], 0, None));
}

#[test]
fn loom_two_blocks_leave_a_unit() {
    // One call waits less often than several.
    check_with(PREEMPTIONS - 1, one_shot([2, 1], 0, None));
}

#[test]
fn loom_a_block_takes_a_ticket_during_its_gemm() {
    // One call waits less often than several.
    check_with(PREEMPTIONS - 1, one_shot([1, 1], 1, None));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_a_wait_for_who_reads_there_is_a_race() {
    check(all_gather(true, Some(Planted::NoDone)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_before_the_last_ticket_not_all_is_there() {
    check(all_gather(
        false,
        Some(Planted::BeforeLastTicket(Published::Done)),
    ));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_an_epoch_advanced_early_is_seen_too_soon() {
    check(reduction([1, 2], Some(Planted::EarlyEpoch)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_what_is_published_before_it_is_there_is_a_race() {
    check(reduction(
        [2, 1],
        Some(Planted::BeforeArrival(Published::Partial)),
    ));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_what_is_counted_before_it_is_there_is_a_race() {
    check(all_gather(false, Some(Planted::CountBeforeArrival)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_piece_counted_before_it_is_there_is_a_race() {
    check(reduction([1, 2], Some(Planted::CountBeforeArrival)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_an_end_after_who_pulls_partials_are_overwritten() {
    check(reduction([1, 1], Some(Planted::NoDone)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_rank_that_has_not_pulled_everything_is_not_done() {
    check(reduction(
        [1, 2],
        Some(Planted::BeforeLastTicket(Published::Done)),
    ));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_with_one_staging_rows_are_overwritten() {
    check(eager(false, Some(Planted::OneStaging)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_a_wait_for_who_has_no_rows_there_is_a_race() {
    check(eager(false, Some(Planted::NoWaitForNone)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_ticket_before_the_call_is_read_is_a_race() {
    check(eager(true, Some(Planted::UnreadCall)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_with_one_staging_partials_are_overwritten() {
    check(one_shot([1, 1], 0, Some(Planted::OneStaging)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_unit_published_before_the_last_ticket_is_not_whole() {
    let planted = Planted::BeforeLastTicket(Published::Partial);
    check(one_shot([2, 1], 0, Some(planted)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_call_counted_before_it_is_read_is_a_race() {
    check(one_shot([1, 1], 1, Some(Planted::UnreadCall)));
}
