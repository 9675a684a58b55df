//! What an engine runs before and after an all-reduce: a GEMM and an RMSNorm.

use std::rc::Rc;

use warpweave_comm::collective::norm::arithmetic::add_rms_norm;
use warpweave_comm::collective::{AddRmsNorm, Call, Operand};
use warpweave_gemm::{Gemm, GemmOperands, GemmProblem, PreparedGemm, Provider};
use warpweave_report::{Bytes, Kind};
use warpweave_symm_mem::{BackendKind, DType, DeviceSlice, Memory};

use super::super::candidate::{Around, Row};
use super::super::method::Method;
use super::super::nccl::NcclBackend;
use super::super::numbers::Input;
use super::{HIDDEN, LAYERS};
use crate::candidate::Output;
use crate::error::{BenchError, Result};
use crate::inputs::{on_threads, share};
use crate::session::Session;
use crate::verification::comparison::{Comparison, Expectation};

/// The operands that no message carries: see [`constant`].
const RESIDUAL: usize = 0;
const WEIGHT: usize = 1;
const A: usize = 2;
const B_MATRIX: usize = 3;

const EPSILON: f32 = 1e-5;

/// What reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduce {
    /// This method, ours on local memory.
    By(Method),
    /// Ours on local memory, in the variant that is selected.
    Selected,
    /// Nothing.
    Nothing,
}

/// The launch that adds the residual and normalizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norm {
    /// Nothing.
    None,
    /// A launch of its own.
    Separate,
    /// The launch that reduces.
    Fused,
}

impl Reduce {
    pub const fn kind(self) -> Kind {
        match self {
            Reduce::By(method) => method.kind(),
            Reduce::Selected | Reduce::Nothing => Kind::Ours,
        }
    }
}

/// The message of a size.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub dtype: DType,
    pub rows: usize,
    pub hidden: usize,
}

impl Matrix {
    /// That of `size`, rounded down to whole rows.
    pub fn of(dtype: DType, size: Bytes) -> Self {
        let elements = (size.0 / dtype.size()).max(1);
        let hidden = elements.min(HIDDEN);
        Matrix {
            dtype,
            rows: elements / hidden,
            hidden,
        }
    }

    pub fn bytes(&self) -> usize {
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

    /// Makes its launches ready; `Err` says why there are none.
    pub fn prepare<B: NcclBackend>(&self, gemm: &Gemm<B>) -> Result<PreparedGemm<B>, String> {
        let provider = match B::KIND {
            BackendKind::Cuda => Provider::CublasLt,
            BackendKind::Host => Provider::Host,
        };
        let prepared = gemm.prepare(&self.gemm(B::KIND), provider);
        prepared.map_err(|error| error.to_string())
    }
}

/// The elements of operand `which`, which no message carries: those of a rank beyond the world.
fn constant(which: usize, world: usize) -> Input {
    Input::new(world + which, 0, world)
}

/// The operands of this rank that no message carries, and the GEMM.
pub(super) struct Local<B: NcclBackend> {
    matrix: Matrix,
    gemm: Rc<Gemm<B>>,
    /// Or why some rank has none.
    pub prepared: Result<PreparedGemm<B>, String>,
    residual: B::Memory,
    residual_out: B::Memory,
    weight: B::Memory,
    /// A, B and C.
    matrices: [B::Memory; 3],
}

impl<B: NcclBackend> Local<B> {
    pub fn new(
        session: &Session<B>,
        (gemm, prepared): (&Rc<Gemm<B>>, Result<PreparedGemm<B>, String>),
        matrix: Matrix,
    ) -> Result<Self> {
        let Matrix { dtype, hidden, .. } = matrix;
        let allocate = |elements: usize| session.backend.allocate(elements * dtype.size());
        let filled = |which, elements| {
            let numbers = constant(which, session.world());
            session.upload(&numbers.bytes(dtype, elements, session.threads()))
        };
        let (elements, problem) = (matrix.rows * hidden, matrix.gemm(B::KIND));
        Ok(Self {
            matrix,
            gemm: gemm.clone(),
            prepared,
            residual: filled(RESIDUAL, elements)?,
            residual_out: allocate(elements)?,
            weight: filled(WEIGHT, hidden)?,
            matrices: [
                filled(A, problem.a_len())?,
                filled(B_MATRIX, problem.b_len())?,
                allocate(problem.c_len())?,
            ],
        })
    }
}

/// What a row enqueues around its all-reduce.
pub(super) struct Layers<B: NcclBackend> {
    pub name: &'static str,
    pub reduce: Reduce,
    pub norm: Norm,
    /// [`LAYERS`] times, with a GEMM before each.
    pub has_gemms: bool,
    pub local: Rc<Local<B>>,
}

impl<B: NcclBackend> Layers<B> {
    /// Addition and norm of the message at `input`, one of the operands of `call`, to the output.
    pub fn add_rms_norm(&self, call: &Call, input: &Operand) -> AddRmsNorm<'_> {
        let Local { matrix, .. } = *self.local;
        // SAFETY: both are operands of the arena, of these bytes, which outlives the calls of a row.
        let slice = |at| unsafe { DeviceSlice::from_address(at, matrix.bytes()) };
        AddRmsNorm {
            dtype: matrix.dtype,
            hidden: matrix.hidden,
            epsilon: EPSILON,
            input: slice(input.address()),
            residual: DeviceSlice::of(&self.local.residual),
            weight: DeviceSlice::of(&self.local.weight),
            residual_out: DeviceSlice::of(&self.local.residual_out),
            normalized: Some(slice(call.output.address())),
            quantized: None,
        }
    }

