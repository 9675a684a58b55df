//! A GEMM overlapped with an independent all-gather: C\[M,N\] = A\[M,K\] · B\[K,N\], and Y is the X of all
//! ranks.
//!
//! Every plan has the buffers `a`, `b`, `c`, `x` and `y`. The plans differ in how much of the gather the GEMM
//! hides.

mod buffers;
pub mod copy_engine;
pub mod overlapped;
pub mod sequence;

use super::{Algorithm, Parameter, Values};
use crate::plan::Transport;

pub(super) const ALGORITHMS: &[Algorithm] = &[
    sequence::ALGORITHM,
    overlapped::ALGORITHM,
    copy_engine::ALGORITHM,
];

/// Whose collective it is.
const COLLECTIVE: Parameter = Parameter {
    key: "transport",
    summary: "NCCL, or collectives over symmetric memory",
    values: Values::Choices(&["nccl", "symmetric"]),
};

fn transport(flag: &str) -> Transport {
    match flag {
        "symmetric" => Transport::SymmetricMemory,
        _ => Transport::Nccl,
    }
}
