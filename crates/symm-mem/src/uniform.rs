//! A cache with the same content on all ranks: every decision is made from the views of all ranks.
//!
//! Each rank has its own key for an entry; the entry's number is the same on all ranks. For a look-up each
//! rank sends a [`View`]: the numbers of its entries that match, of those whose key is dead and of those that
//! are still held. All ranks decide from all views, and from nothing else:
//! - a *hit* is the latest entry that matches on every rank; an entry that matches on some ranks only is a
//!   miss on all;
//! - only what no rank holds may be *evicted*, so nothing is closed while it is used. Dead entries go first,
//!   then the least recently used until the cache is within its limits.
//!
//! Each view carries a digest of the decisions so far. If a step succeeded on some ranks only, their
//! histories differ; the next look-up detects that instead of mixing entries that do not belong together.
//!
//! A table belongs to one group of ranks; [`Groups`] holds the tables of all groups that use a cache.

mod groups;

use std::hash::Hasher;
use std::sync::Arc;

use fnv::FnvHasher;

use crate::error::{Error, Result};
use crate::wire::{Malformed, Reader, Writer};

pub(crate) use groups::{Group, Groups, Sides};

/// Limits of a cache, for each group of ranks that uses it. Entries that are held stay even beyond the
/// limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Number of entries.
    pub entries: usize,
    /// Total bytes of all entries, as registered on one rank.
    pub bytes: usize,
}

impl Default for CacheLimits {
    /// 64 entries of any size.
    fn default() -> Self {
        CacheLimits {
            entries: 64,
            bytes: usize::MAX,
        }
    }
}

/// A running 64-bit FNV-1a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(pub u64);

impl Digest {
    pub const START: Digest = Digest(0xcbf2_9ce4_8422_2325);

    pub fn add(&mut self, words: &[u64]) {
        let mut hash = FnvHasher::with_key(self.0);
        words
            .iter()
            .for_each(|word| hash.write(&word.to_le_bytes()));
        self.0 = hash.finish();
    }
}

/// One rank's view of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    digest: u64,
    matching: Vec<u64>,
    dead: Vec<u64>,
    held: Vec<u64>,
}

impl View {
    /// The view of a table that never had an entry.
    fn empty() -> Self {
        View {
            digest: Digest::START.0,
            matching: Vec::new(),
            dead: Vec::new(),
            held: Vec::new(),
        }
    }

    pub fn write(&self, to: &mut Writer) {
        to.word(self.digest)
            .words(&self.matching)
            .words(&self.dead)
            .words(&self.held);
    }

    pub fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(View {
            digest: from.word()?,
            matching: from.words()?,
            dead: from.words()?,
            held: from.words()?,
        })
    }
}

#[derive(Debug)]
pub(crate) struct Uniform<K, V> {
    entries: Vec<Entry<K, V>>,
    limits: CacheLimits,
    /// The number of the next entry. Numbers are never reused.
    next: u64,
    clock: u64,
    digest: Digest,
}

#[derive(Debug)]
struct Entry<K, V> {
    number: u64,
    used: u64,
    bytes: usize,
    key: K,
    value: Arc<V>,
}

