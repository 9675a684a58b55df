//! An address for each rank, by value.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use warpweave_symm_mem::DevicePtr;

/// An address for each rank of a world, by rank, as mapped here. Held by value, so that a launch allocates
/// nothing.
///
/// Reads as a slice. Made of a slice, an iterator or, for a world of one, an address; what is after the
/// first [`Peers::MOST`] is left out, and GEMMs of more ranks are refused when they are prepared.
#[derive(Clone, Copy)]
pub struct Peers {
    count: usize,
    addresses: [DevicePtr; Peers::MOST],
}

impl Peers {
    /// Most ranks.
    pub const MOST: usize = 16;

    /// Of no rank.
    pub const NONE: Self = Self {
        count: 0,
        addresses: [DevicePtr::NULL; Peers::MOST],
    };

    /// Each address plus `bytes`.
    #[must_use]
    pub fn offset(mut self, bytes: usize) -> Self {
        for address in &mut self.addresses[..self.count] {
            *address = address.add(bytes);
        }
        self
    }
}

impl Default for Peers {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromIterator<DevicePtr> for Peers {
    fn from_iter<I: IntoIterator<Item = DevicePtr>>(all: I) -> Self {
        let mut peers = Self::NONE;
        for (place, address) in peers.addresses.iter_mut().zip(all) {
            *place = address;
            peers.count += 1;
        }
        peers
    }
}

impl From<&[DevicePtr]> for Peers {
    fn from(all: &[DevicePtr]) -> Self {
        all.iter().copied().collect()
    }
}

impl From<Vec<DevicePtr>> for Peers {
    fn from(all: Vec<DevicePtr>) -> Self {
        all.into_iter().collect()
    }
}

impl From<DevicePtr> for Peers {
    fn from(one: DevicePtr) -> Self {
        std::iter::once(one).collect()
    }
}

impl Deref for Peers {
    type Target = [DevicePtr];

    fn deref(&self) -> &[DevicePtr] {
        &self.addresses[..self.count]
    }
}

impl PartialEq for Peers {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Peers {}

impl Hash for Peers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_those_that_were_given() {
        let given = [DevicePtr(16), DevicePtr(32)];
        let peers = Peers::from(&given[..]);
        assert_eq!(
            (&*peers, &*peers.offset(8)),
            (&given[..], &[DevicePtr(24), DevicePtr(40)][..])
        );
        assert_ne!(peers, peers.offset(1));
        assert_eq!(peers, given.into_iter().collect());
        assert_eq!(&*Peers::from(DevicePtr(16)), &given[..1]);
        let too_many = (0..40).map(DevicePtr).collect::<Peers>();
        assert_eq!(too_many.len(), Peers::MOST);
    }
}
