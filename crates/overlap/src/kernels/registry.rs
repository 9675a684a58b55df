//! The list of all kernels.

use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::{
    AllGatherMatmul, Kernel, MultimemGather, MultimemGatherMatmul, NaiveRemoteRead, OneShotMatmul,
    Outside, ReducingMatmul, ThreadloadGather, ThreadloadGatherMatmul, WaitingMatmul,
};
use crate::plan::{BufferId, Effect};

/// One line a kernel: its type, which is also its name in a plan's JSON.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A kernel of a plan. It dereferences to its [`Kernel`].
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum AnyKernel {
            $($(#[$doc])* $name($name),)*
            /// A kernel of a project outside.
            Outside(Outside),
        }

        impl Deref for AnyKernel {
            type Target = dyn Kernel;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(AnyKernel::$name(kernel) => kernel,)*
                    AnyKernel::Outside(kernel) => kernel.kernel(),
                }
            }
        }

        $(impl From<$name> for AnyKernel {
            fn from(kernel: $name) -> Self {
                AnyKernel::$name(kernel)
            }
        })*
    };
}

kernels! {
    /// Computes C, each element from its row of A on the rank that holds it.
    NaiveRemoteRead,
    /// Gathers A by loads and computes C.
    ThreadloadGatherMatmul,
    /// Gathers A by multicast stores and computes C.
    MultimemGatherMatmul,
    /// Gathers A by loads.
    ThreadloadGather,
    /// Gathers A by multicast stores.
    MultimemGather,
    /// The GEMM that waits per chunk.
    WaitingMatmul,
    /// The all-gather GEMM.
    AllGatherMatmul,
    /// GEMM + reduction, by the owners of rows.
    ReducingMatmul,
    /// GEMM + all-reduce in one shot.
    OneShotMatmul,
}

impl AnyKernel {
    /// A kernel of a project outside, and [registers](super::register) its type under its name.
    ///
    /// # Errors
    /// Parameters that cannot be written as JSON.
    pub fn outside<K>(kernel: K) -> Result<Self, serde_json::Error>
    where
        K: Kernel + Serialize + for<'de> Deserialize<'de> + 'static,
    {
        Ok(AnyKernel::Outside(Outside::new(kernel)?))
    }

    /// The buffers it is launched with, in the order of [`Kernel::operands`].
    pub fn buffers(&self) -> Vec<BufferId> {
        self.operands(0, 1).iter().map(|buffer| buffer.id).collect()
    }

    /// Whether calls use two copies of a buffer in turn.
    pub(crate) fn alternates(&self, id: BufferId) -> bool {
        let operands = self.operands(0, 1);
        operands
            .iter()
            .any(|buffer| buffer.alternates && buffer.id == id)
    }

    /// What the kernel does on `rank` of `world`: see [`Kernel::lanes`]. No effect touches nothing, and no lane is empty.
    pub fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        without_void(self.deref().lanes(rank, world))
    }

    /// As [`AnyKernel::lanes`], of [`Kernel::lanes_by_piece`].
    pub fn lanes_by_piece(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        without_void(self.deref().lanes_by_piece(rank, world))
    }
}

fn without_void(mut lanes: Vec<Vec<Effect>>) -> Vec<Vec<Effect>> {
    for effects in &mut lanes {
        effects.retain(|e| !e.is_void());
    }
    // Where lanes come after others, each has something to wait for: none is void, and their numbers hold.
    lanes.retain(|effects| !effects.is_empty());
    lanes
}

impl Effect {
    /// Whether it touches no element and no flag: empty shards and a world of one leave such effects.
    fn is_void(&self) -> bool {
        match self {
            Effect::Read(region) | Effect::Write(region) => region.is_empty(),
            Effect::WriteMulticast(region) => region.on(0).is_empty(),
            Effect::Signal { to, .. } => to.is_empty(),
            Effect::Wait { from, .. } => from.is_empty(),
            Effect::After(lanes) => lanes.is_empty(),
        }
    }
}