impl<K: PartialEq, V> Uniform<K, V> {
    pub fn new(limits: CacheLimits) -> Self {
        Uniform {
            entries: Vec::new(),
            limits,
            next: 0,
            clock: 0,
            digest: Digest::START,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// This rank's view for a look-up of `key`. Checks for dead entries only if nothing matches: a hit needs
    /// no such sweep, and a rank that lost its memory misses itself.
    pub fn view(&self, key: Option<&K>, is_dead: impl Fn(&K, &V) -> bool) -> View {
        let numbers = |wanted: &dyn Fn(&Entry<K, V>) -> bool| -> Vec<u64> {
            let entries = self.entries.iter().filter(|e| wanted(e));
            entries.map(|e| e.number).collect()
        };
        let matching = numbers(&|e| Some(&e.key) == key);
        let dead = match matching.is_empty() {
            true => numbers(&|e| is_dead(&e.key, &e.value)),
            false => Vec::new(),
        };
        View {
            digest: self.digest.0,
            matching,
            dead,
            held: numbers(&|e| Arc::strong_count(&e.value) > 1),
        }
    }

    /// Checks that the histories of all ranks are equal.
    pub fn same_history(&self, what: &'static str, rank: usize, views: &[View]) -> Result<()> {
        let mine = self.digest.0;
        match views.iter().position(|view| view.digest != mine) {
            None => Ok(()),
            Some(peer) => Err(Error::Disagreement {
                what,
                rank,
                mine: format!("{mine:016x}"),
                peer,
                theirs: format!("{:016x}", views[peer].digest),
            }),
        }
    }

    /// The latest entry that matches on every rank.
    pub fn hit(&mut self, views: &[View]) -> Option<Arc<V>> {
        let (first, others) = views.split_first()?;
        let all = |n: &&u64| others.iter().all(|view| view.matching.contains(n));
        let number = *first.matching.iter().filter(all).max()?;
        self.clock += 1;
        let entry = self.entries.iter_mut().find(|e| e.number == number)?;
        entry.used = self.clock;
        self.digest.add(&[1, number]);
        Some(entry.value.clone())
    }

    /// Evicts what is dead on some rank and then, until an entry of `bytes` fits, what was least recently
    /// used. Keeps what any rank holds.
    pub fn make_room(&mut self, views: &[View], bytes: usize) -> Vec<Arc<V>> {
        let reported =
            |of: fn(&View) -> &Vec<u64>, n: u64| views.iter().any(|v| of(v).contains(&n));
        let mut free: Vec<_> = self
            .entries
            .iter()
            .filter(|e| !reported(|v| &v.held, e.number))
            .map(|e| (!reported(|v| &v.dead, e.number), e.used, e.number, e.bytes))
            .collect();
        free.sort_unstable();
        let (mut entries, mut total) = (self.entries.len(), self.bytes());
        let mut victims = Vec::new();
        for (alive, _, number, of) in free {
            let fits = entries < self.limits.entries.max(1)
                && total.saturating_add(bytes) <= self.limits.bytes;
            if alive && fits {
                break;
            }
            victims.push(number);
            entries -= 1;
            total -= of;
        }
        self.take(&victims)
    }

    /// Removes everything that no rank holds.
    pub fn take_idle(&mut self, views: &[View]) -> Vec<Arc<V>> {
        let held = |n: &u64| views.iter().any(|v| v.held.contains(n));
        let numbers = self.entries.iter().map(|e| e.number);
        let idle: Vec<_> = numbers.filter(|n| !held(n)).collect();
        self.take(&idle)
    }

    /// Removes the entries with these numbers.
    pub fn take(&mut self, numbers: &[u64]) -> Vec<Arc<V>> {
        for &number in numbers {
            self.digest.add(&[2, number]);
        }
        let entries = std::mem::take(&mut self.entries);
        let (out, kept) = entries
            .into_iter()
            .partition(|e| numbers.contains(&e.number));
        self.entries = kept;
        let out: Vec<Entry<K, V>> = out;
        out.into_iter().map(|e| e.value).collect()
    }

    /// The number of the entry with this value, if it is in the cache.
    pub fn number_of(&self, value: &Arc<V>) -> Option<u64> {
        let mut entries = self.entries.iter();
        entries
            .find(|e| Arc::ptr_eq(&e.value, value))
            .map(|e| e.number)
    }

    /// Number of entries that are held.
    pub fn held(&self) -> usize {
        let held = |e: &&Entry<K, V>| Arc::strong_count(&e.value) > 1;
        self.entries.iter().filter(held).count()
    }

    pub fn insert(&mut self, key: K, bytes: usize, value: Arc<V>) {
        self.clock += 1;
        self.digest.add(&[3, self.next, bytes as u64]);
        self.entries.push(Entry {
            number: self.next,
            used: self.clock,
            bytes,
            key,
            value,
        });
        self.next += 1;
    }

    fn bytes(&self) -> usize {
        let each = self.entries.iter().map(|e| e.bytes);
        each.fold(0, usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = Uniform<u32, u32>;

    /// Looks up a key of each rank and inserts an entry on a miss. Returns each rank's value and whether it
    /// was a hit.
    fn look_up(ranks: &mut [Table], keys: &[u32], fresh: u32) -> Vec<(Arc<u32>, bool)> {
        let views: Vec<_> = ranks
            .iter()
            .zip(keys)
            .map(|(table, key)| table.view(Some(key), |key, _| *key == 99))
            .collect();
        let each = ranks.iter_mut().zip(keys).enumerate();
        each.map(|(rank, (table, key))| {
            table.same_history("history", rank, &views).unwrap();
            if let Some(hit) = table.hit(&views) {
                return (hit, true);
            }
            table.make_room(&views, 10);
            let value = Arc::new(fresh);
            table.insert(*key, 10, value.clone());
            (value, false)
        })
        .collect()
    }

    fn tables(entries: usize, bytes: usize) -> Vec<Table> {
        let limits = CacheLimits { entries, bytes };
        (0..3).map(|_| Uniform::new(limits)).collect()
    }

    fn values(found: &[(Arc<u32>, bool)]) -> Vec<(u32, bool)> {
        found.iter().map(|(value, hit)| (**value, *hit)).collect()
    }

    #[test]
    fn a_hit_needs_the_same_entry_on_every_rank() {
        let mut ranks = tables(10, 1000);
        assert_eq!(values(&look_up(&mut ranks, &[1, 1, 1], 7)), [(7, false); 3]);
        assert_eq!(values(&look_up(&mut ranks, &[1, 1, 1], 8)), [(7, true); 3]);
        assert_eq!(values(&look_up(&mut ranks, &[1, 2, 1], 9)), [(9, false); 3]);
        // Each rank knows its key, but from different entries.
        assert_eq!(
            values(&look_up(&mut ranks, &[3, 3, 3], 10)),
            [(10, false); 3]
        );
        assert_eq!(
            values(&look_up(&mut ranks, &[3, 2, 1], 11)),
            [(11, false); 3]
        );
        assert_eq!(values(&look_up(&mut ranks, &[1, 2, 1], 12)), [(9, true); 3]);
    }

    #[test]
    fn the_dead_go_first_then_the_oldest_and_never_the_held() {
        let mut ranks = tables(3, 1000);
        look_up(&mut ranks, &[1, 1, 1], 1);
        let held = look_up(&mut ranks, &[2, 2, 2], 2).swap_remove(1);
        // Dead on rank 2 only, where 99 is the key of the freed memory.
        look_up(&mut ranks, &[3, 3, 99], 3);
        look_up(&mut ranks, &[4, 4, 4], 4);
        assert!(ranks.iter().all(|t| t.len() == 3));
        assert_eq!(values(&look_up(&mut ranks, &[1, 1, 1], 5)), [(1, true); 3]);
        look_up(&mut ranks, &[5, 5, 5], 5);
        look_up(&mut ranks, &[6, 6, 6], 6);
        assert_eq!(values(&look_up(&mut ranks, &[2, 2, 2], 9)), [(2, true); 3]);
        assert_eq!(values(&look_up(&mut ranks, &[4, 4, 4], 9)), [(9, false); 3]);
        drop(held);
    }

    #[test]
    fn a_decision_that_one_rank_took_alone_is_seen_at_the_next_look_up() {
        let mut ranks = tables(3, 1000);
        look_up(&mut ranks, &[1, 1, 1], 1);
        ranks[2].insert(5, 10, Arc::new(5));
        let views: Vec<_> = ranks
            .iter()
            .map(|table| table.view(Some(&1), |_, _| false))
            .collect();
        for (rank, table) in ranks.iter().enumerate() {
            let error = table.same_history("history", rank, &views).unwrap_err();
            let culprit = if rank == 2 { 0 } else { 2 };
            assert!(
                matches!(error, Error::Disagreement { peer, .. } if peer == culprit),
                "{error}"
            );
        }
    }

    #[test]
    fn a_view_arrives_as_it_was_sent() {
        let view = View {
            digest: 5,
            matching: vec![1, 2],
            dead: vec![],
            held: vec![u64::MAX],
        };
        let mut message = Writer::default();
        view.write(&mut message);
        let message = message.finish();
        assert_eq!(View::read(&mut Reader::new(&message)), Ok(view));
        for cut in 0..message.len() {
            assert!(View::read(&mut Reader::new(&message[..cut])).is_err());
        }
    }
}
