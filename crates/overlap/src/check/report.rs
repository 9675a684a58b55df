//! The result of *check*.

use super::access::AccessKind;
use super::program::Site;
use super::structure::Fault;
use crate::plan::{Region, SlotId};
use std::fmt;

/// The outcome of [`check`](super::check()).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Name of the algorithm.
    pub name: String,
    /// Number of ranks.
    pub world: usize,
    /// Number of calls that were unrolled.
    pub calls: usize,
    /// Number of steps of all ranks and calls.
    pub steps: usize,
    /// Number of pairs of accesses that touch the same elements, one of them at least writing.
    pub conflicts: usize,
    /// What is wrong; nothing if the schedule holds.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Whether the schedule holds.
    pub fn holds(&self) -> bool {
        self.violations.is_empty()
    }
}

/// A step of the unrolled schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whose.
    pub rank: usize,
    /// In which call, counted from 1.
    pub call: usize,
    /// Where in the plan.
    pub site: Site,
    /// The operation as text.
    pub text: String,
}

/// One access of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The operation or effect.
    pub step: Step,
    /// What it does.
    pub kind: AccessKind,
    /// All that it touches there.
    pub region: Region,
    /// The region as text.
    pub text: String,
}

/// A flag of a signal pad.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The row of the pad.
    pub slot: SlotId,
    /// The row's name.
    pub name: String,
    /// Who signals.
    pub src: usize,
    /// Who waits.
    pub dst: usize,
}

/// A possible run, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The steps, from the start of the first call; those that are not listed come later.
    pub steps: Vec<Step>,
    /// How many of the first steps both sides wait for: what is interesting comes after them.
    pub shared: usize,
}

/// What a blocked step waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A flag that is too low.
    Signal {
        /// The flag.
        flag: Flag,
        /// The value needed.
        needs: usize,
        /// The value seen.
        sees: usize,
    },
    /// A rank that has not entered a collective.
    Entry {
        /// The rank.
        rank: usize,
    },
}

/// A blocked step and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blockage {
    /// The step.
    pub step: Step,
    /// All that it waits for.
    pub awaits: Vec<Awaited>,
}

/// Things whose order across ranks has to be the same in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sequence {
    /// The signals on one flag.
    Signals,
    /// The waits on one flag.
    Waits,
    /// One rank's collectives.
    Collectives,
}

/// Something that a schedule must not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A plan is wrong by itself. Nothing was unrolled.
    Fault(Fault),
    /// The plans do not belong together. Nothing was unrolled.
    Disagreement {
        /// Which plans, and in what.
        what: String,
    },
    /// More steps than can be proved. Nothing was unrolled.
    TooManySteps {
        /// The steps of all ranks and calls.
        steps: usize,
        /// The most that are unrolled.
        most: usize,
    },
    /// Two conflicting accesses that no synchronisation orders.
    Race {
        /// The one that comes first where all goes well.
        first: Box<Touch>,
        /// The one that may nevertheless come before it or run concurrently.
        second: Box<Touch>,
        /// The elements that both touch, as text.
        overlap: String,
        /// How many pairs of the same two operations race, over the unrolled calls.
        occurrences: usize,
        /// A run in which `second` does not wait for `first`.
        schedule: Schedule,
    },
    /// Steps that wait for ever.
    Deadlock {
        /// All that are blocked.
        blocked: Vec<Blockage>,
        /// Who waits for whom: each of these waits for the next.
        chain: Vec<Blockage>,
        /// Place in `chain` of the one that the last of them waits for; `None` if nobody would ever do what
        /// it waits for.
        closes_at: Option<usize>,
    },
    /// One call signals a flag more or less often than it waits for it, so that counters drift apart.
    UnmatchedSignal {
        /// The flag.
        flag: Flag,
        /// Signals in one call.
        signals: usize,
        /// Waits in one call.
        waits: usize,
    },
    /// Two signals or waits on one flag, or two collectives of a rank, that may run in either order.
    Unordered {
        /// Of what.
        sequence: Sequence,
        /// The flag, unless it is a matter of collectives.
        flag: Option<Flag>,
        /// One.
        first: Step,
        /// The other.
        second: Step,
    },
    /// The ranks' lists of collectives differ.
    CollectiveMismatch {
        /// Place in the lists.
        index: usize,
        /// Two ranks.
        ranks: [usize; 2],
        /// What each of them calls there.
        calls: [String; 2],
    },
    /// A stream that may begin before the call does.
    UnforkedStream {
        /// Whose.
        rank: usize,
        /// Which.
        stream: usize,
        /// Its first operation.
        first: Step,
    },
    /// A stream that may go on after the call has ended.
    UnjoinedStream {
        /// Whose.
        rank: usize,
        /// Which.
        stream: usize,
        /// Its last operation.
        last: Step,
    },
    /// Two launches of a rank that wait for peers on the device, and that nothing orders within a call.
    Starvation {
        /// One.
        first: Step,
        /// The other.
        second: Step,
    },
    /// A rank that may leave a call before a peer has entered it, although a buffer alternates.
    Unheard {
        /// Who may leave.
        rank: usize,
        /// Who may not have entered.
        peer: usize,
        /// The buffer.
        buffer: String,
    },
    /// A read of elements that the call has not written: the first call reads rubbish, a later one what its
    /// predecessor left.
    Unwritten {
        /// The read.
        read: Touch,
        /// What nobody has written, as text.
        missing: Vec<String>,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} call {}  {}", self.rank, self.call, self.text)
    }
}

impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.kind {
            AccessKind::Read => "reads",
            AccessKind::Write => "writes",
            AccessKind::Discard => "may leave anything in",
        };
        write!(f, "{}  ({verb} {})", self.step, self.text)
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` from rank {} to rank {}",
            self.name, self.src, self.dst
        )
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Awaited::Signal { flag, needs, sees } => {
                write!(f, "{flag} to reach {needs}, sees {sees}")
            }
            Awaited::Entry { rank } => write!(f, "rank {rank} to enter"),
        }
    }
}

impl fmt::Display for Blockage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let awaits: Vec<String> = self.awaits.iter().map(Awaited::to_string).collect();
        write!(f, "{}  (waits for {})", self.step, awaits.join("; "))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Fault(fault) => write!(f, "{fault}"),
            Violation::Disagreement { what } => write!(f, "{what}"),
            Violation::TooManySteps { steps, most } => write!(
                f,
                "not proved: {steps} steps, {most} at most: check fewer chunks, groups of more rows, \
                 fewer ranks or fewer calls"
            ),
            Violation::Race {
                first,
                second,
                overlap,
                occurrences,
                schedule,
            } => {
                write!(f, "race on {overlap}")?;
                if *occurrences > 1 {
                    write!(f, ", {occurrences} times in these calls")?;
                }
                write!(f, "\n  {first}\n  {second}")?;
                write!(f, "\n  a schedule that fails")?;
                if schedule.shared > 0 {
                    write!(f, ", after {} steps that both wait for", schedule.shared)?;
                }
                write!(f, ":")?;
                for step in &schedule.steps[schedule.shared..] {
                    let mark = if *step == first.step {
                        " <- first"
                    } else if *step == second.step {
                        " <- second"
                    } else {
                        ""
                    };
                    write!(f, "\n    {step}{mark}")?;
                }
                Ok(())
            }
            Violation::Deadlock {
                blocked,
                chain,
                closes_at,
            } => {
                write!(f, "deadlock, {} steps wait for ever:", blocked.len())?;
                for (place, link) in chain.iter().enumerate() {
                    write!(f, "\n  ({place}) {link}")?;
                }
                match closes_at {
                    Some(place) => write!(f, "\n  which is after ({place})"),
                    None => write!(f, "\n  which nobody ever does"),
                }
            }
            Violation::UnmatchedSignal {
                flag,
                signals,
                waits,
            } => write!(
                f,
                "{flag}: one call signals it {signals} times and waits for it {waits} times"
            ),
            Violation::Unordered {
                sequence,
                flag,
                first,
                second,
            } => {
                match sequence {
                    Sequence::Signals => write!(f, "signals")?,
                    Sequence::Waits => write!(f, "waits")?,
                    Sequence::Collectives => write!(f, "collectives")?,
                }
                if let Some(flag) = flag {
                    write!(f, " on {flag}")?;
                }
                write!(f, " in no fixed order\n  {first}\n  {second}")
            }
            Violation::CollectiveMismatch {
                index,
                ranks: [r, s],
                calls: [x, y],
            } => write!(
                f,
                "collective {index} of a call: rank {r} has {x}, rank {s} has {y}"
            ),
            Violation::UnforkedStream {
                rank,
                stream,
                first,
            } => write!(
                f,
                "stream {stream} of rank {rank} is not forked from stream 0\n  {first}"
            ),
            Violation::UnjoinedStream { rank, stream, last } => write!(
                f,
                "stream {stream} of rank {rank} is not joined to stream 0\n  {last}"
            ),
            Violation::Starvation { first, second } => write!(
                f,
                "two launches that wait for peers in no fixed order: each may hold the SMs that the other \
                 needs, on one rank this and on another that\n  {first}\n  {second}"
            ),
            Violation::Unheard { rank, peer, buffer } => write!(
                f,
                "`{buffer}` alternates, and rank {rank} may leave a call that rank {peer} has not entered: \
                 two calls later it may write what rank {peer} still reads"
            ),
            Violation::Unwritten { read, missing } => write!(
                f,
                "read of what this call has not written: {}\n  {read}",
                missing.join(", ")
            ),
        }
    }
}

impl std::error::Error for Report {}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} ranks, {} calls back to back: ",
            self.name, self.world, self.calls
        )?;
        if self.holds() {
            return write!(
                f,
                "holds ({} steps, {} conflicting pairs, all ordered; no deadlock)",
                self.steps, self.conflicts
            );
        }
        let count = self.violations.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} violation{plural}")?;
        for (number, violation) in self.violations.iter().enumerate() {
            let text = violation.to_string().replace('\n', "\n  ");
            write!(f, "\n{}. {text}", number + 1)?;
        }
        Ok(())
    }
}
