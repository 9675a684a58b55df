//! The suite `decode`: the all-reduce that an engine makes after each layer, on memory of its own: alone,
//! before an RMSNorm, and 32 times with a GEMM before each.
//!
//! A message is a matrix of rows of 8192 elements, or one shorter row.

mod layers;

use std::rc::Rc;

use warpweave_comm::collective::{Call, Operation, Variant};
use warpweave_gemm::Gemm;
use warpweave_report::Bytes;
use warpweave_symm_mem::{BackendKind, DType};

use self::layers::{Layers, Local, Matrix, Norm, Reduce};
use super::candidate::{Row, Table};
use super::memory::{Arena, MemoryKind};
use super::method::{Method, wants};
use super::nccl::NcclBackend;
use super::operation::call_of;
use crate::candidate::Entrant;
use crate::error::Result;

/// Elements of a row.
const HIDDEN: usize = 8192;

/// Layers of a call with GEMMs.
const LAYERS: usize = 32;

const NCCL: Reduce = Reduce::By(Method::Nccl);
const NCCL_WINDOW: Reduce = Reduce::By(Method::NcclWindow);
const PACKETS: Reduce = Reduce::By(Method::Ours(Variant::Packets));
const SENTINEL: Reduce = Reduce::By(Method::Ours(Variant::Sentinel));
const STAGED: Reduce = Reduce::By(Method::Ours(Variant::Staged));

/// A row by its name: what reduces, and what normalizes.
type Work = (&'static str, Reduce, Norm);

/// The rows, by what they compute, NCCL's first, and whether that is after GEMMs.
const WORKS: [(&str, bool, &[Work]); 3] = [
    (
        "local all-reduce",
        false,
        &[
            ("nccl", NCCL, Norm::None),
            ("nccl-window", NCCL_WINDOW, Norm::None),
            ("ours", Reduce::Selected, Norm::None),
            ("packets", PACKETS, Norm::None),
            ("sentinel", SENTINEL, Norm::None),
            ("staged", STAGED, Norm::None),
        ],
    ),
    (
        "local all-reduce, RMSNorm",
        false,
        &[
            ("nccl", NCCL, Norm::Separate),
            ("nccl-window", NCCL_WINDOW, Norm::Separate),
            ("ours", Reduce::Selected, Norm::Separate),
            ("fused", Reduce::Selected, Norm::Fused),
            ("packets", PACKETS, Norm::Fused),
            ("sentinel", SENTINEL, Norm::Fused),
        ],
    ),
    (
        "32 GEMMs and local all-reduces",
        true,
        &[
            ("nccl", NCCL, Norm::None),
            ("nccl-window", NCCL_WINDOW, Norm::None),
            ("ours", Reduce::Selected, Norm::None),
            ("ours-norm", Reduce::Selected, Norm::Separate),
            ("fused", Reduce::Selected, Norm::Fused),
            ("gemm", Reduce::Nothing, Norm::None),
        ],
    ),
];

/// Every row by name with a sentence, the baseline first.
pub fn catalogue() -> Vec<(&'static str, &'static str)> {
    vec![
        ("nccl", "NCCL on plain buffers, the baseline"),
        ("nccl-window", "NCCL on its own memory in symmetric windows"),
        (
            "ours",
            "the all-reduce on local memory, in the variant that is selected",
        ),
        ("packets", "by packets, with the RMSNorm in the same launch"),
        ("sentinel", "in two shots, without flags in the data"),
        ("staged", "through a bounce buffer, in pieces"),
        (
            "fused",
            "all-reduce and RMSNorm in one launch, in the variant that is selected",
        ),
        ("ours-norm", "the same in two launches, among GEMMs"),
        ("gemm", "the GEMMs alone"),
    ]
}

/// From 4 KiB to 16 MiB.
pub fn sizes(kind: BackendKind) -> Vec<Bytes> {
    let logs: &[usize] = match kind {
        BackendKind::Cuda => &[12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24],
        BackendKind::Host => &[12, 16],
    };
    logs.iter().map(|&log| Bytes(1 << log)).collect()
}

/// The call of a size.
pub(super) fn call(dtype: DType, size: Bytes, world: usize) -> Call {
    call_of(
        Operation::AllReduce,
        dtype,
        Matrix::of(dtype, size).bytes(),
        world,
    )
}

/// What is computed around `call`. Collective.
pub(super) fn tables<'a, B: NcclBackend>(
    arena: &Rc<Arena<'a, B>>,
    gemm: &Rc<Gemm<B>>,
    call: Call,
) -> Result<Vec<Table<'a>>> {
    let libraries = &arena.libraries;
    let (session, bytes) = (libraries.session, call.count * call.dtype.size());
    let matrix = Matrix::of(call.dtype, Bytes(bytes));
    let prepared = session.if_all_can("GEMM of a layer", Ok(matrix.prepare(gemm)))?;
    let local = Local::new(session, (gemm, prepared), matrix);
    let local = Rc::new(session.on_all("memory of a layer", local)?);
    let mut tables = Vec::new();
    for (place, (table, has_gemms, works)) in WORKS.into_iter().enumerate() {
        let mut entrants = Vec::new();
        for &(name, reduce, norm) in works.iter().filter(|work| wants(&libraries.wanted, work.0)) {
            let layers = Layers {
                name,
                reduce,
                norm,
                has_gemms,
                local: local.clone(),
            };
            let made = match &local.prepared {
                Err(reason) if has_gemms => Err(reason.clone()),
                _ => row(arena, layers, call)?,
            };
            entrants.push(Entrant::new(name, reduce.kind(), made));
        }
        if !entrants.is_empty() {
            tables.push(Table {
                place,
                name: table,
                entrants,
                selected: None,
                is_call_alone: !has_gemms,
            });
        }
    }
    Ok(tables)
}

