//! What can be measured: suites of implementations of the same problems.

use std::str::FromStr;

use warpweave_overlap::Operation;
use warpweave_overlap::algorithms;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::plan::{GemmProvider, Problem};
use warpweave_symm_mem::{BackendKind, DType};

use crate::candidate::{Implementation, PartOfA};
use crate::collectives;
use crate::error::{BenchError, Result};
use crate::limit::product_alone;
use crate::shape::Shape;

mod means;
mod run;

pub use run::{Settings, run};

/// A set of implementations that solve the same problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// All-gather + matmul in seven ways.
    FusedMatmul,
    /// The matrix products of the providers, without communication: every rank computes all of C on its own device, all
    /// ranks at once, and the slowest counts. A job of one rank tells of one GPU alone.
    Gemm,
    /// Collectives over symmetric memory beside NCCL; no plans: [`collectives`] measures them.
    Collectives,
}

impl Suite {
    /// All suites.
    pub const ALL: [Suite; 3] = [Suite::FusedMatmul, Suite::Gemm, Suite::Collectives];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::FusedMatmul => "fused-matmul",
            Suite::Gemm => "gemm",
            Suite::Collectives => "collectives",
        }
    }

    /// Its implementations in the order of the table, the baseline first, each with a sentence.
    pub fn catalogue(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Suite::FusedMatmul => algorithms::table()
                .iter()
                .map(|c| (c.algorithm().name, c.algorithm().summary))
                .collect(),
            Suite::Gemm => vec![
                (
                    "cublasLt",
                    "cuBLASLt, its heuristics' candidates timed; the host's own product on the host",
                ),
                (
                    "cutlass",
                    "the CUTLASS SM90 kernels, tile and schedule timed",
                ),
            ],
            Suite::Collectives => collectives::catalogue(),
        }
    }

    /// The implementations of these names, in the order of the table; all of the catalogue without names.
    ///
    /// By name, all-gather + matmul has the pipelines besides its catalogue.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming what there is.
    pub fn implementations(self, names: &[String]) -> Result<Vec<Implementation>> {
        if self == Suite::FusedMatmul && !names.is_empty() {
            // Any algorithm of the operation, in any configuration.
            return names.iter().map(|name| self.implementation(name)).collect();
        }
        let known: Vec<&str> = self.catalogue().iter().map(|(name, _)| *name).collect();
        if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
            return Err(BenchError::Usage(format!(
                "suite {} has no implementation `{name}`; it has {}",
                self.name(),
                known.join(", ")
            )));
        }
        let wanted = |name: &&str| names.is_empty() || names.iter().any(|n| n == name);
        known
            .into_iter()
            .filter(wanted)
            .map(|name| self.implementation(name))
            .collect()
    }

    fn implementation(self, name: &str) -> Result<Implementation> {
        match (self, name) {
            (Suite::FusedMatmul, name) => {
                let configuration = algorithms::find(name)?;
                if configuration.operation() != Operation::AllGatherMatmul {
                    return Err(BenchError::Usage(format!(
                        "`{name}` computes {}, not {}",
                        configuration.operation(),
                        Operation::AllGatherMatmul
                    )));
                }
                Ok(Implementation {
                    name: configuration.name(),
                    takes: PartOfA::Shard,
                    plan: Box::new(move |rank, world, problem| {
                        configuration.plan(rank, world, problem)
                    }),
                })
            }
            (Suite::Collectives, name) => Err(BenchError::Usage(format!("`{name}` is no plan"))),
            (Suite::Gemm, "cutlass") => Ok(product_alone(name, GemmProvider::Cutlass)),
            (Suite::Gemm, name) => Ok(product_alone(name, GemmProvider::CublasLt)),
        }
    }

    /// The problems that the suite is about, where the command line names none.
    pub fn problems(self, kind: BackendKind) -> Vec<(Shape, DType)> {
        match (self, kind) {
            (Suite::Collectives, _) => Vec::new(),
            (_, BackendKind::Host) => vec![
                (Shape::new(256, 256, 256), DType::F16),
                // 131 rows do not divide by four, and no size is a multiple of anything.
                (Shape::new(131, 71, 90), DType::Bf16),
            ],
            (Suite::FusedMatmul, BackendKind::Cuda) => vec![
                (Shape::new(1024, 1024, 1024), DType::F16),
                (Shape::new(8192, 3584, 8192), DType::Bf16),
                (Shape::new(4 * 257, 1160, 1032), DType::F16),
            ],
            (Suite::Gemm, BackendKind::Cuda) => {
                let sides = [(1792, 4096), (3584, 8192), (6656, 16384)];
                let nine = sides.iter().flat_map(|&(n, k)| {
                    [4096, 8192, 16384].map(|m| (Shape::new(m, n, k), DType::Bf16))
                });
                let square = |side| Shape::new(side, side, side);
                let squares = [(square(8192), DType::Bf16), (square(1024), DType::F16)];
                nine.chain(squares).collect()
            }
        }
    }
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Suite::ALL.map(Suite::name).join(", ");
        Suite::ALL
            .into_iter()
            .find(|suite| suite.name() == name)
            .ok_or_else(|| format!("there is no suite `{name}`; known are {}", names()))
    }
}

/// The problem of a shape on this backend.
fn problem<B: ExecuteBackend>(backend: &B, shape: Shape, dtype: DType) -> Problem {
    // The host emulates multicast by copies to every rank, which tells nothing about it.
    let multicast = B::KIND == BackendKind::Cuda && backend.device().multicast.is_yes();
    Problem::new(shape.m, shape.n, shape.k, dtype).with_multicast(multicast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_shapes_each_problem_has_its_own_element_type() {
        let texts = |suite: Suite| -> Vec<String> {
            let problems = suite.problems(BackendKind::Cuda).into_iter();
            problems
                .map(|(shape, dtype)| format!("{shape} {dtype}"))
                .collect()
        };
        assert_eq!(
            texts(Suite::FusedMatmul),
            [
                "1024x1024x1024 f16",
                "8192x3584x8192 bf16",
                "1028x1160x1032 f16"
            ]
        );
        let gemm = texts(Suite::Gemm);
        assert_eq!(
            gemm.iter().filter(|text| text.ends_with("bf16")).count(),
            10
        );
        assert_eq!(gemm[0], "4096x1792x4096 bf16");
        assert_eq!(gemm[9..], ["8192x8192x8192 bf16", "1024x1024x1024 f16"]);
    }

    #[test]
    fn names_choose_implementations_in_the_order_of_the_table() {
        let all = Suite::FusedMatmul.implementations(&[]).unwrap();
        assert_eq!(all.len(), 7);
        assert_eq!(all[0].name, "baselineNcclAllgatherMatmul");
        let names = ["naiveRemoteRead", "baselineCudaAllgatherMatmul"].map(String::from);
        let two = Suite::FusedMatmul.implementations(&names).unwrap();
        let two: Vec<_> = two.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(two, ["baselineCudaAllgatherMatmul", "naiveRemoteRead"]);
        let pipelines = ["pushChunks:chunks=8", "ringGet"].map(String::from);
        let pipelines = Suite::FusedMatmul.implementations(&pipelines).unwrap();
        let pipelines: Vec<_> = pipelines.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(pipelines, ["ringGet", "pushChunks:chunks=8"]);
        let unknown = Suite::Gemm
            .implementations(&names)
            .err()
            .unwrap()
            .to_string();
        assert!(
            unknown.contains("naiveRemoteRead") && unknown.contains("cutlass"),
            "{unknown}"
        );
    }
}
