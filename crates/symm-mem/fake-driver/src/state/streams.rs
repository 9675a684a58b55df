//! Streams, events, and what a capture records.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::work::{Recording, Work};

#[derive(Debug)]
pub(crate) struct Stream {
    pub context: u64,
    /// The capture that it takes part in.
    pub capture: Option<u64>,
}

/// The last recording of an event.
#[derive(Clone, Debug)]
pub(crate) enum Recorded {
    At(Recording),
    /// Recorded in a capture: how much of each stream's work comes before the event.
    Within {
        capture: u64,
        seen: BTreeMap<u64, usize>,
    },
}

#[derive(Debug)]
pub(crate) struct Event {
    pub context: u64,
    pub timed: bool,
    pub recorded: Option<Recorded>,
}

/// A capture in progress.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream on which it began.
    pub origin: u64,
    pub work: Vec<Work>,
    /// An illegal call has broken it.
    pub broken: bool,
    /// For each stream in the capture: how much of each stream's work, its own included, it is ordered after.
    pub order: BTreeMap<u64, BTreeMap<u64, usize>>,
    /// For each stream in the capture: the nodes that its next work comes after.
    pub after: BTreeMap<u64, Vec<u64>>,
    name: u64,
}

#[derive(Debug)]
pub(crate) struct Graph {
    pub context: u64,
    pub work: Arc<Vec<Work>>,
}

#[derive(Debug)]
pub(crate) struct Exec {
    pub context: u64,
    pub work: Arc<Vec<Work>>,
}

impl Capture {
    pub fn new(name: u64, origin: u64) -> Self {
        Capture {
            name,
            after: BTreeMap::new(),
            origin,
            work: Vec::new(),
            broken: false,
            order: BTreeMap::from([(origin, BTreeMap::new())]),
        }
    }

    pub fn add(&mut self, stream: u64, work: Work) {
        self.work.push(work);
        let node = self.name * Self::MOST_WORK + self.work.len() as u64;
        self.after.insert(stream, vec![node]);
        let seen = self.order.entry(stream).or_default();
        *seen.entry(stream).or_default() += 1;
    }

    /// Nodes are numbered from one, after so many for each capture.
    const MOST_WORK: u64 = 1 << 20;

    /// The capture of a node.
    pub fn of_node(node: u64) -> u64 {
        node / Self::MOST_WORK
    }

    pub fn work_of(&self, node: u64) -> Option<&Work> {
        let number = (node % Self::MOST_WORK) as usize;
        self.work.get(number.checked_sub(1)?)
    }

    pub fn join(&mut self, stream: u64, seen: &BTreeMap<u64, usize>) {
        // More than the real driver: all that these streams have done last.
        let last: Vec<u64> = seen
            .keys()
            .filter(|other| **other != stream)
            .filter_map(|other| self.after.get(other))
            .flatten()
            .copied()
            .collect();
        self.after.entry(stream).or_default().extend(last);
        let own = self.order.entry(stream).or_default();
        for (&other, &count) in seen {
            let known = own.entry(other).or_default();
            *known = count.max(*known);
        }
    }

    /// Whether the origin is ordered after all work of the other streams.
    pub fn is_joined(&self) -> bool {
        let after = self.order.get(&self.origin);
        self.order.iter().all(|(stream, seen)| {
            let done = seen.get(stream).copied().unwrap_or(0);
            let joined = after.and_then(|b| b.get(stream)).copied();
            *stream == self.origin || (joined.is_some() && joined >= Some(done))
        })
    }
}
