//! The suite `decode`: the all-reduce that an engine makes after each layer, on memory of its own, by itself,
//! before an RMSNorm, and 32 times with a GEMM before each.
//!
//! A message is a matrix of rows of [`HIDDEN`] elements, or one shorter row.

mod row;

use warpweave_comm::Collectives;
use warpweave_comm::collective::{CollectiveOptions, Operation, Variant};
use warpweave_gemm::{Gemm, GemmProblem, PreparedGemm, Provider};
use warpweave_symm_mem::{BackendKind, DType, Memory};

use super::memory::Arena;
use super::method::Method;
use super::nccl::{Library, NcclBackend};
use super::numbers::Stream;
use super::operation::least_bytes;
use super::run::{calls, library, open_windows};
use crate::candidate::{Candidate, Entrant, first_reason};
use crate::error::{BenchError, Result};
use crate::report::{Kind, Limit, Operands, Outcome, Report};
use crate::session::Session;
use crate::size::Bytes;
use crate::suite::{Run, Stage};
use crate::verification::Verifier;
use row::{Norm, Reduce, Row, Work};

/// Elements of a row.
const HIDDEN: usize = 8192;

/// Layers of a call with GEMMs.
const LAYERS: usize = 32;

/// The rows, by what they compute; NCCL's first.
const WORKS: [(&str, &[Work]); 3] = [
    (
        "local all-reduce",
        &[
            Work::of("nccl", Reduce::Nccl),
            Work::of("nccl-window", Reduce::NcclWindow),
            Work::of("ours", Reduce::Ours(None)),
            Work::of("packets", Reduce::Ours(Some(Variant::Packets))),
            Work::of(
                "packets-two-shot",
                Reduce::Ours(Some(Variant::PacketsTwoShot)),
            ),
            Work::of("staged", Reduce::Ours(Some(Variant::Staged))),
        ],
    ),
    (
        "local all-reduce, RMSNorm",
        &[
            Work::of("nccl", Reduce::Nccl).with(Norm::Separate),
            Work::of("nccl-window", Reduce::NcclWindow).with(Norm::Separate),
            Work::of("ours", Reduce::Ours(None)).with(Norm::Separate),
            Work::of("fused", Reduce::Ours(None)).with(Norm::Fused),
            Work::of("packets", Reduce::Ours(Some(Variant::Packets))).with(Norm::Fused),
            Work::of(
                "packets-two-shot",
                Reduce::Ours(Some(Variant::PacketsTwoShot)),
            )
            .with(Norm::Fused),
        ],
    ),
    (
        "32 GEMMs and local all-reduces",
        &[
            Work::of("nccl", Reduce::Nccl).in_layers(),
            Work::of("nccl-window", Reduce::NcclWindow).in_layers(),
            Work::of("ours", Reduce::Ours(None)).in_layers(),
            Work::of("ours, RMSNorm", Reduce::Ours(None))
                .with(Norm::Separate)
                .in_layers(),
            Work::of("fused", Reduce::Ours(None))
                .with(Norm::Fused)
                .in_layers(),
            Work::of("gemm", Reduce::Nothing).in_layers(),
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
        (
            "packets",
            "in one shot by packets, with the RMSNorm in the same launch",
        ),
        (
            "packets-two-shot",
            "in two shots by packets, with the RMSNorm in the same launch",
        ),
        ("staged", "through a bounce buffer, in pieces"),
        (
            "fused",
            "all-reduce and RMSNorm in one launch, in the variant that is selected",
        ),
        ("ours, RMSNorm", "the same in two launches, among GEMMs"),
        ("gemm", "the GEMMs alone"),
    ]
}

/// Makes sure that every name of `wanted` is a row.
pub fn rows(wanted: &[String]) -> Result<()> {
    let known: Vec<_> = catalogue().into_iter().map(|(name, _)| name).collect();
    match wanted.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(BenchError::Usage(format!(
            "suite decode has no implementation `{name}`; it has {}",
            known.join(", ")
        ))),
    }
}

/// From 4 KiB to 16 MiB.
pub fn sizes(kind: BackendKind) -> Vec<Bytes> {
    let logs: &[usize] = match kind {
        BackendKind::Cuda => &[12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 24],
        BackendKind::Host => &[12, 16],
    };
    logs.iter().map(|&log| Bytes(1 << log)).collect()
}

/// What all sizes have in common.
struct Libraries<'a, B: NcclBackend> {
    run: &'a Run<'a, B>,
    ours: Collectives<B>,
    plain: Library<B::Comm>,
    windows: Library<B::Comm>,
    gemm: Gemm<B>,
}

