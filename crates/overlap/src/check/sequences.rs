//! What must be ordered for the proof to mean anything: the signals and waits of one flag, a rank's
//! collectives, a call's streams.

use super::order::HappensBefore;
use super::program::{NodeId, Program, Site};
use super::report::{Sequence, Violation};
use super::run::{FlagKey, Run};
use std::collections::HashSet;

/// Signals or waits on one flag, and collectives of one rank, that may run in either order.
///
/// The greedy run numbered them in the order in which it met them. If each is ordered before the next, every
/// run numbers them so.
pub(super) fn unordered(
    program: &Program<'_>,
    run: &Run,
    order: &HappensBefore<'_>,
) -> Vec<Violation> {
    let mut collector = Collector {
        program,
        order,
        reported: HashSet::new(),
        found: Vec::new(),
    };
    for (&key, flag) in &run.flags {
        let pairs = |nodes: &[NodeId]| -> Vec<(NodeId, NodeId)> {
            nodes.windows(2).map(|w| (w[0], w[1])).collect()
        };
        for (first, second) in pairs(&flag.signals) {
            collector.pair(Sequence::Signals, Some(key), (first, first), second);
        }
        for (first, second) in pairs(&flag.waits) {
            collector.pair(Sequence::Waits, Some(key), (first, first), second);
        }
    }
    for collectives in &program.collectives {
        for pair in collectives.windows(2) {
            let [one, next] = [pair[0], pair[1]];
            collector.pair(
                Sequence::Collectives,
                None,
                (one.begin, one.end),
                next.begin,
            );
        }
    }
    collector.found
}

/// Streams that may begin before the call, or end after it.
///
/// Streams and events of the rank must see to that, even where a signal's way over a peer would do: a graph
/// is captured along these alone.
pub(super) fn loose_streams(program: &Program<'_>, order: &HappensBefore<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for ends in &program.stream_ends {
        let (rank, stream) = (ends.rank, ends.stream);
        if order.ran(ends.first) && !program.follows(ends.first, ends.start) {
            let first = program.step(ends.first);
            found.push(Violation::UnforkedStream {
                rank,
                stream,
                first,
            });
        }
        if order.ran(ends.last) && order.ran(ends.end) && !program.follows(ends.end, ends.last) {
            let last = program.step(ends.last);
            found.push(Violation::UnjoinedStream { rank, stream, last });
        }
    }
    found
}

struct Collector<'a> {
    program: &'a Program<'a>,
    order: &'a HappensBefore<'a>,
    reported: HashSet<(Sequence, usize, Site, Site)>,
    found: Vec<Violation>,
}

impl Collector<'_> {
    fn pair(
        &mut self,
        sequence: Sequence,
        flag: Option<FlagKey>,
        (begin, end): (NodeId, NodeId),
        next: NodeId,
    ) {
        let [one, other] = [begin, next].map(|id| &self.program.nodes[id]);
        // What never ran is a deadlock's to report. One step that signals a flag twice does so back to back.
        let told = begin == next || !self.order.ran(end) || !self.order.ran(next);
        if told || self.order.before(end, next) {
            return;
        }
        if !self
            .reported
            .insert((sequence, one.rank, one.site, other.site))
        {
            return;
        }
        self.found.push(Violation::Unordered {
            sequence,
            flag: flag.map(|key| self.program.flag(key)),
            first: self.program.step(begin),
            second: self.program.step(next),
        });
    }
}
