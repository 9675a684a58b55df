//! Compiles the device code with the feature `nvcc`.

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    #[cfg(feature = "nvcc")]
    warpweave_nvcc::run(|| {
        let device = warpweave_nvcc::Builder::new()?.device_headers()?;
        device.cubin("cuda/rotate.cu", "sm_90a")?;
        device.ptx("cuda/rotate.cu", "compute_80")?;
        Ok(())
    });
}
