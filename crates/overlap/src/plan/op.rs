//! Operations, and the effects of a kernel's lanes.

use super::{EventId, MulticastRegion, Placement, Problem, Region, SlotId, StreamId, shard};
use crate::kernels::AnyKernel;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use warpweave_gemm::{Activation, GemmProblem, Layout, Provider, SCALE_BLOCK, Scaling};
use warpweave_symm_mem::DType;

/// One operation on one stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// The stream it is enqueued on.
    pub stream: StreamId,
    /// What it does.
    pub kind: OpKind,
}

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum OpKind {
    /// Copies a box to a box of the same shape, by what [`Plan::copies_by`](super::Plan::copies_by) says. A
    /// source on a peer makes it a get, a destination on a peer a put. A reduction of one box is a copy by
    /// the SMs.
    Copy {
        /// What is read.
        src: Region,
        /// What is written.
        dst: Region,
    },
    /// Copies one of this rank's boxes to the same box of every rank of its node, this one included, by the
    /// multicast address.
    MulticastCopy {
        /// What is read.
        src: Region,
        /// What is written, on every rank of the node.
        dst: MulticastRegion,
    },
    /// Signals each rank of `to` once.
    Signal {
        /// The row of the pad.
        slot: SlotId,
        /// Destination ranks.
        to: Vec<usize>,
    },
    /// Waits for a signal of each rank of `from`.
    Wait {
        /// The row of the pad.
        slot: SlotId,
        /// Source ranks.
        from: Vec<usize>,
        /// How many calls' signals may be outstanding: 0 for this call's signal, 1 for a credit.
        lag: u32,
    },
    /// Records an event.
    Record {
        /// The event.
        event: EventId,
    },
    /// Waits for the latest record of an event that precedes this operation in the list.
    WaitEvent {
        /// The event.
        event: EventId,
    },
    /// A collective of some ranks, or of all.
    Collective {
        /// What it does.
        collective: Collective,
        /// What this rank gives.
        src: Region,
        /// What this rank gets.
        dst: Region,
        /// Who takes part, in the order of their shards; this rank is one of them.
        ranks: Vec<usize>,
        /// What moves the bytes.
        transport: Transport,
        /// What follows an all-reduce on each rank, if anything does.
        then: Option<AddRmsNorm>,
    },
    /// A GEMM, c = a · b or c = a · b + bias, accumulated in f32, or what an activation makes of it.
    Gemm {
        /// m × k.
        a: Region,
        /// k × n, or n × k if it is stored transposed.
        b: Region,
        /// m × n, or as many columns as the activation leaves.
        c: Region,
        /// 1 × n, added to every row of the GEMM before it is rounded.
        bias: Option<Region>,
        /// Whether `b` is stored transposed, as the weights of linear layers are.
        b_transposed: bool,
        /// The scales of operands of e4m3, and of no others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scales: Option<Scales>,
        /// What `c` is of the sums.
        #[serde(default, skip_serializing_if = "is_none", with = "ActivationName")]
        activation: Activation,
        /// The same GEMM for further rows of `a` and `c`, in one launch.
        batch: Batch,
        /// Whose kernel. On the host backend the host's own GEMM stands in for each.
        #[serde(with = "provider_name")]
        provider: Provider,
    },
    /// Adds boxes of one shape in the order of the list, in f32, and rounds once. `dst` may be one of them.
    #[serde(alias = "Sum")]
    Reduce {
        /// The partials; on a peer they are loaded by the SMs.
        srcs: Vec<Region>,
        /// The result, this rank's own.
        dst: Region,
    },
    /// One kernel that declares what it does.
    Kernel {
        /// Which kernel, with its buffers and slots.
        kernel: AnyKernel,
        /// What it does, lane by lane; see [`AnyKernel::lanes`].
        lanes: Vec<Vec<Effect>>,
    },
}

impl OpKind {
    /// The steps that *check* and *simulate* make of it.
    pub(crate) fn steps(&self) -> usize {
        match self {
            OpKind::Collective { .. } => 2,
            OpKind::Kernel { lanes, .. } => 2 + lanes.iter().map(Vec::len).sum::<usize>(),
            _ => 1,
        }
    }

