//! When each step of a schedule ran, as simulated or as measured.

use crate::check::Site;
use std::fmt;

/// Where the times of a timeline come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A simulation.
    Simulated,
    /// A device.
    Measured,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Origin::Simulated => "simulated",
            Origin::Measured => "measured",
        })
    }
}

/// What held a step up last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Nothing: it stood first.
    Start,
    /// The step before it on its stream or lane.
    Order,
    /// A record on another stream.
    Event,
    /// A signal of another rank, or of its own.
    Signal,
    /// The last rank to enter a collective.
    Collective,
    /// A copy that gave its engine back.
    Engine,
}

/// One step of one rank. Times are in µs from the common start.
///
/// Of measured steps nobody knows what held them up: they have the cause [`Cause::Start`], and kernels have
/// no lanes.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Whose.
    pub rank: usize,
    /// In which call, counted from 1.
    pub call: usize,
    /// On which stream.
    pub stream: usize,
    /// Where in the plan.
    pub site: Site,
    /// The operation or effect as text.
    pub text: String,
    /// When its turn came.
    pub start: f64,
    /// When it had ended.
    pub end: f64,
    /// What held it up last.
    pub cause: Cause,
    /// Index of the span that did.
    pub after: Option<usize>,
}

/// The steps of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Name of the plans.
    pub plan: String,
    /// Name of the machine, or of the device.
    pub machine: String,
    /// Where the times come from.
    pub origin: Origin,
    /// Number of ranks.
    pub world: usize,
    /// All steps, by rank, call and place in the plan; of the first node's ranks alone where these
    /// [stand for all](crate::simulate::first_node).
    pub spans: Vec<Span>,
}

impl Timeline {
    /// When the last rank had ended, µs.
    pub fn total(&self) -> f64 {
        self.spans.iter().map(|s| s.end).fold(0.0, f64::max)
    }

    /// Indices of the steps without which the last one would have ended sooner, first to last: each is what
    /// held up the next.
    pub fn critical_path(&self) -> Vec<usize> {
        let mut path = Vec::new();
        // Of several that end together, the last in the list: nothing in it waits for a later one of its
        // rank.
        let by_end = |a: &usize, b: &usize| self.spans[*a].end.total_cmp(&self.spans[*b].end);
        let mut next = (0..self.spans.len()).max_by(by_end);
        while let Some(index) = next {
            path.push(index);
            next = self.spans[index].after;
        }
        path.reverse();
        path
    }

    fn operations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spans.iter().try_for_each(|span| line(f, span))
    }
}

fn line(f: &mut fmt::Formatter<'_>, span: &Span) -> fmt::Result {
    if span.end <= span.start {
        return Ok(());
    }
    writeln!(
        f,
        "  {:10.1} {:10.1}  rank {} stream {}  {}",
        span.start, span.end, span.rank, span.stream, span.text
    )
}

/// The total and the critical path of a simulation, or the operations that a device ran; steps that take no
/// time are left out.
impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} on {}, {} ranks: {:.1} µs ({})",
            self.plan,
            self.machine,
            self.world,
            self.total(),
            self.origin
        )?;
        if self.origin == Origin::Measured {
            return self.operations(f);
        }
        writeln!(f, "critical path:")?;
        let path = self.critical_path().into_iter();
        path.map(|index| &self.spans[index])
            .try_for_each(|span| line(f, span))
    }
}
