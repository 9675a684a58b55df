//! Compiles the device code with the feature `nvcc`.

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    #[cfg(feature = "nvcc")]
    warpweave_nvcc::run(|| {
        let device = warpweave_nvcc::Builder::new()?.device_headers()?;
        device.ptx("cuda/transformer.cu", "compute_90")?;
        Ok(())
    });
}
