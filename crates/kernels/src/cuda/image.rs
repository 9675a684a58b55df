//! The embedded device code and the names of its kernels.

use warpweave_symm_mem::cuda::Image;
use warpweave_symm_mem::{DType, device_image, kernel_name};

pub(super) static NAIVE_REMOTE_READ: Image = device_image!("naive_remote_read", sm_90a, compute_80);
pub(super) static THREADLOAD_GATHER: Image = device_image!("threadload_gather", sm_90a, compute_80);
pub(super) static SUM: Image = device_image!("sum", sm_90a, compute_80);
pub(super) static MULTIMEM_GATHER: Image = device_image!("multimem_gather", sm_90a);

pub(super) fn naive_remote_read(dtype: DType) -> &'static str {
    kernel_name!(dtype, "naive_remote_read", "")
}

pub(super) fn sum(dtype: DType) -> &'static str {
    kernel_name!(dtype, "sum", "")
}

pub(super) fn threadload_gather_matmul(dtype: DType, chunk: usize) -> &'static str {
    match chunk {
        8 => kernel_name!(dtype, "threadload_gather_matmul", "_8"),
        _ => kernel_name!(dtype, "threadload_gather_matmul", "_16"),
    }
}

pub(super) fn multimem_gather_matmul(dtype: DType, chunk: usize) -> &'static str {
    match chunk {
        8 => kernel_name!(dtype, "multimem_gather_matmul", "_8"),
        _ => kernel_name!(dtype, "multimem_gather_matmul", "_16"),
    }
}

pub(super) fn multimem_gather(dtype: DType) -> &'static str {
    match dtype.size() {
        4 => "multimem_gather_32bit",
        _ => "multimem_gather_16bit",
    }
}

/// Every kernel with its image.
pub(super) fn all() -> impl Iterator<Item = (&'static Image, &'static str)> {
    let typed = DType::ARITHMETIC.into_iter().flat_map(|dtype| {
        let alone = [
            (&NAIVE_REMOTE_READ, naive_remote_read(dtype)),
            (&SUM, sum(dtype)),
        ];
        let chunks = super::CHUNKS.into_iter().flat_map(move |chunk| {
            [
                (&THREADLOAD_GATHER, threadload_gather_matmul(dtype, chunk)),
                (&MULTIMEM_GATHER, multimem_gather_matmul(dtype, chunk)),
            ]
        });
        alone.into_iter().chain(chunks)
    });
    let gathers = [
        (&THREADLOAD_GATHER, THREADLOAD_GATHER.name()),
        (&MULTIMEM_GATHER, multimem_gather(DType::F32)),
        (&MULTIMEM_GATHER, multimem_gather(DType::F16)),
    ];
    typed.chain(gathers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_the_device_code_is_preloaded() {
        let mut names: Vec<_> = all().map(|(_, name)| name).collect();
        names.sort_unstable();
        names.dedup();
        // Three naive reads, three reductions, two gathers with a GEMM in two chunk sizes for three types,
        // three gathers without a GEMM.
        assert_eq!(names.len(), 3 + 3 + 2 * 2 * 3 + 3, "{names:?}");
        #[cfg(feature = "nvcc")]
        for (image, name) in all() {
            let name = name.as_bytes();
            let known = image.sm_90a().windows(name.len()).any(|part| part == name);
            assert!(known, "{} of `{}`", name.escape_ascii(), image.name());
        }
    }
}
