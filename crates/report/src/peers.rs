//! What another program measured of the same operations on the same machine, as further rows: PyTorch's own
//! operators, by `crates/bench/peers/torch_peers.py`.
//!
//! A file is JSON: `{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [{"kind": "all-gather-matmul", "world":
//! 4, "shape": "8192x3584x8192", "dtype": "bfloat16", "ms": {"torch-fused": {"median": 0.73, "p10": 0.72,
//! "p90": 0.75, "samples": 15}}}, …]}`. The `kind` is the name of an operation, whose shape is M×N×K, or
//! `collectives`, whose shape is a size such as `64 KiB`; a suite passes over rows of other kinds. In the
//! place of a spread there may be one number. A time with `"part": true` is of a part of the operation alone.
//!
//! Of collectives there are also files of lines, `collectives 64 KiB all_gather 11.7us …`. What a file does
//! not say, how many ranks there were or which type, it is assumed to match.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::error::{ReportError, Result};
use crate::sizes::{Bytes, Shape};
use crate::statistics::Spread;

/// The kind of collectives.
pub const COLLECTIVES: &str = "collectives";

/// The peer's name of a time, the operation, and the name of the row.
const NAMES: [(&str, &str, &str); 5] = [
    ("all_gather", "all-gather", "torch-nccl"),
    ("all_reduce", "all-reduce", "torch-nccl"),
    ("reduce_scatter", "reduce-scatter", "torch-nccl"),
    ("one_shot_all_reduce", "all-reduce", "torch-one-shot"),
    ("two_shot_all_reduce", "all-reduce", "torch-two-shot"),
];

/// Element types as reports name them, and as PyTorch does.
const TYPES: [(&str, &str); 4] = [
    ("f32", "float32"),
    ("e4m3", "float8_e4m3fn"),
    ("f16", "float16"),
    ("bf16", "bfloat16"),
];

/// PyTorch's name of an element type.
pub fn torch_name(dtype: &str) -> &str {
    let known = TYPES.iter().find(|(ours, _)| *ours == dtype);
    known.map_or(dtype, |(_, theirs)| theirs)
}

/// A peer's figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peers {
    /// Who measured.
    pub by: String,
    rows: Vec<Row>,
}

/// The figures of one problem, as a file has them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Row {
    kind: String,
    shape: String,
    world: Option<usize>,
    dtype: Option<String>,
    /// `None` where the operator could not run.
    ms: BTreeMap<String, Option<Time>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Time {
    Median(f64),
    Spread {
        #[serde(flatten)]
        spread: Spread,
        #[serde(default)]
        part: bool,
    },
}

/// A time of a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure<'a> {
    /// The name of its row.
    pub name: &'a str,
    /// The time.
    pub ms: Spread,
    /// Whether it is of a part of the operation alone.
    pub part: bool,
}

impl Peers {
    /// Reads what a file has of these kinds: operations, or [`COLLECTIVES`].
    ///
    /// # Errors
    /// [`ReportError::Usage`]: it cannot be read, or there is nothing of these in it.
    pub fn read(path: &Path, kinds: &[&str]) -> Result<Self> {
        let wrong = |why: String| ReportError::Usage(format!("--peers {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        let peers = match text.trim_start().starts_with('{') {
            true => Self::from_json(&text, kinds).map_err(|e| wrong(e.to_string()))?,
            false => Self::from_lines(&text, kinds),
        };
        match peers.rows.iter().all(|row| row.ms.is_empty()) {
            true => Err(wrong(format!("no row of {} in it", kinds.join(", ")))),
            false => Ok(peers),
        }
    }

    fn from_json(text: &str, kinds: &[&str]) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct File {
            torch: Option<String>,
            nccl: Option<Vec<u32>>,
            #[serde(default)]
            rows: Vec<Value>,
        }
        let file: File = serde_json::from_str(text)?;
        let version = file.torch.as_deref().unwrap_or("of an unknown version");
        let nccl = file.nccl.map_or(String::new(), |version| {
            let parts: Vec<_> = version.iter().map(u32::to_string).collect();
            format!(", NCCL {}", parts.join("."))
        });
        let rows = file.rows.iter();
        let own = rows.filter(|row| {
            row["kind"]
                .as_str()
                .is_some_and(|kind| kinds.contains(&kind))
        });
        Ok(Self {
            by: format!("PyTorch {version}{nccl}"),
            rows: own.map(Row::deserialize).collect::<Result<_, _>>()?,
        })
    }

