//! What the kernel needs of a problem and of a device.

use warpweave_symm_mem::{DType, DeviceInfo};

use super::RANKS;
use crate::cutlass::{check_hopper, check_rows, check_single, unsupported};
use crate::matmul_reduce::ReduceOutput;
use crate::{Error, GemmProblem, Layout, MatmulReduce, Provider};

/// Whether the kernel can compute `problem`: a single GEMM, with a bias and an activation or without, A
/// row-major, n a multiple of 8, and rows of whole 16 bytes; f16 or bf16 in and out, B row-major or
/// transposed; or e4m3 in and f16 or bf16 out, B transposed. Any m and k will do: TMA loads end with an
/// element, its stores with 16 bytes, so that those of another n would write zeros after the rows of C.
///
/// # Errors
/// [`Error::InvalidProblem`]; [`Error::Unsupported`], which says what is needed.
pub fn check_problem(problem: &GemmProblem) -> Result<(), Error> {
    let unsupported = |why: String| unsupported(problem, Provider::Sm90, why);
    match problem.dtype {
        DType::E4m3 => {
            problem.validate()?;
            if problem.b_layout != Layout::Transposed {
                return unsupported("B of e4m3 must be transposed".into());
            }
            if problem.out == DType::F32 {
                return unsupported("C of e4m3 operands must be f16 or bf16, not f32".into());
            }
        }
        _ => check_single(problem, Provider::Sm90)?,
    }
    if problem.a_layout != Layout::RowMajor {
        return unsupported("A must be row-major".into());
    }
    check_rows(problem, Provider::Sm90, &[("n", problem.n)])
}

/// Whether the kernel can compute `gemm`: what [`check_problem`] says, a part of K, eight ranks at most, and
/// groups of whole tiles.
pub(super) fn check_reduction(gemm: &MatmulReduce) -> Result<(), Error> {
    let problem = &gemm.problem;
    if problem.k == 0 {
        let why = "this rank must have a part of K".into();
        return unsupported(problem, Provider::Sm90, why);
    }
    check_problem(problem)?;
    let world = gemm.world;
    if world > RANKS {
        let why = format!("there must be {RANKS} ranks at most, not {world}");
        return unsupported(problem, Provider::Sm90, why);
    }
    let row = gemm.row_bytes();
    if row > u32::MAX as usize {
        let why = format!("rows of C must be shorter than 4 GiB, not {row}");
        return unsupported(problem, Provider::Sm90, why);
    }
    let rows = gemm.group_rows;
    let is_grouped = gemm.c != ReduceOutput::Each;
    if is_grouped && !rows.is_multiple_of(128) {
        let why = format!("groups of {rows} rows must be of a multiple of 128, whole tiles");
        return unsupported(problem, Provider::Sm90, why);
    }
    Ok(())
}

/// Whether `device` has the multicast that `gemm` needs, which the guard must allow: asked before anything is
/// created.
///
/// # Errors
/// [`Error::Memory`], with what the guard says.
pub(super) fn check_multicast(device: &DeviceInfo, gemm: &MatmulReduce) -> Result<(), Error> {
    match gemm.c {
        ReduceOutput::Multimem => Ok(device.multicast.require("multicast")?),
        _ => Ok(()),
    }
}

/// Whether the kernel runs on `device`: compute capability 9.0 and no other.
///
/// # Errors
/// [`Error::Device`].
pub fn check_device(device: &DeviceInfo) -> Result<(), Error> {
    check_hopper(device, Provider::Sm90)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scaling;
    use crate::matmul_reduce::tests::gemm;
    use warpweave_symm_mem::{Backend, Host, Support, multicast};

    #[test]
    fn multimem_needs_the_word_of_the_guard() {
        let refused = multicast::guard(|_| None).unwrap_err();
        let device = |multicast| DeviceInfo {
            multicast,
            ..Host::new().device().clone()
        };
        let mut gemm = gemm(64, (0, 2), 128);
        check_multicast(&device(Support::No(refused.clone())), &gemm).unwrap();
        gemm.c = ReduceOutput::Multimem;
        check_multicast(&device(Support::Yes), &gemm).unwrap();
        let error = check_multicast(&device(Support::No(refused)), &gemm).unwrap_err();
        assert!(
            error.to_string().contains("set WARPWEAVE_MULTICAST=1"),
            "{error}"
        );
        assert!(matches!(error, Error::Memory(_)), "{error}");
    }

    #[test]
    fn rows_are_aligned_and_extents_are_free() {
        let ragged = GemmProblem::new(5, 16, 21, DType::Bf16).with_leading_dimensions(24, 16, 16);
        check_problem(&ragged).unwrap();
        let transposed = GemmProblem::new(7, 8, 17, DType::F16)
            .with_layouts(Layout::RowMajor, Layout::Transposed)
            .with_leading_dimensions(24, 24, 16);
        check_problem(&transposed).unwrap();
    }

    #[test]
    fn refusals_name_the_requirement() {
        let p = GemmProblem::new(16, 16, 16, DType::F16);
        let e4m3 = GemmProblem::e4m3(16, 16, 16, Scaling::Row, DType::Bf16);
        check_problem(&e4m3).unwrap();
        let cases = [
            (p.with_leading_dimensions(16, 20, 16), "ldb = 20"),
            (
                GemmProblem::new(16, 9, 16, DType::F16).with_leading_dimensions(16, 16, 16),
                "n = 9",
            ),
            (
                p.with_layouts(Layout::Transposed, Layout::RowMajor),
                "A must be row-major",
            ),
            (p.with_output(DType::F32), "C must be f16"),
            (e4m3.with_output(DType::F32), "C of e4m3 operands"),
            (
                e4m3.with_layouts(Layout::RowMajor, Layout::RowMajor),
                "B of e4m3 must be transposed",
            ),
            (e4m3.with_leading_dimensions(24, 16, 16), "lda = 24"),
        ];
        for (problem, needle) in cases {
            let error = check_problem(&problem).unwrap_err().to_string();
            assert!(
                error.starts_with("sm90 ") && error.contains(needle),
                "{error}"
            );
        }
    }

    #[test]
    fn the_host_is_no_hopper() {
        let error = check_device(Host::new().device()).unwrap_err();
        assert!(matches!(
            error,
            Error::Device {
                provider: Provider::Sm90,
                ..
            }
        ));
    }
}
