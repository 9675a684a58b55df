//! What another program measured on the same machine: PyTorch's own operators, as rows beside ours.
//!
//! A file is either JSON, `{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [{"kind": "collectives", "world": 4, "shape":
//! "64 KiB", "dtype": "bfloat16", "ms": {"all_gather": 0.0117, …}}, …]}`, or lines: `collectives 64 KiB all_gather 11.7us …`.
//! Rows of another kind are passed over. Lines say neither how many ranks there were nor which type: they are taken at
//! their word.

use std::path::Path;

use serde_json::Value;
use warpweave_comm::collective::Operation;
use warpweave_symm_mem::DType;

use super::size::Bytes;
use crate::error::{BenchError, Result};
use crate::peers::{by, torch_name};

/// A peer's figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peers {
    /// Who measured.
    pub by: String,
    figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq)]
struct Figure {
    operation: Operation,
    name: &'static str,
    size: Bytes,
    world: Option<u64>,
    dtype: Option<String>,
    ms: f64,
}

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

impl Peers {
    /// Reads a file.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for a file that cannot be read or holds no figure of a collective.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: String| BenchError::Usage(format!("--peers {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let peers = match text.trim_start().starts_with('{') {
            true => Self::from_json(&text).map_err(|e| wrong(e.to_string()))?,
            false => Self::from_lines(&text),
        };
        if peers.figures.is_empty() {
            return Err(wrong("no row of kind `collectives` in it".into()));
        }
        Ok(peers)
    }

    fn from_json(text: &str) -> serde_json::Result<Self> {
        let file: Value = serde_json::from_str(text)?;
        let mut peers = Self {
            by: by(&file),
            ..Self::default()
        };
        for row in file["rows"].as_array().into_iter().flatten() {
            let (kind, times) = (row["kind"].as_str(), row["ms"].as_object());
            let (Some("collectives"), Some(size), Some(times)) =
                (kind, row["shape"].as_str().and_then(size), times)
            else {
                continue;
            };
            for (name, ms) in times {
                let (world, dtype) = (row["world"].as_u64(), row["dtype"].as_str());
                peers.add(name, size, (world, dtype), ms.as_f64());
            }
        }
        Ok(peers)
    }

    fn from_lines(text: &str) -> Self {
        let mut peers = Self {
            by: "PyTorch".into(),
            ..Self::default()
        };
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let ["collectives", number, unit, times @ ..] = words.as_slice() else {
                continue;
            };
            let Some(size) = size(&format!("{number} {unit}")) else {
                continue;
            };
            for pair in times.chunks_exact(2) {
                let us = pair[1]
                    .strip_suffix("us")
                    .and_then(|us| us.parse::<f64>().ok());
                peers.add(pair[0], size, (None, None), us.map(|us| us / 1e3));
            }
        }
        peers
    }

    fn add(
        &mut self,
        name: &str,
        size: Bytes,
        (world, dtype): (Option<u64>, Option<&str>),
        ms: Option<f64>,
    ) {
        let known = NAMES.iter().find(|(theirs, ..)| *theirs == name);
        if let (Some((_, operation, name)), Some(ms)) = (known, ms.filter(|&ms| ms > 0.0)) {
            self.figures.push(Figure {
                operation: *operation,
                name,
                size,
                world,
                dtype: dtype.map(str::to_owned),
                ms,
            });
        }
    }

    /// The figures of an operation at a size, by the name of their rows; none of another world or type.
    pub(super) fn of(
        &self,
        operation: Operation,
        size: Bytes,
        world: usize,
        dtype: DType,
    ) -> Vec<(&'static str, f64)> {
        let figures = self.figures.iter().filter(|figure| {
            figure.operation == operation
                && figure.size == size
                && figure.world.is_none_or(|ranks| ranks == world as u64)
                && figure
                    .dtype
                    .as_ref()
                    .is_none_or(|theirs| theirs == torch_name(dtype))
        });
        figures.map(|figure| (figure.name, figure.ms)).collect()
    }
}

/// `4 KiB`.
fn size(text: &str) -> Option<Bytes> {
    text.replace(' ', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [
        {"kind": "ag_gemm", "world": 4, "shape": "1,2,3", "dtype": "bfloat16", "ms": {"gemm": 1.0}},
        {"kind": "collectives", "world": 4, "shape": "64 KiB", "dtype": "bfloat16",
         "ms": {"all_gather": 0.0117, "all_reduce": 0.0139, "one_shot_all_reduce": 0.0124, "new": 1.0}}]}"#;

    #[test]
    fn json_is_read_for_the_world_and_type_that_it_is_of() {
        let peers = Peers::from_json(JSON).unwrap();
        assert_eq!(peers.by, "PyTorch 2.11.0, NCCL 2.28.9");
        let of = |operation, world, dtype| peers.of(operation, Bytes(65536), world, dtype);
        assert_eq!(
            of(Operation::AllReduce, 4, DType::Bf16),
            [("torch-nccl", 0.0139), ("torch-one-shot", 0.0124)]
        );
        assert_eq!(
            of(Operation::AllGather, 4, DType::Bf16),
            [("torch-nccl", 0.0117)]
        );
        assert!(of(Operation::AllGather, 2, DType::Bf16).is_empty());
        assert!(of(Operation::AllGather, 4, DType::F16).is_empty());
        assert!(
            peers
                .of(Operation::AllGather, Bytes(4096), 4, DType::Bf16)
                .is_empty()
        );
    }

    #[test]
    fn lines_are_read_as_they_are_printed() {
        let lines = "ag_gemm 1024,1024,1024 gemm 0.009ms(250TF)\n\
            collectives 4 KiB all_gather 11.4us all_reduce 12.4us two_shot_all_reduce 11.3us\n";
        let peers = Peers::from_lines(lines);
        let of = |operation| {
            let figures = peers.of(operation, Bytes(4096), 8, DType::F32).into_iter();
            figures
                .map(|(name, ms)| (name, (ms * 1e4).round()))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Operation::AllGather), [("torch-nccl", 114.0)]);
        let all_reduce = of(Operation::AllReduce);
        assert_eq!(all_reduce[1], ("torch-two-shot", 113.0));
    }

    #[test]
    fn a_file_without_collectives_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers.json");
        for (text, why) in [
            ("{}", "no row"),
            ("{\"rows\": [", "EOF"),
            ("hello", "no row"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Peers::read(&file).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("--peers"), "{error}");
        }
        assert!(Peers::read(&folder.path().join("none")).is_err());
    }
}
