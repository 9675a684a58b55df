//! The kernels that a plan can launch, each one module.
//!
//! A [`Kernel`] says all that the readers of a plan ask: its shape, its buffers and slots, what it does
//! ([`Kernel::lanes`]), what it needs to be launched, what it costs, and how a backend launches it. *show*,
//! *check*, *simulate*, *execute* and *select* ask the trait. The one list of all kernels is [`AnyKernel`],
//! below.
//!
//! To add a kernel, write a module here and add its line to the list. A project outside implements [`Kernel`]
//! for a type of its own and puts it in a plan with [`AnyKernel::outside`]; `examples/rotate` does.

mod all_gather_matmul;
mod chunked_matmul;
mod matmul_reduce;
mod multimem_gather;
mod multimem_matmul_reduce;
mod naive_remote_read;
mod one_shot_matmul;
mod outside;
mod owner_lane;
mod scales;
mod threadload_gather;
pub mod twin;

use std::fmt;
use std::ops::{Deref, Range};

use serde::{Deserialize, Serialize};
use warpweave_symm_mem::{Cuda, DType, Host};

use crate::execute::{Binding, BoxedLaunch, Result};
use crate::plan::{BufferId, Effect, Placement, SlotId, Transport, output_of, shard};
use crate::simulate::{Cost, Costs};

pub use all_gather_matmul::{AllGatherMatmul, GatherProtocol, RowScales};
pub use chunked_matmul::ChunkedMatmul;
pub use matmul_reduce::MatmulReduce;
pub use multimem_gather::{MultimemGather, MultimemGatherMatmul};
pub use multimem_matmul_reduce::MultimemMatmulReduce;
pub use naive_remote_read::NaiveRemoteRead;
pub use one_shot_matmul::OneShotMatmul;
pub use outside::{Outside, register};
pub use scales::KernelScales;
pub use threadload_gather::{ThreadloadGather, ThreadloadGatherMatmul};

/// Sizes of a kernel's problem: C\[m,n\] = A\[m,k\] · B\[k,n\]. A is sharded by rows, or by columns where
/// partials are reduced over the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelShape {
    /// Rows over all ranks.
    pub m: usize,
    /// Columns of B; 0 for a gather.
    pub n: usize,
    /// Columns of A.
    pub k: usize,
    /// Element type of A and B.
    pub dtype: DType,
}

impl KernelShape {
    /// Element type of C.
    pub fn output(&self) -> DType {
        output_of(self.dtype)
    }

    /// Where the ranks own rows of C: those of each.
    fn shards(&self, world: usize) -> Vec<Range<usize>> {
        let rows = |rank| shard(self.m, rank, world);
        (0..world).map(rows).collect()
    }

    /// Where K is sharded: the columns of A that `rank` has.
    fn depth(&self, rank: usize, world: usize) -> usize {
        shard(self.k, rank, world).len()
    }
}

/// A buffer of a kernel, and what the kernel needs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelBuffer {
    /// Which one.
    pub id: BufferId,
    /// The fewest rows.
    pub rows: usize,
    /// Columns, exactly.
    pub cols: usize,
    /// Who must reach it; [`Placement::Local`] takes any.
    pub placement: Placement,
    /// Whether it alternates: calls alternate between two copies of exactly `rows` rows.
    pub alternates: bool,
    /// Element type, if it is not that of A and B.
    pub dtype: Option<DType>,
}

impl KernelBuffer {
    /// A buffer of any placement.
    pub fn new(id: BufferId, rows: usize, cols: usize) -> Self {
        Self {
            id,
            rows,
            cols,
            placement: Placement::Local,
            alternates: false,
            dtype: None,
        }
    }

    /// The same of this element type.
    #[must_use]
    pub fn of(self, dtype: DType) -> Self {
        Self {
            dtype: Some(dtype),
            ..self
        }
    }

    /// The same with a placement.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }

    /// The same, alternating.
    #[must_use]
    pub fn alternating(self) -> Self {
        Self {
            alternates: true,
            ..self
        }
    }
}

/// A kernel of a plan with the buffers and slots it is launched with.
///
/// # Contract
/// The lanes are what [`check`](crate::check::check()) proves, so the device code and its host twin must keep
/// to them: each access, signal and wait is in a lane, in its order. A kernel may keep more order than its
/// lanes have, never less. More order cannot add a race, but it can add a deadlock: a kernel that takes its
/// lanes one after the other sends all signals that open a lane before it waits for anything, and keeps the
/// waits that close a lane for the end.
pub trait Kernel: fmt::Debug + Send + Sync {
    /// The kernel's name, the same as that of its host twin.
    fn name(&self) -> &'static str;

    /// Sizes of the problem.
    fn shape(&self) -> KernelShape;

    /// How it moves data between ranks, or has it moved.
    fn transport(&self) -> Transport;

    /// What it needs of its buffers on `rank` of `world`, which is at least 1. Which buffers, and their
    /// order, do not depend on either. Sizes saturate: a plan from a file may say anything.
    fn operands(&self, rank: usize, world: usize) -> Vec<KernelBuffer>;

    /// The slots it signals or waits on, each once; at most 65536 of them.
    fn slots(&self) -> Vec<SlotId>;

