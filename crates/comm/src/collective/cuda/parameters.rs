//! What a kernel is given: the structures of `launch.rs` with tables of [`DEVICE_WORLD`] addresses, as device
//! code has them. `Collectives` are made of no more ranks on GPUs.

use std::array;

use crate::collective::launch::{
    Addresses, DEVICE_WORLD, Direct, Group, Multimem, Packets, PushReduce, ScatterAllGather, Tree,
    UnevenPackets,
};
use crate::collective::norm::launch::{ReducedNorm, RowNorm};

/// A parameter of a kernel.
pub(super) trait Parameter {
    /// Its layout in device code.
    type Device;

    /// The same for device code.
    fn on_device(&self) -> Self::Device;
}

impl Parameter for Addresses {
    type Device = Addresses<DEVICE_WORLD>;

    fn on_device(&self) -> Self::Device {
        Addresses(array::from_fn(|rank| self.0[rank]))
    }
}

impl Parameter for RowNorm {
    type Device = Self;

    fn on_device(&self) -> Self {
        *self
    }
}

/// The listed fields are converted, the others taken as they are.
macro_rules! parameters {
    ($($name:ident { $($converted:ident),+; $($field:ident),* })+) => {$(
        impl Parameter for $name {
            type Device = $name<DEVICE_WORLD>;

            fn on_device(&self) -> Self::Device {
                $name {
                    $($converted: self.$converted.on_device(),)+
                    $($field: self.$field,)*
                }
            }
        }
    )+};
}

parameters! {
    Group { flags; pad, epochs, signature, reserved }
    Packets { group, areas; input, output, bytes, total, capacity, root, aligned, reserved }
    Direct { group, from, to; bytes, enter, leave }
    Tree { packets; parent, children }
    Multimem { direct; from, to }
    PushReduce { group, staging, to; received, input, chunk, total, slice, slices, reserved }
    ScatterAllGather { group, output; input, chunk, total, slice, slices, root }
    ReducedNorm { packets; norm, chunk, reserved }
}

impl Parameter for UnevenPackets {
    type Device = UnevenPackets<DEVICE_WORLD>;

    fn on_device(&self) -> Self::Device {
        UnevenPackets {
            packets: self.packets.on_device(),
            from: self.from.on_device(),
            to: self.to.on_device(),
            sent: array::from_fn(|rank| self.sent[rank]),
            received: array::from_fn(|rank| self.received[rank]),
        }
    }
}

#[cfg(test)]
mod tests {
    use warpweave_symm_mem::DevicePtr;

    use super::*;

    #[test]
    fn device_code_gets_the_addresses_of_its_ranks_in_their_places() {
        let all = Addresses::by_rank(DEVICE_WORLD, |rank| DevicePtr(0x1000 + rank as u64));
        let places: Vec<_> = all.on_device().0.iter().map(|address| address.0).collect();
        assert_eq!(places, (0x1000..0x1008).collect::<Vec<_>>());
    }
}