/// What the rows of a size are made from.
struct Means<'a, B: NcclBackend> {
    session: &'a Session<B>,
    ours: &'a Collectives<B>,
    /// Plain NCCL's communicator, and that of the windows.
    nccl: [Option<&'a B::Comm>; 2],
    arena: &'a Arena<B>,
    matrix: Matrix,
    /// Of a layer before its all-reduce.
    gemm: (&'a Gemm<B>, Option<PreparedGemm<B>>),
    local: Local<B>,
}

/// The message of a size.
#[derive(Clone, Copy)]
struct Matrix {
    dtype: DType,
    rows: usize,
    hidden: usize,
}

impl Matrix {
    /// That of `size`, rounded down to whole rows.
    fn of(dtype: DType, size: Bytes) -> Self {
        let elements = (size.0 / dtype.size()).max(1);
        let hidden = elements.min(HIDDEN);
        Matrix {
            dtype,
            rows: elements / hidden,
            hidden,
        }
    }

    fn bytes(&self) -> usize {
        self.rows * self.hidden * self.dtype.size()
    }

    /// A row-parallel layer of a model of this size among some ranks. On the host its sums are short.
    fn gemm(&self, kind: BackendKind) -> GemmProblem {
        let k = match kind {
            BackendKind::Cuda => 4096,
            BackendKind::Host => 8,
        };
        GemmProblem::new(self.rows, self.hidden, k, self.dtype)
    }
}

/// Memory of this rank that no message is in.
struct Local<B: NcclBackend> {
    residual: B::Memory,
    residual_out: B::Memory,
    weight: B::Memory,
    a: B::Memory,
    b: B::Memory,
    c: B::Memory,
}

/// The numbers of what is no message: by a rank that there is not.
fn constant(which: usize, world: usize) -> Stream {
    Stream::new(world + which, 0, world)
}

impl<B: NcclBackend> Local<B> {
    fn new(session: &Session<B>, matrix: &Matrix, gemm: &GemmProblem) -> Result<Self> {
        let allocate = |elements: usize| session.backend.allocate(elements * matrix.dtype.size());
        let filled = |which, elements| {
            let memory = allocate(elements)?;
            let numbers = constant(which, session.world());
            let bytes = numbers.bytes(matrix.dtype, elements, session.threads());
            // SAFETY: new memory, as long.
            unsafe {
                session
                    .backend
                    .upload(&session.stream, memory.address(), &bytes)?
            };
            Ok::<_, BenchError>(memory)
        };
        let elements = matrix.rows * matrix.hidden;
        Ok(Self {
            residual: filled(row::RESIDUAL, elements)?,
            residual_out: allocate(elements)?,
            weight: filled(row::WEIGHT, matrix.hidden)?,
            a: allocate(gemm.a_len())?,
            b: allocate(gemm.b_len())?,
            c: allocate(gemm.c_len())?,
        })
    }
}

/// Adds the results of all sizes to `report`, by what is computed. Collective.
pub(crate) fn measure<B: NcclBackend>(
    run: &Run<'_, B>,
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<()> {
    let Run {
        session, settings, ..
    } = run;
    let options = CollectiveOptions::default();
    let libraries = Libraries {
        run,
        ours: Collectives::new(&session.backend, &session.exchange, "bench", options)?,
        plain: library(run, Method::Nccl)?,
        windows: library(run, Method::NcclWindow)?,
        gemm: Gemm::new(&session.backend)?,
    };
    let mut results = Vec::new();
    for (i, &size) in settings.sizes.iter().enumerate() {
        let stage = Stage {
            run,
            place: (i, settings.sizes.len()),
            label: size.to_string(),
        };
        results.extend(libraries.measure(&stage, size)?);
        results.sort_by_key(|(work, size, _)| (*work, *size));
        report.results = results
            .iter()
            .map(|(.., outcome)| outcome.clone())
            .collect();
        each(report)?;
    }
    let exchange = session.exchange.as_ref();
    Ok(libraries.ours.close(&session.stream, exchange)?)
}

impl<B: NcclBackend> Libraries<'_, B> {
    /// Measures everything at a size. Collective.
    fn measure(&self, stage: &Stage<'_, B>, size: Bytes) -> Result<Vec<(usize, Bytes, Outcome)>> {
        let (session, settings) = (self.run.session, self.run.settings);
        stage.at("inputs");
        let matrix = Matrix::of(settings.message_dtype(), size);
        let ([plain, windows], bytes) = ([&self.plain, &self.windows], matrix.bytes());
        let mut arena = Arena::new(session, [bytes; 2], matrix.dtype, true)?;
        let no_windows = match &windows.0 {
            Some(comm) => open_windows(session, &mut arena, comm)?,
            None => windows.1.clone(),
        };
        let problem = matrix.gemm(B::KIND);
        let local = Local::new(session, &matrix, &problem);
        let (mine, local) = match local {
            Ok(local) => (Ok(Vec::new()), Some(local)),
            Err(error) => (Err(error), None),
        };
        session.agree("memory for the layers", mine)?;
        let (gemm, no_gemm) = self.prepare(&problem)?;
        let Some(local) = local else {
            return Ok(Vec::new());
        };
        let means = Means {
            session,
            ours: &self.ours,
            nccl: [plain.0.as_ref(), windows.0.as_ref()],
            arena: &arena,
            matrix,
            gemm: (&self.gemm, gemm),
            local,
        };
        let mut verifier = Verifier::default();
        let mut outcomes = Vec::new();
        for (place, (name, works)) in WORKS.iter().enumerate() {
            let stage = Stage {
                label: format!("{size}: {name}"),
                ..*stage
            };
            let mut entrants = Vec::new();
            for &work in works
                .iter()
                .filter(|work| work.is_wanted(&settings.implementations))
            {
                let (kind, reason) = match work.reduce {
                    Reduce::Nccl => (Kind::Nccl, &plain.1),
                    Reduce::NcclWindow => (Kind::Nccl, &no_windows),
                    Reduce::Ours(_) | Reduce::Nothing => (Kind::Ours, &None),
                };
                let reason = reason
                    .clone()
                    .or_else(|| no_gemm.clone().filter(|_| work.layers));
                let made = match reason {
                    Some(reason) => Err(reason),
                    None => Row::new(&means, work)?,
                };
                let boxed = made.map(|row| Box::new(row) as Box<dyn Candidate + '_>);
                entrants.push(Entrant::new(work.name, kind, boxed));
            }
            if entrants.is_empty() {
                continue;
            }
            let all: Vec<_> = (0..entrants.len()).collect();
            let verified = [calls(bytes)];
            let times = stage.measure(&mut entrants, &all, &mut verifier, [&verified, &[]])?;
            let rows = entrants.iter().zip(&times);
            let least = least_bytes(Operation::AllReduce, bytes, session.world());
            let links = self.run.links.as_ref().filter(|_| least > 0 && place < 2);
            let on = Operands::Message {
                size,
                input_bytes: bytes,
                output_bytes: bytes,
            };
            let dtype = matrix.dtype.name().into();
            let outcome = Outcome {
                limit: links.map(|links| Limit::of_transfer(least, links.bandwidth_gb_s)),
                rows: rows.map(|(one, times)| one.row(times.as_ref())).collect(),
                ..Outcome::new(Some((*name).into()), on, dtype, session.world())
            };
            outcomes.push((place, size, outcome.compared()));
        }
        drop(means);
        arena.close(session)?;
        Ok(outcomes)
    }

    /// The GEMM, or why there is none on some rank. Collective.
    fn prepare(&self, problem: &GemmProblem) -> Result<(Option<PreparedGemm<B>>, Option<String>)> {
        let provider = match B::KIND {
            BackendKind::Cuda => Provider::CublasLt,
            BackendKind::Host => Provider::Host,
        };
        let (mine, gemm) = match self.gemm.prepare(problem, provider) {
            Ok(gemm) => (String::new(), Some(gemm)),
            Err(error) => (error.to_string(), None),
        };
        let all = self
            .run
            .session
            .agree("the GEMM of a layer", Ok(mine.into_bytes()))?;
        Ok((gemm, first_reason(&all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_comes_first_and_every_row_is_in_the_catalogue() {
        for (_, works) in WORKS {
            assert_eq!(works[0].name, "nccl");
            let names: Vec<_> = works.iter().map(|work| work.name.to_owned()).collect();
            rows(&names).unwrap();
        }
        for (name, _) in catalogue() {
            let wanted = [name.to_owned()];
            let all = WORKS.iter().flat_map(|(_, works)| works.iter());
            assert!(all.clone().any(|work| work.is_wanted(&wanted)), "{name}");
        }
        assert!(rows(&["push".to_owned()]).is_err());
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
