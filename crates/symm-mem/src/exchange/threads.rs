//! [`Exchange`] among threads of one process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::{Exchange, ExchangeError, LossWatcher};
use crate::sync::{Condvar, Instant, Mutex};

/// A group whose ranks are threads of this process.
pub struct ThreadExchange {
    rank: usize,
    group: Arc<Group>,
    calls: Mutex<u64>,
    timeout: Duration,
}

struct Group {
    world: usize,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Generation>,
    lost: Option<usize>,
    /// A thread panicked.
    panicked: Option<usize>,
    watchers: Vec<LossWatcher>,
    marks: HashMap<String, usize>,
}

const PANICKED: &str = "its thread panicked";

struct Generation {
    given: Vec<Option<Contribution>>,
    /// The first rank whose deadline passed, and the ranks that were missing: the call fails on all ranks.
    timed_out: Option<(usize, Vec<usize>)>,
    /// Ranks whose call ended.
    ended: usize,
}

#[derive(Clone)]
struct Contribution {
    tag: String,
    bytes: Vec<u8>,
    fds: Vec<Arc<OwnedFd>>,
}

impl ThreadExchange {
    /// Creates one exchange for each of `world` ranks; pass one to each thread.
    pub fn group(world: usize) -> Vec<ThreadExchange> {
        Self::group_with_timeout(world, Duration::from_secs(30))
    }

    /// As [`ThreadExchange::group`], with the time after which a missing peer is an error.
    pub fn group_with_timeout(world: usize, timeout: Duration) -> Vec<ThreadExchange> {
        let group = Arc::new(Group {
            world,
            state: Mutex::default(),
            arrived: Condvar::new(),
        });
        (0..world)
            .map(|rank| ThreadExchange {
                rank,
                group: group.clone(),
                calls: Mutex::new(0),
                timeout,
            })
            .collect()
    }

    fn gather(&self, mine: Contribution) -> Result<Vec<Contribution>, ExchangeError> {
        let call = {
            let mut calls = self.calls.lock();
            *calls += 1;
            *calls
        };
        let tag = mine.tag.clone();
        let start = Instant::now();
        let mut state = self.group.state.lock();
        let world = self.group.world;
        let generation = state.open.entry(call).or_insert_with(|| Generation {
            given: vec![None; world],
            timed_out: None,
            ended: 0,
        });
        if generation.timed_out.is_none() {
            generation.given[self.rank] = Some(mine);
        }
        if generation.given.iter().all(Option::is_some) {
            self.group.arrived.notify_all();
        }
        let mut late = false;
        let outcome = loop {
            let State { open, lost, .. } = &mut *state;
            let generation = open
                .get_mut(&call)
                .expect("a generation lives until the call ended on all ranks");
            if let Some((rank, missing)) = &generation.timed_out {
                break Err(match missing.contains(&self.rank) {
                    true => ExchangeError::PeerFailed {
                        rank: *rank,
                        tag,
                        cause: format!("it had timed out waiting for ranks {missing:?}"),
                    },
                    false => ExchangeError::Timeout {
                        tag,
                        waiting_for: missing.clone(),
                        after: start.elapsed(),
                    },
                });
            }
            if generation.given.iter().all(Option::is_some) {
                let all: Vec<_> = generation.given.iter().flatten().cloned().collect();
                break match all.iter().position(|c| c.tag != tag) {
                    Some(rank) => Err(ExchangeError::Mismatch {
                        rank,
                        theirs: all[rank].tag.clone(),
                        tag,
                    }),
                    None => Ok(all),
                };
            }
            let waiting_for: Vec<_> = (0..world)
                .filter(|&r| generation.given[r].is_none())
                .collect();
            if let Some(rank) = lost.filter(|r| waiting_for.contains(r)) {
                break Err(ExchangeError::PeerLost {
                    rank,
                    tag,
                    cause: "its thread dropped the exchange".into(),
                });
            }
            if late {
                generation.timed_out = Some((self.rank, waiting_for));
                generation.given.fill(None);
                self.group.arrived.notify_all();
                continue;
            }
            let left = self.timeout.saturating_sub(start.elapsed());
            late = left.is_zero() || self.group.arrived.wait_for(&mut state, left).timed_out();
        };
        if let Entry::Occupied(mut generation) = state.open.entry(call) {
            generation.get_mut().ended += 1;
            if generation.get().ended == world {
                generation.remove();
            }
        }
        outcome
    }
}

