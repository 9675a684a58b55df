//! Hands the device headers up to the crates that build kernels on them and, with the feature `nvcc`,
//! compiles the device code of signals.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::metadata=include={dir}/cuda/include");
    println!("cargo::rerun-if-changed=cuda/include");
    #[cfg(feature = "nvcc")]
    warpweave_nvcc::run(|| {
        let device = warpweave_nvcc::Builder::new()?.include("cuda/include");
        device.cubin("cuda/signal.cu", "sm_90a")?;
        device.ptx("cuda/signal.cu", "compute_80")?;
        Ok(())
    });
}
