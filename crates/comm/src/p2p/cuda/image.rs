//! The embedded device code and the names of its kernels.

use warpweave_symm_mem::cuda::Image;

use crate::p2p::Engine;

#[cfg(feature = "nvcc")]
pub(super) static COPY: Image = Image {
    name: "copy",
    sm_90a: include_bytes!(concat!(env!("OUT_DIR"), "/copy.sm_90a.cubin")),
    compute_80: concat!(
        include_str!(concat!(env!("OUT_DIR"), "/copy.compute_80.ptx")),
        "\0"
    )
    .as_bytes(),
};

#[cfg(not(feature = "nvcc"))]
pub(super) static COPY: Image = Image {
    name: "copy",
    sm_90a: &[],
    compute_80: &[],
};

#[cfg(feature = "nvcc")]
pub(super) static BULK_COPY: Image = Image {
    name: "bulk_copy",
    sm_90a: include_bytes!(concat!(env!("OUT_DIR"), "/bulk_copy.sm_90a.cubin")),
    compute_80: &[],
};

#[cfg(not(feature = "nvcc"))]
pub(super) static BULK_COPY: Image = Image {
    name: "bulk_copy",
    sm_90a: &[],
    compute_80: &[],
};

pub(super) const ANNOUNCE: &str = "announce";

/// Every kernel with the image that holds it.
pub(super) fn all() -> [(&'static Image, &'static str); 3] {
    [
        (&COPY, ANNOUNCE),
        (&COPY, Engine::Sm.kernel()),
        (&BULK_COPY, Engine::Bulk.kernel()),
    ]
}

#[cfg(all(test, feature = "nvcc"))]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_in_its_image() {
        for (image, name) in all() {
            let name = name.as_bytes();
            let known = image.sm_90a.windows(name.len()).any(|part| part == name);
            assert!(known, "{} of `{}`", name.escape_ascii(), image.name);
        }
    }
}