    fn multiply(&self, row: &Row<'_, B>) -> Result<()> {
        let local = &self.local;
        let prepared = local.prepared.as_ref();
        let prepared = prepared.map_err(|reason| BenchError::Usage(reason.clone()))?;
        let [a, b, c] = local.matrices.each_ref().map(Memory::address);
        let (stream, operands) = (&row.session().stream, GemmOperands::new(a, b, c));
        // SAFETY: the operands are as long as the problem says and outlive the row, as the prepared GEMM
        // does; all its launches are on the session's stream.
        unsafe { local.gemm.launch(stream, prepared, operands)? };
        Ok(())
    }

    fn reduce(&self, row: &Row<'_, B>) -> Result<()> {
        let (stream, ours, call) = (&row.session().stream, &row.arena.libraries.ours, &row.call);
        match (self.reduce, self.norm, row.method) {
            (Reduce::Nothing, ..) => Ok(()),
            (_, Norm::None, _) => row.enqueue_call(),
            (_, Norm::Fused, Method::Ours(variant)) => {
                let norm = self.add_rms_norm(call, &call.input);
                Ok(ours.all_reduce_add_rms_norm_by(stream, &norm, variant)?)
            }
            (_, Norm::Separate | Norm::Fused, _) => {
                row.enqueue_call()?;
                Ok(ours.add_rms_norm(stream, &self.add_rms_norm(call, &call.output))?)
            }
        }
    }
}

impl<B: NcclBackend> Around<B> for Layers<B> {
    fn name(&self) -> &str {
        self.name
    }

    fn enqueue(&self, row: &Row<'_, B>) -> Result<()> {
        match self.has_gemms {
            false => self.reduce(row),
            true => (0..LAYERS).try_for_each(|_| {
                self.multiply(row)?;
                self.reduce(row)
            }),
        }
    }

    fn outputs(&self, call: &Call) -> Option<Vec<Output>> {
        let Local { matrix, .. } = *self.local;
        let output = |address| Output {
            address,
            bytes: matrix.bytes(),
            element: matrix.dtype.size(),
        };
        match (self.reduce, self.norm) {
            (Reduce::Nothing, _) => Some(Vec::new()),
            (_, Norm::None) => None,
            (_, Norm::Separate | Norm::Fused) => Some(vec![
                output(call.output.address()),
                output(self.local.residual_out.address()),
            ]),
        }
    }

    /// With a norm: the normalized rows, then the new residual, by the arithmetic of the host, which has the
    /// bits of the kernels.
    fn compare(
        &self,
        session: &Session<B>,
        output: usize,
        set: usize,
        got: &[u8],
    ) -> Option<Comparison> {
        if self.norm == Norm::None {
            return None;
        }
        let (world, Matrix { dtype, hidden, .. }) = (session.world(), self.local.matrix);
        let ranks: Vec<_> = (0..world).map(|r| Input::new(r, set, world)).collect();
        let [residual, weight] = [RESIDUAL, WEIGHT].map(|which| [constant(which, world)]);
        let weight = sums(&weight, 0, hidden);
        let expectation = Expectation::exact(dtype);
        let bytes = hidden * dtype.size();
        let share = share(got.len() / bytes, session.threads(), 1);
        let shares = on_threads(got.chunks(share * bytes).enumerate(), |(i, got)| {
            let rows = (i * share..).zip(got.chunks(bytes));
            let rows = rows.map(|(row, got)| {
                let at = row * hidden;
                let (x, residual) = (sums(&ranks, at, hidden), sums(&residual, at, hidden));
                let rows = add_rms_norm(dtype, [&x, &residual, &weight], EPSILON);
                let wanted = &rows[1 - output];
                expectation.compare((0, at), got, wanted, |_| 0.0)
            });
            rows.sum::<Comparison>()
        });
        Some(shares.into_iter().sum())
    }
}

/// The sums of the elements of `inputs` from `first` on.
fn sums(inputs: &[Input], first: usize, count: usize) -> Vec<f32> {
    let mut sums = vec![0.0; count];
    inputs.iter().for_each(|one| one.add(first, &mut sums));
    sums
}