    /// The boxes that the operation itself reads. A kernel declares its own in its lanes.
    pub fn reads(&self) -> Vec<Region> {
        match self {
            OpKind::Copy { src, .. } | OpKind::MulticastCopy { src, .. } => vec![src.clone()],
            OpKind::Collective { src, then, .. } => {
                let norm = then.iter().flat_map(|norm| [&norm.residual, &norm.weight]);
                std::iter::once(src).chain(norm).cloned().collect()
            }
            OpKind::Gemm {
                a,
                b,
                bias,
                scales,
                batch,
                ..
            } => {
                let mut regions = batch.of_a(a);
                regions.push(b.clone());
                regions.extend(bias.clone());
                let scales = scales.iter().flat_map(|scales| [&scales.a, &scales.b]);
                regions.extend(scales.cloned());
                regions
            }
            OpKind::Reduce { srcs, .. } => srcs.clone(),
            _ => Vec::new(),
        }
    }

    /// The boxes that the operation itself writes, on any of the ranks of `node`, that of the plan's rank, if
    /// it writes by the multicast address.
    pub fn writes(&self, node: Range<usize>) -> Vec<Region> {
        match self {
            OpKind::Copy { dst, .. } | OpKind::Reduce { dst, .. } => vec![dst.clone()],
            OpKind::Collective { dst, then, .. } => {
                let norm = then.iter().flat_map(AddRmsNorm::results);
                std::iter::once(dst).chain(norm).cloned().collect()
            }
            OpKind::MulticastCopy { dst, .. } => node.map(|rank| dst.on(rank)).collect(),
            OpKind::Gemm { c, batch, .. } => batch.of_c(c),
            _ => Vec::new(),
        }
    }

    /// The box in which the operation may leave anything, besides those that it [writes](OpKind::writes): the
    /// source of an all-reduce whose result is normalized elsewhere.
    pub fn discards(&self) -> Option<&Region> {
        match self {
            OpKind::Collective {
                src,
                dst,
                then: Some(_),
                ..
            } if src != dst => Some(src),
            _ => None,
        }
    }
}

/// Residual addition and RMSNorm of x, which an all-reduce gives: r = x + residual and y = r / √(mean of r² +
/// ε) · weight, row by row, with the roundings that [`warpweave_comm::collective::norm`] gives. `dst` of the
/// collective gets y. Over symmetric memory one launch does all of it while messages are small.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddRmsNorm {
    /// As large as `dst`, with the same elements on all ranks.
    pub residual: Region,
    /// One row, with the same elements on all ranks.
    pub weight: Region,
    /// Gets r; may be `residual`.
    pub residual_out: Region,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Gets y in e4m3, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantized: Option<Quantized>,
}

/// Normalized rows in e4m3: an element is its e4m3 times the scale of its row. A GEMM with
/// [`Scaling::Row`] takes them as its A, with these scales.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantized {
    /// As large as `dst`, of e4m3.
    pub values: Region,
    /// A column of f32 in a buffer of one column: the largest magnitude of each row over 448.
    pub scales: Region,
}

impl AddRmsNorm {
    /// What it writes besides `dst` of the collective.
    pub(crate) fn results(&self) -> impl Iterator<Item = &Region> {
        let quantized = self.quantized.iter();
        std::iter::once(&self.residual_out).chain(quantized.flat_map(|to| [&to.values, &to.scales]))
    }
}

/// A NaN, which is not equal to itself, is a fault of the plan.
impl Eq for AddRmsNorm {}

/// What a collective does. Shards are rows, as even as can be, by [`shard`](super::shard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Collective {
    /// Each rank gives its shard of `dst` and gets all of it. Where shards differ by a row it is a group of
    /// broadcasts.
    AllGather,
    /// Each rank gives all of `src` and gets the sum of its shard.
    ReduceScatter,
    /// Each rank gives all of `src` and gets the sum of all of it.
    AllReduce,
}

impl Collective {
    /// Rows that the rank at place `index` of `ranks` gives and gets, of `rows` in all.
    pub fn rows(self, rows: usize, index: usize, ranks: usize) -> (usize, usize) {
        let mine = shard(rows, index, ranks).len();
        match self {
            Collective::AllGather => (mine, rows),
            Collective::ReduceScatter => (rows, mine),
            Collective::AllReduce => (rows, rows),
        }
    }

