//! The GEMMs of a plan: problems with their algorithms.

use warpweave_gemm::{GemmBackend, GemmBatch, GemmProblem, Layout, Scaling, cublaslt, sm90};
use warpweave_symm_mem::{BackendKind, DType, DeviceInfo};

use crate::execute::error::Result;
use crate::execute::{ExecuteBackend, Executor};
use crate::plan::{OpKind, Plan, Provider, Region, Scales, layout_of};
use crate::schedule::Schedule;

/// For each operation of a plan its GEMM, if it is one and not empty.
pub(in crate::execute) type Gemms<B> =
    Vec<Option<(GemmProblem, Provider, <B as GemmBackend>::PreparedGemm)>>;

/// What GEMMs of a plan are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::execute) struct Asked {
    pub batch_invariant: bool,
    pub constant_b: bool,
    pub fastest: bool,
}

impl Asked {
    /// By a schedule.
    pub fn by(schedule: &Schedule) -> Self {
        Asked {
            batch_invariant: schedule.is_batch_invariant(),
            constant_b: schedule.has_constant_b(),
            fastest: schedule.has_fastest_gemms(),
        }
    }
}

/// Prepares the GEMMs of a plan, in the order of the operations; `None` for other operations and empty GEMMs.
/// Nothing here is collective.
pub(in crate::execute) fn gemms<B: ExecuteBackend>(
    executor: &Executor<B>,
    plan: &Plan,
    asked: Asked,
) -> Result<Gemms<B>> {
    let gemm = |kind: &OpKind| {
        let Some((problem, planned)) = problem_of::<B>(plan, kind, asked) else {
            return Ok(None);
        };
        let gemm = executor.gemm();
        let backend = gemm.backend();
        let provider = provider_of(backend.device(), &problem, planned, asked);
        let planned = backend.prepare_gemm(gemm.handle(), &problem, provider)?;
        Ok(Some((problem, provider, planned)))
    };
    plan.ops.iter().map(|op| gemm(&op.kind)).collect()
}

/// Who provides the kernel where `planned` was to: this project has one where it is faster than cuBLASLt, or
/// where cuBLASLt has none.
fn provider_of(
    device: &DeviceInfo,
    problem: &GemmProblem,
    planned: Provider,
    asked: Asked,
) -> Provider {
    let is_faster = || asked.fastest && sm90::runs_few_rows(device, problem);
    let is_alone = || {
        cublaslt::check_extents(problem).is_err()
            && sm90::check_device(device).is_ok()
            && sm90::check_problem(problem).is_ok()
    };
    match planned {
        Provider::CublasLt if is_faster() || is_alone() => Provider::Sm90,
        _ => planned,
    }
}

/// The problem of a GEMM, and who provides its kernel; `None` for other operations and empty GEMMs.
///
/// The one place where GEMMs of plans become problems of `warpweave-gemm`.
fn problem_of<B: ExecuteBackend>(
    plan: &Plan,
    kind: &OpKind,
    Asked {
        batch_invariant,
        constant_b,
        ..
    }: Asked,
) -> Option<(GemmProblem, Provider)> {
    let OpKind::Gemm {
        a,
        b,
        c,
        bias,
        scales,
        activation,
        b_transposed,
        batch,
        provider: planned,
    } = kind
    else {
        return None;
    };
    if c.is_empty() || a.cols.is_empty() {
        return None;
    }
    let buffer = |region: &Region| &plan.buffers[region.buffer.0];
    let provider = match (B::KIND, planned) {
        (BackendKind::Host, _) => Provider::Host,
        // The one whose bits are those of the fused kernels.
        (BackendKind::Cuda, _) if batch_invariant && buffer(a).dtype != DType::F32 => {
            Provider::Sm90
        }
        (BackendKind::Cuda, provider) => *provider,
    };
    let scaling = scales
        .as_ref()
        .map_or(Scaling::None, |scales| scales.scaling);
    let problem = GemmProblem {
        m: c.rows.len(),
        n: activation.sums(c.cols.len()),
        k: a.cols.len(),
        dtype: buffer(a).dtype,
        out: buffer(c).dtype,
        scaling,
        block_scales: Scales::layout_for(scaling, *planned),
        a_layout: Layout::RowMajor,
        b_layout: layout_of(*b_transposed),
        lda: buffer(a).cols,
        ldb: buffer(b).cols,
        ldc: buffer(c).cols,
        bias: bias.is_some(),
        activation: *activation,
        batch_invariant,
        constant_b,
        // The strides of a single GEMM may be any.
        batch: match batch.count {
            1 => GemmBatch::ONE,
            count => GemmBatch {
                count,
                a_stride: batch.a_stride * buffer(a).cols,
                b_stride: 0,
                c_stride: batch.c_stride * buffer(c).cols,
            },
        },
    };
    Some((problem, provider))
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweave_symm_mem::{Backend, Host};

    #[test]
    fn what_cublaslt_has_no_algorithm_for_is_computed_by_the_kernel_that_can() {
        let of = |capability, (m, n, k), scaling| {
            let device = DeviceInfo {
                compute_capability: Some(capability),
                ..Host::new().device().clone()
            };
            let problem = GemmProblem::e4m3(m, n, k, scaling, DType::Bf16);
            provider_of(&device, &problem, Provider::CublasLt, Asked::default())
        };
        let hopper = (9, 0);
        assert_eq!(of(hopper, (5, 24, 48), Scaling::Row), Provider::Sm90);
        assert_eq!(of(hopper, (5, 32, 48), Scaling::Block), Provider::Sm90);
        assert_eq!(of(hopper, (5, 32, 48), Scaling::Row), Provider::CublasLt);
        // Neither can: cuBLASLt says why.
        assert_eq!(of(hopper, (5, 32, 40), Scaling::Row), Provider::CublasLt);
        assert_eq!(of((10, 0), (5, 24, 48), Scaling::Row), Provider::CublasLt);
    }
}
