//! What another program measured of the same operations on the same machine, as rows beside ours: PyTorch's own operators,
//! by `peers/torch_peers.py` of this crate.
//!
//! A file is JSON: `{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [{"kind": "all-gather-matmul", "world": 4, "shape":
//! "8192x3584x8192", "dtype": "bfloat16", "ms": {"torch-fused": {"median": 0.73, "p10": 0.72, "p90": 0.75, "samples": 15}}},
//! …]}`, where `kind` is the name of an operation and the shape is M×N×K. Rows of another kind are passed over.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use warpweave_overlap::Operation;
use warpweave_symm_mem::DType;

use crate::error::{BenchError, Result};
use crate::shape::Shape;
use crate::statistics::Spread;
use crate::suite::Sizes;

/// A peer's figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peers {
    /// Who measured.
    pub by: String,
    figures: Vec<Figure>,
}

#[derive(Clone, Debug, PartialEq)]
struct Figure {
    kind: String,
    shape: Shape,
    world: u64,
    dtype: String,
    name: String,
    ms: Spread,
}

impl Peers {
    /// Reads a file.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for a file that cannot be read or holds no figure of an operation.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |why: String| BenchError::Usage(format!("--peers {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let peers = Self::from_json(&text).map_err(|e| wrong(e.to_string()))?;
        if peers.figures.is_empty() {
            return Err(wrong("no row of an operation in it".into()));
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
            let kind = row["kind"].as_str().unwrap_or_default();
            let shape = row["shape"].as_str().and_then(|shape| shape.parse().ok());
            let (Some(shape), true) = (shape, Operation::ALL.iter().any(|o| o.name() == kind))
            else {
                continue;
            };
            for (name, ms) in row["ms"].as_object().into_iter().flatten() {
                peers.figures.push(Figure {
                    kind: kind.into(),
                    shape,
                    world: row["world"].as_u64().unwrap_or(0),
                    dtype: row["dtype"].as_str().unwrap_or_default().into(),
                    name: name.clone(),
                    ms: Spread::deserialize(ms)?,
                });
            }
        }
        Ok(peers)
    }

    /// The figures of an operation on a problem, by the name of their rows; none of another world or type.
    pub fn of(
        &self,
        operation: Operation,
        (shape, dtype): Sizes,
        world: usize,
    ) -> impl Iterator<Item = (&str, Spread)> {
        let figures = self.figures.iter().filter(move |figure| {
            figure.kind == operation.name()
                && figure.shape == shape
                && figure.world == world as u64
                && figure.dtype == torch_name(dtype)
        });
        figures.map(|figure| (figure.name.as_str(), figure.ms))
    }
}

/// Who measured, as the head of a file says.
pub(crate) fn by(file: &Value) -> String {
    let nccl = file["nccl"].as_array().map_or(String::new(), |version| {
        let parts: Vec<_> = version.iter().map(Value::to_string).collect();
        format!(", NCCL {}", parts.join("."))
    });
    let torch = file["torch"].as_str().unwrap_or("of an unknown version");
    format!("PyTorch {torch}{nccl}")
}

/// PyTorch's name of an element type.
pub(crate) fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F16 => "float16",
        _ => "bfloat16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [
        {"kind": "collectives", "world": 4, "shape": "64 KiB", "dtype": "bfloat16", "ms": {"all_gather": 0.0117}},
        {"kind": "all-gather-matmul", "world": 4, "shape": "8x6x4", "dtype": "bfloat16", "ms": {
            "torch-fused": {"median": 2.0, "p10": 1.5, "p90": 2.5, "samples": 15},
            "torch-nccl": {"median": 3.0, "p10": 2.5, "p90": 3.5, "samples": 15}}}]}"#;

    #[test]
    fn figures_are_of_their_operation_problem_world_and_type() {
        let peers = Peers::from_json(JSON).unwrap();
        assert_eq!(peers.by, "PyTorch 2.11.0, NCCL 2.28.9");
        let of = |operation, shape, dtype, world| -> Vec<(String, f64)> {
            let figures = peers.of(operation, (shape, dtype), world);
            figures.map(|(name, ms)| (name.into(), ms.median)).collect()
        };
        let (gather, shape) = (Operation::AllGatherMatmul, Shape::new(8, 6, 4));
        let both = [("torch-fused".into(), 2.0), ("torch-nccl".into(), 3.0)];
        assert_eq!(of(gather, shape, DType::Bf16, 4), both);
        assert!(of(gather, shape, DType::F16, 4).is_empty());
        assert!(of(gather, shape, DType::Bf16, 2).is_empty());
        assert!(of(gather, Shape::new(8, 6, 5), DType::Bf16, 4).is_empty());
        assert!(of(Operation::MatmulAllReduce, shape, DType::Bf16, 4).is_empty());
    }

    #[test]
    fn a_file_without_operations_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers.json");
        let number = JSON.replace(
            r#"{"median": 3.0, "p10": 2.5, "p90": 3.5, "samples": 15}"#,
            "3.0",
        );
        for (text, why) in [
            ("{}", "no row"),
            ("{\"rows\": [", "EOF"),
            (number.as_str(), "invalid type"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Peers::read(&file).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("--peers"), "{error}");
        }
        assert!(Peers::read(&folder.path().join("none")).is_err());
    }
}
