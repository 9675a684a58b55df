//! [`Exchange`] among some ranks of a larger group.

use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{Exchange, ExchangeError, LossWatcher, Nodes};
use crate::error::{Error, Result};

/// Some ranks of a group as a process group of their own, ranked by their position in a list.
///
/// It is built on all-gathers of the parent, from which each rank keeps the results of its own group. So it
/// is collective over the parent: **all ranks of the parent** make the same calls at the same time, each on
/// the sub-exchange of its own group, and the groups partition the parent. A rank that has nothing to do is a
/// group of one and makes the calls all the same. If one group gives up, the others wait until the parent's
/// deadline.
///
/// An [`ExchangeError`] names ranks of the parent.
pub struct SubExchange {
    parent: Arc<dyn Exchange>,
    ranks: Vec<usize>,
    rank: usize,
}

impl SubExchange {
    /// The group of `ranks` of `parent`, which include this one. Not collective.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a rank is not in the parent or is listed twice, or if this rank is not
    /// listed.
    pub fn new(
        parent: Arc<dyn Exchange>,
        ranks: impl IntoIterator<Item = usize>,
    ) -> Result<SubExchange> {
        let ranks: Vec<usize> = ranks.into_iter().collect();
        let (me, world) = (parent.rank(), parent.world());
        let invalid = |why| Error::InvalidArgument {
            what: "ranks of a group",
            why,
        };
        for (place, rank) in ranks.iter().enumerate() {
            if *rank >= world || ranks[..place].contains(rank) {
                return Err(invalid(format!(
                    "rank {rank} in {ranks:?} of {world} ranks"
                )));
            }
        }
        let place = ranks.iter().position(|&rank| rank == me);
        let rank = place.ok_or_else(|| invalid(format!("rank {me} is none of {ranks:?}")))?;
        Ok(SubExchange {
            parent,
            ranks,
            rank,
        })
    }

    /// The parent's ranks of this group, by their rank here.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// From the results of all ranks, those of this group.
    fn own<T>(&self, tag: &str, all: Vec<T>) -> Result<Vec<T>, ExchangeError> {
        let mut all: Vec<Option<T>> = all.into_iter().map(Some).collect();
        let take = |&rank: &usize| {
            let given = all.get_mut(rank).and_then(Option::take);
            given.ok_or_else(|| ExchangeError::Protocol {
                rank,
                tag: tag.into(),
                what: "it gave nothing".into(),
            })
        };
        self.ranks.iter().map(take).collect()
    }
}

impl Exchange for SubExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.ranks.len()
    }

    fn members(&self) -> Vec<usize> {
        let all = self.parent.members();
        self.ranks.iter().map(|&rank| all[rank]).collect()
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        self.own(tag, self.parent.all_gather(tag, bytes)?)
    }

    fn nodes(&self) -> Result<Nodes, ExchangeError> {
        Ok(self.parent.nodes()?.of_ranks(&self.ranks))
    }

    fn addresses(&self) -> Result<Vec<IpAddr>, ExchangeError> {
        self.own("addresses", self.parent.addresses()?)
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        self.own(tag, self.parent.all_gather_fds(tag, fds)?)
    }

    fn note_timeout(&self) {
        self.parent.note_timeout();
    }

    fn mark(&self, name: &str, leave: bool) -> Result<Option<usize>, ExchangeError> {
        // The name of a mark is short, and groups have many ranks.
        let name = format!("{:x}.{name}", self.group_id());
        let first = self.parent.mark(&name, leave)?;
        Ok(first.and_then(|first| self.ranks.iter().position(|&rank| rank == first)))
    }

    fn watch(&self, watcher: LossWatcher) {
        let ranks = self.ranks.clone();
        let number = move |lost| ranks.iter().position(|&rank| rank == lost);
        self.parent.watch(watcher.renumbered(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, SymmetricBuffer, ThreadExchange};

    /// Calls `run` on each of four ranks with the sub-exchange of the ranks that `group` returns.
    fn in_groups<T: Send>(
        group: fn(usize) -> Vec<usize>,
        run: impl Fn(Arc<dyn Exchange>) -> T + Sync,
    ) -> Vec<T> {
        let run = &run;
        std::thread::scope(|scope| {
            let ranks: Vec<_> = ThreadExchange::group(4)
                .into_iter()
                .map(|exchange| {
                    scope.spawn(move || {
                        let ranks = group(exchange.rank());
                        let sub = SubExchange::new(Arc::new(exchange), ranks).unwrap();
                        run(Arc::new(sub))
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn each_group_gathers_in_the_order_of_its_list() {
        let groups: fn(usize) -> Vec<usize> = |rank| match rank {
            3 => vec![3],
            _ => vec![2, 0, 1],
        };
        let got = in_groups(groups, |exchange| {
            let bytes = [exchange.rank() as u8, exchange.world() as u8];
            exchange.all_gather("bytes", &bytes).unwrap()
        });
        let three = [[0, 3], [1, 3], [2, 3]].map(Vec::from).to_vec();
        assert_eq!(
            got,
            [&three, &three, &three, &vec![vec![0, 1]]].map(Vec::clone)
        );
    }

    #[test]
    fn marks_are_of_one_group() {
        let halves: fn(usize) -> Vec<usize> = |rank| vec![rank / 2 * 2, rank / 2 * 2 + 1];
        let got = in_groups(halves, |exchange| {
            let before = exchange.mark("late", false).unwrap();
            exchange.barrier("before").unwrap();
            // The second rank of each group, and then the first of one of them.
            if exchange.rank() == 1 {
                assert_eq!(exchange.mark("late", true).unwrap(), Some(1));
            }
            exchange.barrier("left").unwrap();
            let again = exchange.mark("late", exchange.rank() == 0).unwrap();
            let other = exchange.mark("lost", false).unwrap();
            (before, again, other)
        });
        assert_eq!(got, [(None, Some(1), None); 4]);
    }

    #[test]
    fn memory_is_symmetric_within_a_group() {
        let halves: fn(usize) -> Vec<usize> = |rank| vec![rank / 2 * 2, rank / 2 * 2 + 1];
        let got = in_groups(halves, |exchange| {
            let device = Host::new();
            let buffer = SymmetricBuffer::new(&device, &exchange, "half", 4).unwrap();
            let places = buffer.addresses().len();
            exchange.barrier("end").unwrap();
            places
        });
        assert_eq!(got, [2; 4]);
    }

    #[test]
    fn invalid_groups_are_refused() {
        let parent: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(2).remove(0));
        for (ranks, named) in [
            (vec![1], "rank 0 is none of [1]"),
            (vec![0, 2], "rank 2"),
            (vec![0, 0], "rank 0 in [0, 0]"),
        ] {
            let error = SubExchange::new(parent.clone(), ranks).err().unwrap();
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
