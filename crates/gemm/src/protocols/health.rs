//! Waits that fail: what `warpweave_symm_mem::pad` asks of a rank, in the models.
//!
//! One rank is impatient: each of its waits may fail as long as what it waits for is not there, which is what
//! a late peer does to it. The deadlines of the others pass when nothing else can happen. Whoever's wait has
//! failed goes on to the end of its calls and into the next, so that it overwrites what late ranks may be
//! reading. A rank that so reads what it was not meant to must be told of a fault when its caller asks.

pub(super) const SILENCE: &str = "wrong data, and no error";

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
