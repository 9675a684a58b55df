//! Compiles the device code with the feature `nvcc`.

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    #[cfg(feature = "nvcc")]
    warpweave_nvcc::run(|| {
        let device = warpweave_nvcc::Builder::new()?.device_headers()?;
        device.cubin("cuda/transformer.cu", "sm_90a")?;
        device.ptx("cuda/transformer.cu", "compute_90")?;
        device.cubin("cuda/prompt.cu", "sm_90a")?;
        Ok(())
    });
}
