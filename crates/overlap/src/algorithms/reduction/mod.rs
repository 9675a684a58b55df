//! Algorithms in which a GEMM is followed by a reduction over the ranks.
//!
//! K is sharded, so each rank has a *partial GEMM* of all of C, and C is their sum. A rank without a part of
//! K, because there are more ranks than columns of A, has an empty GEMM, which is zero.

mod by_owner;
mod fused;
mod multimem;
mod one_shot;
mod partial;

use super::{Options, Parameter, Values};
use crate::error::PlanError;
use crate::plan::{Plan, Problem, Transport};
use fused::ROWS_OF_A_GROUP;
use multimem::multimem;
use one_shot::{is_one_shot, one_shot};

pub(super) use by_owner::{Reach, by_owner};
pub(super) use fused::{ROWS, fused};
pub(super) use multimem::{REDUCE, is_multimem};
pub(super) use one_shot::SHOTS;
pub(super) use partial::{PartialGemm, Stored};

/// What moves the bytes of a collective, for [`transport`].
pub(super) const TRANSPORT: Parameter = Parameter {
    key: "transport",
    summary: "what the collective is",
    values: Values::Choices(&["nccl", "symmetric"]),
};

/// In how many pieces each rank's rows are multiplied, sent and reduced.
pub(super) const CHUNKS: Parameter = Parameter {
    key: "chunks",
    summary: "chunks of each rank's rows",
    values: Values::Counts(&[2, 1, 4, 8]),
};

/// The streams of the GEMMs, for [`by_owner()`].
pub(super) const STREAMS: Parameter = Parameter {
    key: "streams",
    summary: "streams of GEMMs: with two, one begins in the tail of another",
    values: Values::Counts(&[1, 2]),
};

/// The transport that the value of parameter `key` names.
pub(super) fn transport(options: &Options, key: &str) -> Transport {
    match options.choice(key) {
        "symmetric" => Transport::SymmetricMemory,
        _ => Transport::Nccl,
    }
}

/// The plan in which everyone gets the result, in one launch: in one shot, by the switch or by the owners.
pub(super) fn in_shots(
    name: &str,
    options: &Options,
    place: (usize, usize),
    problem: &Problem,
    stored: Stored,
) -> Result<Plan, PlanError> {
    if is_one_shot(options) {
        return one_shot(name, place, problem, stored);
    }
    match is_multimem(options) {
        true => multimem(name, options, place, problem, stored),
        false => fused(name, options, place, problem, stored, Reach::Everyone),
    }
}

/// Whether another configuration is the same plan: in one shot there are no groups, and no owners.
pub(super) fn is_redundant(options: &Options) -> bool {
    let is_default =
        options.count(ROWS.key) == ROWS_OF_A_GROUP && options.choice(REDUCE.key) == "pull";
    is_one_shot(options) && !is_default
}
