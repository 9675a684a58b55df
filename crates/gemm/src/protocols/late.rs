//! Waits that fail: what `warpweave_symm_mem::pad` asks of a rank, in the models.
//!
//! One rank is impatient: each of its waits may fail as long as what it waits for is not there, which is what
//! a late peer does to it. The deadlines of the others pass when nothing else can happen. Whoever's wait has
//! failed goes on to the end of its calls and into the next, so that it overwrites what late ranks may be
//! reading. A rank that so reads what it was not meant to must be told of a fault when its caller asks.

const SILENCE: &str = "wrong data, and no error";

/// What the ranks do about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late {
    pub impatient: usize,
    /// Before anything else a rank whose wait has failed gives notice, and a wait fails where there is one.
    pub notices: bool,
    /// From then on it signals nothing, and writes nobody else's memory.
    pub silence: bool,
    /// Callers look for notices after a call.
    pub checks: bool,
}

/// What may come of a thread's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    Go,
    /// The wait fails.
    Fail,
    /// Before its next step the thread gives notice.
    Notice,
}

/// Sets of ranks and of threads, a bit each.
#[derive(Clone, Default, Hash)]
pub(super) struct Health {
    /// Whose waits have failed.
    stopped: u16,
    /// Who has read what it was not meant to.
    tainted: u16,
    /// Threads that owe a notice.
    owing: u16,
    noticed: bool,
}

impl Health {
    pub(super) fn is_faulty(&self) -> bool {
        self.stopped != 0
    }

    pub(super) fn is_stopped(&self, rank: usize) -> bool {
        self.stopped >> rank & 1 == 1
    }

    /// Whether what a rank writes is worth nothing.
    pub(super) fn is_tainted(&self, rank: usize) -> bool {
        (self.stopped | self.tainted) >> rank & 1 == 1
    }

    pub(super) fn owes_notice(&self, thread: usize) -> bool {
        self.owing >> thread & 1 == 1
    }

    /// What may come of a wait of `rank` for what is `here`.
    pub(super) fn waits(&self, late: Late, rank: usize, here: bool) -> Vec<Move> {
        let noticed = late.notices && self.noticed;
        let gives_up = !here && (rank == late.impatient || self.is_stopped(rank));
        let go = (here && !noticed).then_some(Move::Go);
        let fail = (noticed || gives_up).then_some(Move::Fail);
        go.into_iter().chain(fail).collect()
    }

    pub(super) fn fault(&mut self, how: Move, (thread, rank): (usize, usize), notices: bool) {
        match how {
            Move::Fail => {
                self.stopped |= 1 << rank;
                self.owing |= u16::from(notices) << thread;
            }
            _ => {
                self.noticed = true;
                self.owing &= !(1 << thread);
            }
        }
    }

    /// `rank` may have read what it was not meant to: an error where no wait has failed.
    pub(super) fn blame(&mut self, rank: usize, error: &'static str) -> Result<(), &'static str> {
        match self.is_faulty() {
            true => {
                self.tainted |= 1 << rank;
                Ok(())
            }
            false => Err(error),
        }
    }

    /// The caller's look after a call.
    pub(super) fn check(&self, late: Late, rank: usize) -> Result<(), &'static str> {
        let told = self.is_stopped(rank) || late.checks && self.noticed;
        match !told && self.tainted >> rank & 1 == 1 {
            true => Err(SILENCE),
            false => Ok(()),
        }
    }
}

mod tests {
    use super::*;
    use crate::protocols::Model;
    use crate::protocols::all_gather::Gathering;
    use crate::protocols::eager::Eager;
    use crate::protocols::explore::explore_late;
    use crate::protocols::one_shot::OneShot;
    use crate::protocols::reduction::Reducing;

    const RULE: Late = Late {
        impatient: 0,
        notices: true,
        silence: true,
        checks: true,
    };

    fn gathering(chunks: &[usize], pushed: usize, blocks: &[usize]) -> Model {
        let gathering = Gathering {
            chunks,
            pushed,
            blocks,
            calls: 2,
            overlapped: true,
            planted: None,
        };
        gathering.model()
    }

    fn reducing(groups: &[usize], everyone: bool) -> Model {
        let reducing = Reducing {
            groups,
            blocks: &[1, 1],
            calls: 2,
            everyone,
            overlapped: true,
            planted: None,
        };
        reducing.model()
    }

    /// Those that pull, whose calls end with a wait.
    fn that_pull() -> Vec<(&'static str, Model)> {
        vec![
            ("gathering", gathering(&[1, 1], 0, &[1, 1])),
            ("gathering by two blocks", gathering(&[1, 0], 0, &[2, 1])),
            ("gathering of pushed rows", gathering(&[2, 0], 1, &[1, 1])),
            ("reducing", reducing(&[1, 1], false)),
            ("reducing for everyone", reducing(&[1, 0], true)),
        ]
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
}
