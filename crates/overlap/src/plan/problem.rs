//! The problem that the algorithms of this crate solve, and how its rows are sharded.

use super::op::{ActivationName, ScalingName, is_none};
use crate::error::PlanError;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use warpweave_gemm::{Activation, Scaling};
use warpweave_symm_mem::DType;

/// An all-gather and a GEMM: C\[M,N\] = A\[M,K\] · B\[K,N\].
///
/// The rows of A are sharded over the ranks by [`shard`]; B is each rank's own, and so is C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Problem {
    /// Rows of A and C, over all ranks.
    pub m: usize,
    /// Columns of B, and of C without an activation, on each rank.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Element type of A and B, and of C but for e4m3; sums are kept in f32.
    pub dtype: DType,
    /// Whether an algorithm that does not need multicast may use it. Off unless the machine has it and the
    /// user asked.
    pub multicast: bool,
    /// Whether the bits of a row of C must not depend on M or on the row's place: the GEMMs of plans then
    /// have a provider whose kernels see to that. Which configurations do,
    /// [`Configuration::is_batch_invariant`](crate::Configuration::is_batch_invariant) says.
    #[serde(default)]
    pub batch_invariant: bool,
    /// What has scales, if A and B are of e4m3; C is bf16 then.
    #[serde(default, skip_serializing_if = "is_unscaled", with = "ScalingName")]
    pub scaling: Scaling,
    /// What C is of the sums: of a column-parallel layer alone.
    #[serde(default, skip_serializing_if = "is_none", with = "ActivationName")]
    pub activation: Activation,
}

fn is_unscaled(scaling: &Scaling) -> bool {
    *scaling == Scaling::None
}

impl Problem {
    /// A problem of these sizes, without multicast.
    pub fn new(m: usize, n: usize, k: usize, dtype: DType) -> Self {
        Problem {
            m,
            n,
            k,
            dtype,
            multicast: false,
            batch_invariant: false,
            scaling: Scaling::None,
            activation: Activation::None,
        }
    }

    /// The same problem with scales of A and B, which are of e4m3.
    pub fn with_scaling(self, scaling: Scaling) -> Self {
        Problem { scaling, ..self }
    }

    /// The same problem with an activation: C has [`Problem::c_columns`].
    pub fn with_activation(self, activation: Activation) -> Self {
        Problem { activation, ..self }
    }

    /// Columns of C.
    pub fn c_columns(&self) -> usize {
        self.activation.columns(self.n)
    }

    /// Element type of C.
    pub fn output(&self) -> DType {
        output_of(self.dtype)
    }

    /// Whether B is stored N × K: where the operation has it so, and of e4m3, which tensor cores take along
    /// K alone.
    pub(crate) fn stores_b_transposed(&self, by_operation: bool) -> bool {
        by_operation || self.scaling != Scaling::None
    }

    /// The same problem, where the bits of a row may depend on M, or not.
    pub fn with_batch_invariance(self, batch_invariant: bool) -> Self {
        Problem {
            batch_invariant,
            ..self
        }
    }

    /// The same problem on a machine on which multicast may be used, or not.
    pub fn with_multicast(self, multicast: bool) -> Self {
        Problem { multicast, ..self }
    }

    /// The rows of A that `rank` holds.
    pub fn shard(&self, rank: usize, world: usize) -> Range<usize> {
        shard(self.m, rank, world)
    }

    /// Rows of the largest shard: the rows that a symmetric buffer of one shard has on every rank.
    pub fn max_shard(&self, world: usize) -> usize {
        self.m.div_ceil(world.max(1))
    }

    /// The largest M, N and K: kernels count rows and columns in 31 bits.
    pub const MOST_SIZE: usize = i32::MAX as usize;

    /// The most ranks of a plan.
    pub const MOST_RANKS: usize = 4096;

    /// Checks that a plan of this problem can exist for `rank` of `world`.
    ///
    /// # Errors
    /// A size is zero or more than [`MOST_SIZE`](Problem::MOST_SIZE), N is not whole groups of gate and up,
    /// `rank` is not below `world`, or `world` is more than [`MOST_RANKS`](Problem::MOST_RANKS).
    pub fn validate(&self, rank: usize, world: usize) -> Result<(), PlanError> {
        if rank >= world {
            return Err(PlanError::RankOutsideWorld { rank, world });
        }
        let at_most = |size: &'static str, value: usize, most: usize| match value > most {
            true => Err(PlanError::TooLarge { size, value, most }),
            false => Ok(()),
        };
        for (size, value) in [("M", self.m), ("N", self.n), ("K", self.k)] {
            if value == 0 {
                return Err(PlanError::EmptyProblem { size });
            }
            at_most(size, value, Self::MOST_SIZE)?;
        }
        let group = self.activation.group();
        if !self.n.is_multiple_of(group) {
            return Err(PlanError::PartOfAGate { n: self.n, group });
        }
        at_most("the number of ranks", world, Self::MOST_RANKS)
    }
}

/// Element type of C, of A and B of type `dtype`.
pub(crate) fn output_of(dtype: DType) -> DType {
    match dtype {
        DType::E4m3 => DType::Bf16,
        dtype => dtype,
    }
}

/// The rows of `total` that belong to `rank`: as even as can be, the first `total % world` ranks have one
/// more.
///
/// A rank that is not below `world` has none.
pub fn shard(total: usize, rank: usize, world: usize) -> Range<usize> {
    if rank >= world {
        return total..total;
    }
    let (each, extra) = (total / world, total % world);
    let start = |rank: usize| rank * each + rank.min(extra);
    start(rank)..start(rank + 1)
}

/// Rows in `count` chunks as even as can be, without those that would be empty.
pub fn chunks(rows: Range<usize>, count: usize) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = rows;
    // As even as can be, those beyond the number of rows are the empty ones.
    let count = count.min(end.saturating_sub(start));
    (0..count)
        .map(move |chunk| shard(end - start, chunk, count))
        .map(move |part| start + part.start..start + part.end)
        .filter(|part| !part.is_empty())
}

/// The `index`-th of these chunks; empty at the end of the rows if there are fewer.
pub(crate) fn chunk(rows: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    let Range { start, end } = *rows;
    let count = count.min(end.saturating_sub(start));
    if index >= count {
        return end..end;
    }
    let part = shard(end - start, index, count);
    start + part.start..start + part.end
}

#[cfg(test)]
mod tests {
    use super::{chunk, chunks, shard};

    #[test]
    fn chunks_leave_nothing_out() {
        assert_eq!(chunks(4..11, 3).collect::<Vec<_>>(), [4..7, 7..9, 9..11]);
        assert_eq!(chunks(4..6, 5).collect::<Vec<_>>(), [4..5, 5..6]);
        assert_eq!(chunks(4..4, 2).count(), 0);
        for (index, rows) in chunks(4..11, 3).enumerate() {
            assert_eq!(chunk(&(4..11), index, 3), rows);
        }
        assert_eq!(chunk(&(4..6), 2, 5), 6..6);
    }

    #[test]
    fn shards_are_even_and_in_order() {
        assert_eq!([0, 1, 2].map(|r| shard(8, r, 3)), [0..3, 3..6, 6..8]);
        assert_eq!([0, 1, 2].map(|r| shard(2, r, 3)), [0..1, 1..2, 2..2]);
        assert_eq!(shard(usize::MAX, 7, 8).end, usize::MAX);
    }

    #[test]
    fn who_is_not_there_has_no_rows() {
        assert!(shard(8, 0, 0).is_empty());
        assert!(shard(8, usize::MAX, 2).is_empty());
    }
}
