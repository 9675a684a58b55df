//! The scales of a kernel's operands of e4m3.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use warpweave_gemm::Scaling;
use warpweave_symm_mem::{DType, DevicePtr};

use super::KernelBuffer;
use crate::execute::Addresses;
use crate::plan::{BufferId, Effect, Region, Scales, ScalingName};

/// The scales of what a rank multiplies: f32, as [`Scaling`] says, by tensor or row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelScales {
    /// What has a scale.
    #[serde(with = "ScalingName")]
    pub scaling: Scaling,
    /// Local: those of A.
    pub a: BufferId,
    /// Local: those of B.
    pub b: BufferId,
}

impl KernelScales {
    /// What a kernel needs of their buffers, for `m` rows of A and `n` columns of B.
    pub(super) fn operands(&self, m: usize, n: usize) -> [KernelBuffer; 2] {
        let [of_a, of_b] = Scales::shapes(self.scaling, (m, n, 0));
        let buffer = |id, (rows, cols)| KernelBuffer::new(id, rows, cols).of(DType::F32);
        [buffer(self.a, of_a), buffer(self.b, of_b)]
    }

    /// What `rank` reads of them for `rows` of A and `n` columns of B.
    pub(super) fn reads(
        &self,
        rank: usize,
        rows: Range<usize>,
        n: usize,
    ) -> impl Iterator<Item = Effect> {
        let regions = self.regions(rank, rows, n);
        [regions.a, regions.b].into_iter().map(Effect::Read)
    }

    /// The same as the scales of a GEMM.
    pub(super) fn regions(&self, rank: usize, rows: Range<usize>, n: usize) -> Scales {
        let region = |buffer, rows| Region {
            rank,
            buffer,
            rows,
            cols: 0..1,
        };
        let [of_a, of_b] = match self.scaling {
            Scaling::Row => [rows, 0..n],
            _ => [0..1, 0..1],
        };
        Scales {
            scaling: self.scaling,
            a: region(self.a, of_a),
            b: region(self.b, of_b),
        }
    }

    /// Where those of A and of B are.
    pub(super) fn addresses(&self, at: &Addresses<'_>) -> [DevicePtr; 2] {
        [self.a, self.b].map(|id| at.own(id))
    }
}

/// What all ranks must have alike, as a part of [`Kernel::agreed`](super::Kernel::agreed).
pub(super) fn agreed(scales: Option<&KernelScales>) -> String {
    scales.map_or(String::new(), |scales| {
        format!(",{}", scales.scaling.suffix())
    })
}

/// The scaling of a GEMM, and where its scales are.
pub(super) fn scaling(scales: Option<&KernelScales>) -> Scaling {
    scales.map_or(Scaling::None, |scales| scales.scaling)
}