impl Drop for ThreadExchange {
    fn drop(&mut self) {
        let mut state = self.group.state.lock();
        state.lost.get_or_insert(self.rank);
        // A thread that ends without a panic has made its calls: nobody waits for more.
        if std::thread::panicking() && state.panicked.is_none() {
            state.panicked = Some(self.rank);
            state
                .watchers
                .iter()
                .for_each(|watcher| watcher.notify(Some(self.rank), PANICKED));
        }
        drop(state);
        self.group.arrived.notify_all();
    }
}

impl Exchange for ThreadExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.group.world
    }

    fn all_gather(&self, tag: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let all = self.gather(Contribution {
            tag: tag.into(),
            bytes: bytes.into(),
            fds: Vec::new(),
        })?;
        Ok(all.into_iter().map(|c| c.bytes).collect())
    }

    fn all_gather_fds(
        &self,
        tag: &str,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<Vec<OwnedFd>>, ExchangeError> {
        let duplicate = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|source| ExchangeError::Io {
                what: format!("duplicating a descriptor for `{tag}` (is ulimit -n reached?)"),
                source,
            })
        };
        let mine = fds
            .iter()
            .map(|&fd| duplicate(fd).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let all = self.gather(Contribution {
            tag: tag.into(),
            bytes: Vec::new(),
            fds: mine,
        })?;
        use std::os::fd::AsFd;
        all.into_iter()
            .map(|c| c.fds.iter().map(|fd| duplicate(fd.as_fd())).collect())
            .collect()
    }

    fn mark(&self, name: &str, leave: bool) -> Result<Option<usize>, ExchangeError> {
        let mut state = self.group.state.lock();
        if leave {
            state.marks.entry(name.into()).or_insert(self.rank);
        }
        Ok(state.marks.get(name).copied())
    }

    fn watch(&self, watcher: LossWatcher) {
        let mut state = self.group.state.lock();
        if let Some(rank) = state.panicked {
            watcher.notify(Some(rank), PANICKED);
        }
        state.watchers.retain(LossWatcher::is_live);
        state.watchers.push(watcher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_by_rank_again_and_again() {
        std::thread::scope(|s| {
            for ex in ThreadExchange::group(3) {
                s.spawn(move || {
                    for call in 0..50u8 {
                        let all = ex.all_gather("x", &[ex.rank() as u8, call]).unwrap();
                        assert_eq!(all, vec![vec![0, call], vec![1, call], vec![2, call]]);
                    }
                    ex.barrier("end").unwrap();
                });
            }
        });
    }

    #[test]
    fn a_peer_at_another_call_is_named() {
        let mut group = ThreadExchange::group(2);
        let b = group.pop().unwrap();
        let a = group.pop().unwrap();
        let other = std::thread::spawn(move || b.barrier("two").unwrap_err().to_string());
        let error = a.barrier("one").unwrap_err().to_string();
        assert!(error.contains("rank 1 is at `two`"), "{error}");
        assert!(other.join().unwrap().contains("rank 0 is at `one`"));
    }

    #[test]
    fn a_peer_that_went_is_named() {
        let mut group = ThreadExchange::group(2);
        drop(group.pop());
        let error = group[0].barrier("x").unwrap_err();
        assert!(
            matches!(error, ExchangeError::PeerLost { rank: 1, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_rank_that_comes_after_a_time_out_fails_too() {
        let group = ThreadExchange::group_with_timeout(3, Duration::from_millis(20));
        let pipe = std::io::pipe().unwrap().0;
        std::thread::scope(|s| {
            for ex in &group[..2] {
                let fds = [std::os::fd::AsFd::as_fd(&pipe)];
                s.spawn(move || {
                    let error = ex.all_gather_fds("x", &fds).unwrap_err();
                    let is_timeout = matches!(&error, ExchangeError::Timeout { waiting_for, .. }
                        if waiting_for.contains(&2));
                    let is_named = matches!(&error, ExchangeError::PeerFailed { rank: 0 | 1, .. });
                    assert!(is_timeout || is_named, "{error}");
                });
            }
        });
        let error = group[2].all_gather_fds("x", &[]).unwrap_err();
        assert!(
            matches!(&error, ExchangeError::PeerFailed { rank: 0 | 1, .. }),
            "{error}"
        );
        assert!(group[0].group.state.lock().open.is_empty());
        std::thread::scope(|s| {
            for ex in &group {
                s.spawn(move || while ex.barrier("again").is_err() {});
            }
        });
    }

    #[test]
    fn a_peer_that_never_comes_is_named() {
        let group = ThreadExchange::group_with_timeout(2, Duration::from_millis(20));
        let error = group[0].barrier("x").unwrap_err();
        assert!(
            matches!(&error, ExchangeError::Timeout { waiting_for, .. } if waiting_for == &[1])
        );
    }
}