    /// The same kernel with this rank's part of its operand `staged` in the local buffer `local`: it takes an
    /// input from there, or leaves an output there, and itself puts what peers read into `staged`. `None` if
    /// it cannot.
    fn copying(&self, _staged: BufferId, _local: BufferId) -> Option<AnyKernel> {
        None
    }

    /// What it does on `rank` of `world`: lanes that run concurrently, each a list of effects in order.
    /// Effects that touch nothing, on empty shards or without peers, may be among them: [`AnyKernel::lanes`]
    /// drops them.
    fn lanes(&self, rank: usize, world: usize) -> Vec<Vec<Effect>>;

    /// The lanes in full detail, which the host twin is held to. They differ from [`Kernel::lanes`] where
    /// - a kernel signals pieces of a region in slots of their own: to a plan these are one, with the slot of
    ///   the first;
    /// - it signals a peer before it has written to another one;
    /// - work on the first pieces overlaps with a signal for the last one, and only this rank sees that.
    ///
    /// Plans hold with these lanes too, as a test shows.
    fn lanes_by_piece(&self, rank: usize, world: usize) -> Vec<Vec<Effect>> {
        self.lanes(rank, world)
    }

    /// About how many effects the lanes have, without making them.
    fn about_effects(&self, world: usize) -> usize {
        world.saturating_mul(8)
    }

    /// The most ranks that it serves on GPUs.
    fn most_ranks(&self) -> usize {
        usize::MAX
    }

    /// The buffer of the GEMM's result, if it computes one.
    fn result(&self) -> Option<BufferId> {
        None
    }

    /// Whether its flags carry the number of its call. No signal of a plan may add to them.
    fn counts_calls(&self) -> bool {
        false
    }

    /// What all ranks must have chosen alike, besides the shape.
    fn agreed(&self) -> String {
        "nothing chosen".into()
    }

    /// Refuses parameters that contradict each other on `rank` of `world`, besides what [`Kernel::operands`]
    /// says.
    ///
    /// # Errors
    /// What is wrong.
    fn validate(&self, _rank: usize, _world: usize) -> Result<(), String> {
        Ok(())
    }

    /// What the first effect of `rest` costs, where [`Costs::effect`] does not know it. `rest` is what is
    /// left of a lane.
    fn cost(&self, _costs: &Costs<'_>, _rest: &[Effect]) -> Option<Cost> {
        None
    }

    /// The launch of the host twin.
    ///
    /// # Errors
    /// What the kernel needs and this plan or machine lacks.
    fn on_host(&self, with: &Binding<'_, Host>) -> Result<BoxedLaunch<Host>>;

    /// The launch of the device code.
    ///
    /// # Errors
    /// As [`Kernel::on_host`].
    fn on_cuda(&self, with: &Binding<'_, Cuda>) -> Result<BoxedLaunch<Cuda>>;
}

/// One line a kernel: its type, which is also its name in a plan's JSON.
macro_rules! kernels {
    ($($(#[$attribute:meta])* $name:ident,)*) => {
        /// A kernel of a plan. It dereferences to its [`Kernel`].
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[non_exhaustive]
        pub enum AnyKernel {
            $($(#[$attribute])* $name($name),)*
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

        impl AnyKernel {
            /// The names of the kernels that this crate knows, as in a plan's JSON.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];
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
    #[serde(alias = "WaitingMatmul")]
    ChunkedMatmul,
    /// The all-gather GEMM.
    AllGatherMatmul,
    /// GEMM + reduction, by the owners of rows.
    #[serde(alias = "ReducingMatmul")]
    MatmulReduce,
    /// GEMM + all-reduce in one shot.
    OneShotMatmul,
    /// GEMM + all-reduce by multimem.
    MultimemMatmulReduce,
}

impl AnyKernel {
    /// A kernel of a project outside, and [registers](register) its type under its name.
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

    /// Whether calls alternate between two copies of a buffer.
    pub(crate) fn alternates(&self, id: BufferId) -> bool {
        let operands = self.operands(0, 1);
        operands
            .iter()
            .any(|buffer| buffer.alternates && buffer.id == id)
    }

    /// What the kernel does on `rank` of `world`: see [`Kernel::lanes`]. No effect touches nothing, and no
    /// lane is empty.
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

/// Both launches of a kernel that is generic over the backend.
macro_rules! on_both_backends {
    () => {
        fn on_host(
            &self,
            with: &$crate::execute::Binding<'_, warpweave_symm_mem::Host>,
        ) -> $crate::execute::Result<$crate::execute::BoxedLaunch<warpweave_symm_mem::Host>> {
            self.launch(with)
        }

        fn on_cuda(
            &self,
            with: &$crate::execute::Binding<'_, warpweave_symm_mem::Cuda>,
        ) -> $crate::execute::Result<$crate::execute::BoxedLaunch<warpweave_symm_mem::Cuda>> {
            self.launch(with)
        }
    };
}
use on_both_backends;

/// No kernel has more slots.
const MOST_SLOTS: usize = 1 << 16;

/// `count` slots from `first` on, up to [`MOST_SLOTS`].
fn slots_from(first: SlotId, count: usize) -> impl Iterator<Item = SlotId> {
    (0..count.min(MOST_SLOTS)).map(move |index| SlotId(first.0.saturating_add(index)))
}