    /// Rows of all shards, from what one rank gives and gets.
    pub fn all_rows(self, src: &Region, dst: &Region) -> usize {
        match self {
            Collective::AllGather => dst.rows.len(),
            Collective::ReduceScatter | Collective::AllReduce => src.rows.len(),
        }
    }
}

/// The scales of a GEMM of e4m3 operands: f32, in buffers of their own that they fill, as [`Scaling`] says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scales {
    /// What has a scale.
    #[serde(with = "ScalingName")]
    pub scaling: Scaling,
    /// Those of A: a single one, or a row for each of its rows, of one or of one for each 128 of K. The
    /// latter as [`Scales::layout_for`] says.
    pub a: Region,
    /// Those of B: a single one, a column of n, or a row for each 128 columns.
    pub b: Region,
}

impl Scales {
    /// Rows and columns of the scales of A and of B of a GEMM of m × n × k, row by row.
    pub fn shapes(scaling: Scaling, (m, n, k): (usize, usize, usize)) -> [(usize, usize); 2] {
        match scaling {
            Scaling::None => [(0, 0); 2],
            Scaling::Tensor => [(1, 1); 2],
            Scaling::Row => [(m, 1), (n, 1)],
            Scaling::Block => {
                let stride = GemmProblem::e4m3(m, n, k, scaling, DType::F32).scale_stride();
                [
                    (m, k.div_ceil(SCALE_BLOCK)),
                    (n.div_ceil(SCALE_BLOCK), stride),
                ]
            }
        }
    }

    /// How the scales of A are stored for a GEMM of this provider: row by row, so that they travel with the
    /// rows of A, but for those by block that cuBLASLt takes.
    pub fn layout_for(scaling: Scaling, provider: Provider) -> Layout {
        match (scaling, provider) {
            (Scaling::Block, Provider::CublasLt) => Layout::Transposed,
            _ => Layout::RowMajor,
        }
    }

    /// Who multiplies rows that have their scales with them, where `provider` multiplies others.
    pub(crate) fn provider_of_rows(scaling: Scaling, provider: Provider) -> Provider {
        match Self::layout_for(scaling, provider) {
            Layout::Transposed => Provider::Sm90,
            Layout::RowMajor => provider,
        }
    }

    /// Where K is sharded: the columns that the scales of `rank` are in matrices that hold those of all ranks
    /// side by side.
    pub fn columns_of(rank: usize, world: usize, problem: &Problem) -> [Range<usize>; 2] {
        let Problem {
            m, n, k, scaling, ..
        } = *problem;
        let widths = |rank| {
            let depth = shard(k, rank, world).len();
            Self::shapes(scaling, (m, n, depth)).map(|(_, cols)| cols)
        };
        let mut columns = [0..0, 0..0];
        for rank in 0..=rank {
            for (of, width) in columns.iter_mut().zip(widths(rank)) {
                *of = of.end..of.end + width;
            }
        }
        columns
    }
}

/// GEMMs of one shape in one launch: the i-th has its rows of `a` and of `c` i strides below those of the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Batch {
    /// Number of GEMMs, 1 for a plain one.
    pub count: usize,
    /// Rows of `a` from one to the next.
    pub a_stride: usize,
    /// Rows of `c` from one to the next.
    pub c_stride: usize,
}

impl Batch {
    /// One GEMM.
    pub const ONE: Batch = Batch {
        count: 1,
        a_stride: 0,
        c_stride: 0,
    };

    /// What the GEMMs read of A, where the first reads `a`.
    pub fn of_a(self, a: &Region) -> Vec<Region> {
        self.every(self.a_stride, a)
    }

    /// What the GEMMs write, where the first writes `c`.
    pub fn of_c(self, c: &Region) -> Vec<Region> {
        self.every(self.c_stride, c)
    }

