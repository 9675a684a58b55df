//! Sets of ranks in rounds: in each round every rank of the world belongs to one group.

use std::ops::Range;

use crate::plan::Transport;

/// Groups that are made at the same time: a partition of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::execute) struct Round {
    /// What moves the bytes.
    pub transport: Transport,
    /// The ranks of each group, in the order of their shards.
    pub groups: Vec<Vec<usize>>,
}

impl Round {
    /// The group of `rank`.
    pub fn group_of(&self, rank: usize) -> &[usize] {
        let group = self.groups.iter().find(|group| group.contains(&rank));
        group.map_or(&[], Vec::as_slice)
    }
}

/// Packs the sets of ranks that do collectives into as few rounds as it finds, those of `sets` in order. What
/// is left in a round are groups that have nothing to do, one for each node. All ranks that give the same
/// arguments get the same rounds.
pub(in crate::execute) fn rounds(
    sets: impl IntoIterator<Item = (Transport, Vec<usize>)>,
    nodes: &[Range<usize>],
) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for (transport, set) in sets {
        let busy = |round: &Round| set.iter().any(|&rank| !round.group_of(rank).is_empty());
        let mut same = rounds.iter_mut().filter(|r| r.transport == transport);
        let mut free = None;
        let mut known = false;
        for round in &mut same {
            known |= round.groups.contains(&set);
            if free.is_none() && !busy(round) {
                free = Some(round);
            }
        }
        match free {
            _ if known => {}
            Some(round) => round.groups.push(set),
            None => rounds.push(Round {
                transport,
                groups: vec![set],
            }),
        }
    }
    for round in &mut rounds {
        for node in nodes {
            let idle: Vec<usize> = node
                .clone()
                .filter(|&rank| round.group_of(rank).is_empty())
                .collect();
            if !idle.is_empty() {
                round.groups.push(idle);
            }
        }
        // One name for one partition, whatever the order in which plans give its sets.
        round
            .groups
            .sort_by_key(|group| group.iter().min().copied());
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use Transport::{Nccl, SymmetricMemory};

    fn groups(sets: &[&[usize]], nodes: &[Range<usize>]) -> Vec<Vec<Vec<usize>>> {
        let sets = sets.iter().map(|set| (Nccl, set.to_vec()));
        rounds(sets, nodes).into_iter().map(|r| r.groups).collect()
    }

    #[test]
    fn disjoint_sets_share_a_round_and_nobody_is_left_out() {
        let nodes = [0..2, 2..4];
        let hierarchy: [&[usize]; 5] = [&[0, 1], &[0, 2], &[2, 3], &[1, 3], &[0, 1]];
        assert_eq!(
            groups(&hierarchy, &nodes),
            [[[0, 1], [2, 3]], [[0, 2], [1, 3]]]
        );
        assert_eq!(groups(&[&[2, 1]], &nodes), [[vec![0], vec![2, 1], vec![3]]]);
        assert_eq!(
            groups(&[&[0, 1], &[1, 0]], std::slice::from_ref(&(0..2))),
            [[[0, 1]], [[1, 0]]]
        );
    }

    #[test]
    fn transports_have_rounds_of_their_own() {
        let sets = [Nccl, SymmetricMemory].map(|transport| (transport, vec![0, 1]));
        assert_eq!(rounds(sets, std::slice::from_ref(&(0..2))).len(), 2);
    }
}
