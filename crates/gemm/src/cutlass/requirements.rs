//! What the kernels need of a problem and of a device.

use warpweave_symm_mem::{DType, DeviceInfo};

use crate::{Activation, Error, GemmProblem, Layout, Provider};

/// TMA addresses rows in units of 16 bytes.
const ALIGNMENT: usize = 16;

/// Bytes that the addresses of A, B and C must be multiples of.
pub const ADDRESS_ALIGNMENT: u64 = 16;

/// Whether the kernels can compute `problem`: a single GEMM without a bias, f16 or bf16 in and out,
/// row-major, and n, k and the leading dimensions multiples of 8. Any m will do.
pub fn check_problem(problem: &GemmProblem) -> Result<(), Error> {
    let provider = Provider::Cutlass;
    check_single(problem, provider)?;
    if problem.bias {
        let why = "there must be no bias: the epilogue stores the sums as they are".into();
        return unsupported(problem, provider, why);
    }
    if problem.activation != Activation::None {
        let why = "there must be no activation: the epilogue stores the sums as they are".into();
        return unsupported(problem, provider, why);
    }
    for (name, layout) in [("A", problem.a_layout), ("B", problem.b_layout)] {
        if layout != Layout::RowMajor {
            return unsupported(problem, provider, format!("{name} must be row-major"));
        }
    }
    check_rows(problem, provider, &[("n", problem.n), ("k", problem.k)])
}

/// Whether the kernels run on `device`. Code for `sm_90a` runs on compute capability 9.0 and on nothing older
/// or newer.
pub fn check_device(device: &DeviceInfo) -> Result<(), Error> {
    check_hopper(device, Provider::Cutlass)
}

/// A valid single GEMM, f16 or bf16 in and out.
pub(crate) fn check_single(problem: &GemmProblem, provider: Provider) -> Result<(), Error> {
    problem.validate()?;
    let unsupported = |requirement| unsupported(problem, provider, requirement);
    if problem.batch.count != 1 {
        return unsupported(format!(
            "there must be one GEMM, not a batch of {}: the kernels' plans describe one",
            problem.batch.count
        ));
    }
    if !matches!(problem.dtype, DType::F16 | DType::Bf16) {
        return unsupported(format!("inputs must be f16 or bf16, not {}", problem.dtype));
    }
    if problem.out != problem.dtype {
        return unsupported(format!(
            "C must be {} like A and B, not {}",
            problem.dtype, problem.out
        ));
    }
    Ok(())
}

/// Rows that TMA can address, and `extents` of whole 16 bytes.
pub(crate) fn check_rows(
    problem: &GemmProblem,
    provider: Provider,
    extents: &[(&str, usize)],
) -> Result<(), Error> {
    let (operands, c) = (
        ALIGNMENT / problem.dtype.size(),
        ALIGNMENT / problem.out.size(),
    );
    let rows = [
        ("lda", problem.lda, operands),
        ("ldb", problem.ldb, operands),
        ("ldc", problem.ldc, c),
    ];
    let extents = extents.iter().map(|&(name, extent)| (name, extent, c));
    for (name, extent, alignment) in extents.chain(rows) {
        if extent % alignment != 0 {
            let why = format!(
                "{name} = {extent} must be a multiple of {alignment}, because TMA needs rows of \
                 whole 16 bytes"
            );
            return unsupported(problem, provider, why);
        }
    }
    Ok(())
}

/// A device that runs code for `sm_90a`.
pub(crate) fn check_hopper(device: &DeviceInfo, provider: Provider) -> Result<(), Error> {
    let (major, minor) = device.compute_capability.unwrap_or((0, 0));
    if (major, minor) == (9, 0) {
        return Ok(());
    }
    Err(Error::Device {
        provider,
        needs: "compute capability 9.0 (Hopper)",
        name: device.name.clone(),
        major,
        minor,
    })
}

pub(crate) fn unsupported<T>(
    problem: &GemmProblem,
    provider: Provider,
    requirement: String,
) -> Result<T, Error> {
    Err(Error::Unsupported {
        provider,
        problem: Box::new(*problem),
        requirement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GemmBatch;
    use warpweave_symm_mem::{Backend, Host};

    #[test]
    fn ragged_multiples_of_eight_are_served() {
        check_problem(&GemmProblem::new(1028, 1160, 1032, DType::Bf16)).unwrap();
        check_problem(&GemmProblem::new(1, 8, 8, DType::F16)).unwrap();
    }

    #[test]
    fn refusals_name_the_requirement() {
        let p = GemmProblem::new(16, 16, 16, DType::F16);
        let cases = [
            (
                GemmProblem::new(16, 20, 16, DType::F16),
                "n = 20 must be a multiple of 8",
            ),
            (GemmProblem::new(16, 16, 12, DType::F16), "k = 12"),
            (p.with_bias(), "no bias"),
            (p.with_activation(Activation::SwiGlu), "no activation"),
            (
                p.with_batch(GemmBatch {
                    count: 2,
                    a_stride: 256,
                    b_stride: 0,
                    c_stride: 256,
                }),
                "not a batch of 2",
            ),
            (p.with_leading_dimensions(20, 16, 16), "lda = 20"),
            (p.with_output(DType::F32), "C must be f16"),
            (
                p.with_layouts(Layout::RowMajor, Layout::Transposed),
                "B must be row-major",
            ),
            (GemmProblem::new(16, 16, 16, DType::F32), "not f32"),
        ];
        for (problem, needle) in cases {
            let error = check_problem(&problem).unwrap_err();
            assert!(matches!(
                error,
                Error::Unsupported {
                    provider: Provider::Cutlass,
                    ..
                }
            ));
            assert!(error.to_string().contains(needle), "{error}");
        }
    }

    #[test]
    fn other_devices_are_named() {
        let mut device = Host::new().device().clone();
        for (name, capability) in [("NVIDIA A100-SXM4-80GB", (8, 0)), ("NVIDIA B200", (10, 0))] {
            device.name = name.into();
            device.compute_capability = Some(capability);
            let text = check_device(&device).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("9.0"), "{text}");
        }
        device.compute_capability = Some((9, 0));
        check_device(&device).unwrap();
    }
}