    fn from_lines(text: &str, kinds: &[&str]) -> Self {
        let row = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [kind, number, unit, times @ ..] = words.as_slice() else {
                return None;
            };
            let time = |pair: &[&str]| {
                let us: f64 = pair[1].strip_suffix("us")?.parse().ok()?;
                Some((pair[0].to_owned(), Some(Time::Median(us / 1e3))))
            };
            kinds.contains(kind).then(|| Row {
                kind: (*kind).to_owned(),
                shape: format!("{number} {unit}"),
                world: None,
                dtype: None,
                ms: times.chunks_exact(2).filter_map(time).collect(),
            })
        };
        Self {
            by: "PyTorch".into(),
            rows: text.lines().filter_map(row).collect(),
        }
    }

    /// The figures of an operation at a size, by the name of their rows; none of another world or type.
    pub fn of_size(
        &self,
        operation: &str,
        size: Bytes,
        world: usize,
        dtype: &str,
    ) -> impl Iterator<Item = (&'static str, Spread)> {
        let is_it = move |text: &str| {
            let theirs = text.replace(' ', "").parse::<Bytes>();
            theirs.is_ok_and(|theirs| theirs == size)
        };
        let figures = self.of_kind(COLLECTIVES, is_it, world, dtype);
        figures.filter_map(move |figure| {
            let mut known = NAMES.iter();
            let (.., name) =
                known.find(|(theirs, of, _)| *theirs == figure.name && *of == operation)?;
            Some((*name, figure.ms))
        })
    }

    /// The figures of an operation on a problem; none of another world or type.
    pub fn of(
        &self,
        operation: &str,
        (shape, dtype): (Shape, &str),
        world: usize,
    ) -> impl Iterator<Item = Figure<'_>> {
        let is_it = move |text: &str| text.parse::<Shape>().is_ok_and(|theirs| theirs == shape);
        self.of_kind(operation, is_it, world, dtype)
    }

    /// The figures of a kind, on shapes of which `is_it` holds; none of another world or type.
    fn of_kind(
        &self,
        kind: &str,
        is_it: impl Fn(&str) -> bool,
        world: usize,
        dtype: &str,
    ) -> impl Iterator<Item = Figure<'_>> {
        let rows = self.rows.iter().filter(move |row| {
            let type_is = |theirs: &String| theirs == torch_name(dtype);
            row.kind == kind
                && is_it(&row.shape)
                && row.world.is_none_or(|ranks| ranks == world)
                && row.dtype.as_ref().is_none_or(type_is)
        });
        rows.flat_map(|row| &row.ms).filter_map(|(name, time)| {
            let (ms, part) = match (*time)? {
                Time::Median(ms) => (Spread::of(&[ms])?, false),
                Time::Spread { spread, part } => (spread, part),
            };
            (ms.median > 0.0).then_some(Figure { name, ms, part })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [
        {"kind": "collectives", "world": 4, "shape": "64 KiB", "dtype": "bfloat16",
         "ms": {"all_gather": 0.0117}},
        {"kind": "all-gather-matmul", "world": 4, "shape": "8x6x4", "dtype": "bfloat16", "ms": {
            "torch-fused": {"median": 2.0, "p10": 1.5, "p90": 2.5, "samples": 15},
            "torch-matmul": {"median": 1.0, "p10": 1.0, "p90": 1.5, "samples": 15, "part": true},
            "torch-nccl": {"median": 3.0, "p10": 2.5, "p90": 3.5, "samples": 15},
            "torch-new": null}}]}"#;

    const KINDS: [&str; 1] = ["all-gather-matmul"];

    #[test]
    fn figures_are_of_their_operation_problem_world_and_type() {
        let peers = Peers::from_json(JSON, &KINDS).unwrap();
        assert_eq!(peers.by, "PyTorch 2.11.0, NCCL 2.28.9");
        let of = |operation, shape, dtype, world| -> Vec<_> {
            let figures = peers.of(operation, (shape, dtype), world);
            figures.map(|f| (f.name, f.ms.median, f.part)).collect()
        };
        let (gather, shape) = ("all-gather-matmul", Shape::new(8, 6, 4));
        let all = [
            ("torch-fused", 2.0, false),
            ("torch-matmul", 1.0, true),
            ("torch-nccl", 3.0, false),
        ];
        assert_eq!(of(gather, shape, "bf16", 4), all);
        assert!(of(gather, shape, "f16", 4).is_empty());
        assert!(of(gather, shape, "bf16", 2).is_empty());
        assert!(of(gather, Shape::new(8, 6, 5), "bf16", 4).is_empty());
        assert!(of("matmul-all-reduce", shape, "bf16", 4).is_empty());
    }

    #[test]
    fn a_file_without_rows_of_a_kind_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("peers.json");
        let word = JSON.replace(
            r#"{"median": 3.0, "p10": 2.5, "p90": 3.5, "samples": 15}"#,
            "\"quick\"",
        );
        let empty = r#"{"rows": [{"kind": "all-gather-matmul", "shape": "1x1x1", "ms": {}}]}"#;
        for (text, why) in [
            ("{}", "no row of all-gather-matmul"),
            (empty, "no row"),
            ("{\"rows\": [", "EOF"),
            ("hello", "no row"),
            (word.as_str(), "did not match"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Peers::read(&file, &KINDS).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("--peers"), "{error}");
        }
        assert!(Peers::read(&folder.path().join("none"), &KINDS).is_err());
        let error = read(&SIZES.replace("collectives", "other")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("no row of collectives"), "{error}");
    }

    const SIZES: &str = r#"{"torch": "2.11.0", "nccl": [2, 28, 9], "rows": [
        {"kind": "ag_gemm", "world": 4, "shape": "1,2,3", "dtype": "bfloat16", "ms": {"gemm": 1.0}},
        {"kind": "collectives", "world": 4, "shape": "64 KiB", "dtype": "bfloat16",
         "ms": {"all_gather": 0.0117, "all_reduce": 0.0139, "one_shot_all_reduce": 0.0124, "new": 1.0}}]}"#;

    const LINES: &str = "ag_gemm 1024,1024,1024 gemm 0.009ms(250TF)\n\
        collectives 4 KiB all_gather 11.4us all_reduce 12.4us two_shot_all_reduce 11.3us\n";

    fn read(text: &str) -> Result<Peers> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Peers::read(file.path(), &[COLLECTIVES])
    }

    #[test]
    fn json_is_read_for_the_world_and_type_that_it_is_of() {
        let peers = read(SIZES).unwrap();
        assert_eq!(peers.by, "PyTorch 2.11.0, NCCL 2.28.9");
        let of = |operation, bytes, world, dtype| -> Vec<_> {
            let figures = peers.of_size(operation, Bytes(bytes), world, dtype);
            figures.map(|(name, ms)| (name, ms.median)).collect()
        };
        let (gather, reduce) = ("all-gather", "all-reduce");
        assert_eq!(
            of(reduce, 65536, 4, "bf16"),
            [("torch-nccl", 0.0139), ("torch-one-shot", 0.0124)]
        );
        assert_eq!(of(gather, 65536, 4, "bf16"), [("torch-nccl", 0.0117)]);
        assert!(of(gather, 65536, 2, "bf16").is_empty());
        assert!(of(gather, 65536, 4, "f16").is_empty());
        assert!(of(gather, 4096, 4, "bf16").is_empty());
    }

    #[test]
    fn lines_are_read_as_they_are_printed() {
        let peers = read(LINES).unwrap();
        let of = |operation| -> Vec<_> {
            let figures = peers.of_size(operation, Bytes(4096), 8, "f32");
            figures
                .map(|(name, ms)| (name, (ms.median * 1e4).round()))
                .collect()
        };
        assert_eq!(of("all-gather"), [("torch-nccl", 114.0)]);
        let all_reduce = of("all-reduce");
        assert_eq!(all_reduce[1], ("torch-two-shot", 113.0));
    }
}