/// The row of `layers` around `call`. `Err` says why it cannot run here, the same on all ranks.
fn row<'a, B: NcclBackend>(
    arena: &Rc<Arena<'a, B>>,
    layers: Layers<B>,
    call: Call,
) -> Result<Result<Row<'a, B>, String>> {
    let is_fused = layers.norm == Norm::Fused;
    let method = match layers.reduce {
        Reduce::By(method) => method,
        // A row without an all-reduce has one that it does not call.
        Reduce::Selected | Reduce::Nothing => {
            let call = match arena.placed(MemoryKind::Plain, call)? {
                Ok(call) => call,
                Err(reason) => return Ok(Err(reason)),
            };
            let ours = &arena.libraries.ours;
            Method::Ours(match is_fused {
                true => ours.select_norm(&layers.add_rms_norm(&call, &call.input))?,
                false => ours.select(&call)?,
            })
        }
    };
    let takes_norm = matches!(method, Method::Ours(Variant::Packets | Variant::Sentinel));
    if is_fused && !takes_norm {
        let by = method.name();
        return Ok(Err(format!(
            "at this size it takes two launches, the first by {by}"
        )));
    }
    Row::new(arena, method, call, Some(Box::new(layers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_comes_first_and_the_catalogue_has_every_row_and_no_other() {
        let suite = crate::suite::named("decode").unwrap();
        for (_, _, works) in WORKS {
            assert_eq!(works[0].0, "nccl");
            let names: Vec<_> = works.iter().map(|(name, ..)| (*name).to_owned()).collect();
            assert!(suite.cases(&names).unwrap().is_empty());
        }
        for (name, _) in catalogue() {
            let mut all = WORKS.iter().flat_map(|(_, _, works)| works.iter());
            assert!(all.any(|work| work.0 == name), "{name}");
            // `--impl` separates names by comma.
            assert!(!name.contains(','), "{name}");
        }
    }

    #[test]
    fn a_message_is_one_row_or_whole_rows() {
        let matrix = Matrix::of(DType::Bf16, Bytes(4096));
        assert_eq!(
            (matrix.rows, matrix.hidden, matrix.bytes()),
            (1, 2048, 4096)
        );
        let matrix = Matrix::of(DType::Bf16, Bytes(16 << 20));
        assert_eq!((matrix.rows, matrix.hidden), (1024, 8192));
        assert_eq!(Matrix::of(DType::F32, Bytes(100_000)).bytes(), 98_304);
    }
}