    fn every(self, stride: usize, first: &Region) -> Vec<Region> {
        (0..self.count)
            .map(|i| {
                let down = |row: usize| row.saturating_add(i.saturating_mul(stride));
                Region {
                    rows: down(first.rows.start)..down(first.rows.end),
                    ..first.clone()
                }
            })
            .collect()
    }
}

/// One step of a kernel's lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Effect {
    /// Reads a box, of this rank or of a peer.
    Read(Region),
    /// Writes a box, of this rank or of a peer.
    Write(Region),
    /// Writes the same box of every rank of the node by the multicast address.
    WriteMulticast(MulticastRegion),
    /// Signals each rank of `to` once, after the lane's steps so far.
    Signal {
        /// The row of the pad.
        slot: SlotId,
        /// Destination ranks.
        to: Vec<usize>,
    },
    /// Waits for a signal of each rank of `from`, before the lane's next steps.
    Wait {
        /// The row of the pad.
        slot: SlotId,
        /// Source ranks.
        from: Vec<usize>,
        /// As in [`OpKind::Wait`].
        lag: u32,
    },
    /// Comes after all steps of these lanes of the same kernel, which precede this one: what a kernel
    /// counts within its rank.
    After(Vec<usize>),
}

/// What moves bytes from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Transport {
    /// A collective of NCCL; on the host backend the host's own collective.
    Nccl,
    /// A collective over symmetric memory, in the variant that `warpweave_comm` selects for its size.
    SymmetricMemory,
    /// A copy engine, driven by the stream.
    CopyEngine,
    /// Loads and stores of the SMs.
    ThreadLoads,
    /// `multimem` stores of the SMs.
    Multimem,
    /// A copy whose destination is a multicast address.
    MulticastCopy,
}

/// How a plan stores a [`Scaling`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Scaling", rename_all = "lowercase")]
pub(crate) enum ScalingName {
    None,
    Tensor,
    Row,
    Block,
}

/// How a plan stores an [`Activation`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Activation", rename_all = "lowercase")]
pub(crate) enum ActivationName {
    None,
    SwiGlu,
}

/// Whether nothing follows the sums.
pub(crate) fn is_none(activation: &Activation) -> bool {
    *activation == Activation::None
}

/// How a plan stores a [`Provider`]: by its variant's name. The host's own GEMM has none, because the host
/// backend takes it in place of each of the others.
mod provider_name {
    use super::Provider;
    use serde::de::{Error as _, Unexpected};
    use serde::{Deserialize, Deserializer, Serializer};

    const NAMES: [(Provider, &str); 3] = [
        (Provider::CublasLt, "CublasLt"),
        (Provider::Cutlass, "Cutlass"),
        (Provider::Sm90, "Sm90"),
    ];

    pub fn serialize<S: Serializer>(provider: &Provider, to: S) -> Result<S::Ok, S::Error> {
        match NAMES.iter().find(|(known, _)| known == provider) {
            Some((_, name)) => to.serialize_str(name),
            None => Err(serde::ser::Error::custom(format!(
                "a plan cannot name the provider {provider}"
            ))),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Provider, D::Error> {
        let name = String::deserialize(from)?;
        let found = NAMES.iter().find(|(_, known)| *known == name);
        found.map(|(provider, _)| *provider).ok_or_else(|| {
            D::Error::invalid_value(Unexpected::Str(&name), &"CublasLt, Cutlass or Sm90")
        })
    }
}

impl Transport {
    /// The memory of the large operand of a collective. Over symmetric memory it is in the reach of peers:
    /// what is local on both sides travels by packets, which end at small messages.
    pub fn placement(self) -> Placement {
        match self {
            Transport::SymmetricMemory => Placement::Symmetric,
            _ => Placement::Local,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::Nccl => "nccl",
            Transport::SymmetricMemory => "symmetric-memory",
            Transport::CopyEngine => "copy-engine",
            Transport::ThreadLoads => "thread-loads",
            Transport::Multimem => "multimem",
            Transport::MulticastCopy => "multicast-copy",
        })
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Collective::AllGather => "all-gather",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllReduce => "all-reduce",
        })
    }
}

/// How a weight is stored.
pub(crate) fn layout_of(transposed: bool) -> Layout {
    match transposed {
        false => Layout::RowMajor,
        true => Layout::Transposed,
    }
}
