//! The embedded device code and the names of its kernels.

use warpweave_symm_mem::cuda::Image;
use warpweave_symm_mem::device_image;

use crate::p2p::Engine;

pub(super) static COPY: Image = device_image!("copy", sm_90a, compute_80);
pub(super) static BULK_COPY: Image = device_image!("bulk_copy", sm_90a);

pub(super) const ANNOUNCE: &str = "transfer_signal";

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
            let known = image.sm_90a().windows(name.len()).any(|part| part == name);
            assert!(known, "{} of `{}`", name.escape_ascii(), image.name());
        }
    }
}
