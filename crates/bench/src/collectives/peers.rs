//! What another program measured of the same collectives.

use std::path::Path;

use warpweave_comm::collective::Operation;
use warpweave_symm_mem::DType;

use crate::error::Result;
use crate::peers::Peers;
use crate::size::Bytes;
use crate::statistics::Spread;

const KIND: &str = "collectives";

/// The peer's name of a time, the operation, and the name of the row.
const NAMES: [(&str, Operation, &str); 5] = [
    ("all_gather", Operation::AllGather, "torch-nccl"),
    ("all_reduce", Operation::AllReduce, "torch-nccl"),
    ("reduce_scatter", Operation::ReduceScatter, "torch-nccl"),
    (
        "one_shot_all_reduce",
        Operation::AllReduce,
        "torch-one-shot",
    ),
    (
        "two_shot_all_reduce",
        Operation::AllReduce,
        "torch-two-shot",
    ),
];

/// Reads what a file has of collectives.
pub fn read_peers(path: &Path) -> Result<Peers> {
    Peers::of_kinds(path, &[KIND])
}

/// The figures of an operation at a size, by the name of their rows; none of another world or type.
pub(super) fn of(
    peers: &Peers,
    operation: Operation,
    size: Bytes,
    world: usize,
    dtype: DType,
) -> impl Iterator<Item = (&'static str, Spread)> {
    let is_it = move |text: &str| {
        let theirs = text.replace(' ', "").parse::<Bytes>();
        theirs.is_ok_and(|theirs| theirs == size)
    };
    let figures = peers.of_kind(KIND, is_it, world, dtype);
    figures.filter_map(move |figure| {
        let mut known = NAMES.iter();
        let (.., name) =
            known.find(|(theirs, of, _)| *theirs == figure.name && *of == operation)?;
        Some((*name, figure.ms))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [
        {"kind": "ag_gemm", "world": 4, "shape": "1,2,3", "dtype": "bfloat16", "ms": {"gemm": 1.0}},
        {"kind": "collectives", "world": 4, "shape": "64 KiB", "dtype": "bfloat16",
         "ms": {"all_gather": 0.0117, "all_reduce": 0.0139, "one_shot_all_reduce": 0.0124, "new": 1.0}}]}"#;

    const LINES: &str = "ag_gemm 1024,1024,1024 gemm 0.009ms(250TF)\n\
        collectives 4 KiB all_gather 11.4us all_reduce 12.4us two_shot_all_reduce 11.3us\n";

    fn read(text: &str) -> Result<Peers> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read_peers(file.path())
    }

    #[test]
    fn json_is_read_for_the_world_and_type_that_it_is_of() {
        let peers = read(JSON).unwrap();
        assert_eq!(peers.by, "PyTorch 2.11.0, NCCL 2.28.9");
        let of = |operation, bytes, world, dtype| -> Vec<_> {
            let figures = of(&peers, operation, Bytes(bytes), world, dtype);
            figures.map(|(name, ms)| (name, ms.median)).collect()
        };
        let (gather, reduce) = (Operation::AllGather, Operation::AllReduce);
        assert_eq!(
            of(reduce, 65536, 4, DType::Bf16),
            [("torch-nccl", 0.0139), ("torch-one-shot", 0.0124)]
        );
        assert_eq!(of(gather, 65536, 4, DType::Bf16), [("torch-nccl", 0.0117)]);
        assert!(of(gather, 65536, 2, DType::Bf16).is_empty());
        assert!(of(gather, 65536, 4, DType::F16).is_empty());
        assert!(of(gather, 4096, 4, DType::Bf16).is_empty());
    }

    #[test]
    fn lines_are_read_as_they_are_printed() {
        let peers = read(LINES).unwrap();
        let of = |operation| -> Vec<_> {
            let figures = of(&peers, operation, Bytes(4096), 8, DType::F32);
            figures
                .map(|(name, ms)| (name, (ms.median * 1e4).round()))
                .collect()
        };
        assert_eq!(of(Operation::AllGather), [("torch-nccl", 114.0)]);
        let all_reduce = of(Operation::AllReduce);
        assert_eq!(all_reduce[1], ("torch-two-shot", 113.0));
    }

    #[test]
    fn a_file_without_collectives_is_refused() {
        let other = JSON.replace("collectives", "other");
        let error = read(&other).unwrap_err().to_string();
        assert!(error.contains("no row of collectives"), "{error}");
    }
}
