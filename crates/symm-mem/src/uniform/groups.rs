//! A cache for several groups of ranks: one [`Uniform`] table for each group.
//!
//! An entry belongs to the group that made it, because numbers, histories and rank order have a meaning only
//! within that group. A group is the ordered list of its ranks' caches. Each cache has a unique number, so
//! another process, or another cache of the same process, makes another group.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use super::{CacheLimits, Digest, Uniform, View};
use crate::error::Result;
use crate::wire::{Malformed, Reader, Writer};

/// Identifies a group: a hash of its ranks' caches.
pub(crate) type Group = u64;

/// One rank's views for a look-up, before the group is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sides {
    cache: u64,
    views: Vec<(Group, View)>,
}

impl Sides {
    pub fn write(&self, to: &mut Writer) {
        to.word(self.cache).word(self.views.len() as u64);
        for (group, view) in &self.views {
            view.write(to.word(*group));
        }
    }

    pub fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (cache, count) = (from.word()?, from.word()?);
        let mut views = Vec::new();
        for _ in 0..count {
            views.push((from.word()?, View::read(from)?));
        }
        Ok(Sides { cache, views })
    }

    /// The view for `group`. If the group has not used this cache, the view of an empty table.
    fn of(&self, group: Group) -> View {
        let known = self.views.iter().find(|(of, _)| *of == group);
        known.map_or_else(View::empty, |(_, view)| view.clone())
    }
}

/// The tables of one rank's cache.
#[derive(Debug)]
pub(crate) struct Groups<K, V> {
    cache: u64,
    limits: CacheLimits,
    tables: Vec<(Group, Uniform<K, V>)>,
}

impl<K: PartialEq, V> Groups<K, V> {
    /// The limits apply to each group.
    pub fn new(limits: CacheLimits) -> Self {
        // A random key of the system, and the process, because a forked child inherits its parent's key.
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Groups {
            cache: hasher.finish(),
            limits,
            tables: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.tables.iter().map(|(_, table)| table.len()).sum()
    }

    /// Number of entries that are held.
    pub fn held(&self) -> usize {
        self.tables.iter().map(|(_, table)| table.held()).sum()
    }

    /// This rank's views for a look-up of `key`; see [`Uniform::view`].
    pub fn sides(&self, key: Option<&K>, is_dead: impl Fn(&K, &V) -> bool) -> Sides {
        let each = self.tables.iter();
        let views = each.map(|(group, table)| (*group, table.view(key, &is_dead)));
        Sides {
            cache: self.cache,
            views: views.collect(),
        }
    }

    /// The table of the group whose ranks sent `all`, with this one as `rank`, and all their views. An error
    /// if the histories of the group's ranks differ; `what` names them.
    pub fn of(
        &mut self,
        what: &'static str,
        rank: usize,
        all: &[&Sides],
    ) -> Result<(&mut Uniform<K, V>, Vec<View>)> {
        let mut group = Digest::START;
        all.iter().for_each(|sides| group.add(&[sides.cache]));
        let Digest(group) = group;
        let place = match self.tables.iter().position(|(of, _)| *of == group) {
            Some(place) => place,
            None => {
                self.tables.push((group, Uniform::new(self.limits)));
                self.tables.len() - 1
            }
        };
        let (_, table) = &mut self.tables[place];
        let views: Vec<_> = all.iter().map(|sides| sides.of(group)).collect();
        table.same_history(what, rank, &views)?;
        Ok((table, views))
    }

    /// Group and number of the entry with this value, if it is in the cache.
    pub fn place_of(&self, value: &Arc<V>) -> Option<(Group, u64)> {
        let mut each = self.tables.iter();
        each.find_map(|(group, table)| Some((*group, table.number_of(value)?)))
    }

    /// The table of `group`, if the group has used this cache.
    pub fn table(&mut self, group: Group) -> Option<&mut Uniform<K, V>> {
        let mut each = self.tables.iter_mut();
        each.find_map(|(of, table)| (*of == group).then_some(table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// Looks `key` up in the caches of a group and inserts an entry of `fresh` on a miss.
    fn look_up(caches: &mut [&mut Groups<u32, u32>], key: u32, fresh: u32) -> Result<Vec<u32>> {
        let sides: Vec<_> = caches
            .iter()
            .map(|c| c.sides(Some(&key), |_, _| false))
            .collect();
        let sides: Vec<_> = sides.iter().collect();
        let each = caches.iter_mut().enumerate();
        each.map(|(rank, cache)| {
            let (table, views) = cache.of("history", rank, &sides)?;
            if let Some(hit) = table.hit(&views) {
                return Ok(*hit);
            }
            table.insert(key, 1, Arc::new(fresh));
            Ok(fresh)
        })
        .collect()
    }

    #[test]
    fn a_group_hits_what_it_made_itself() {
        let mut caches: [_; 4] = std::array::from_fn(|_| Groups::new(CacheLimits::default()));
        let [a, b, c, d] = &mut caches;
        assert_eq!(look_up(&mut [a, b], 5, 1).unwrap(), [1, 1]);
        assert_eq!(look_up(&mut [c, d], 5, 2).unwrap(), [2, 2]);
        assert_eq!(look_up(&mut [a, c], 5, 3).unwrap(), [3, 3]);
        assert_eq!(look_up(&mut [b, a], 5, 4).unwrap(), [4, 4], "ranks turned");
        assert_eq!(look_up(&mut [a, b], 5, 5).unwrap(), [1, 1]);
        assert_eq!(look_up(&mut [a, c], 5, 6).unwrap(), [3, 3]);
        // A new process.
        let fresh = &mut Groups::new(CacheLimits::default());
        assert_eq!(look_up(&mut [a, fresh], 5, 7).unwrap(), [7, 7]);
    }

    #[test]
    fn a_rank_that_lacks_the_groups_entries_is_told_and_so_are_the_others() {
        let mut caches: [_; 2] = std::array::from_fn(|_| Groups::new(CacheLimits::default()));
        let sides: Vec<_> = caches
            .iter()
            .map(|c| c.sides(Some(&5), |_, _| false))
            .collect();
        let sides: Vec<_> = sides.iter().collect();
        // A step that succeeded on rank 0 only.
        let (table, _) = caches[0].of("history", 0, &sides).unwrap();
        table.insert(5, 1, Arc::new(1));
        let [a, b] = &mut caches;
        let error = look_up(&mut [a, b], 5, 2).unwrap_err();
        assert!(
            matches!(error, Error::Disagreement { peer: 1, .. }),
            "{error}"
        );
    }

    #[test]
    fn sides_arrive_as_they_were_sent() {
        let mut cache = Groups::<u32, u32>::new(CacheLimits::default());
        for _ in 0..2 {
            let other = Groups::<u32, u32>::new(CacheLimits::default());
            let all = [
                &cache.sides(None, |_, _| false),
                &other.sides(None, |_, _| false),
            ];
            let (table, _) = cache.of("history", 0, &all).unwrap();
            table.insert(5, 1, Arc::new(1));
        }
        let sides = cache.sides(Some(&5), |_, _| false);
        let mut message = Writer::default();
        sides.write(&mut message);
        let message = message.finish();
        assert_eq!(Sides::read(&mut Reader::new(&message)), Ok(sides));
        for cut in 0..message.len() {
            assert!(Sides::read(&mut Reader::new(&message[..cut])).is_err());
        }
    }
}
