//! Compiles the hand-written device code with the feature `nvcc`, and the static library of CUTLASS kernels
//! with the feature `cutlass`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "nvcc")]
    warpweave_nvcc::run(|| {
        println!("cargo::rerun-if-changed=cuda/sm90");
        let device = warpweave_nvcc::Builder::new()?.device_headers()?;
        device.cubin("cuda/sm90/plain.cu", "sm_90a")?;
        device.cubin("cuda/sm90/few_rows.cu", "sm_90a")?;
        device.cubin("cuda/sm90/all_gather.cu", "sm_90a")?;
        device.cubin("cuda/sm90/eager.cu", "sm_90a")?;
        device.cubin("cuda/sm90/reduction.cu", "sm_90a")?;
        device.cubin("cuda/sm90/multimem_reduction.cu", "sm_90a")?;
        device.cubin("cuda/sm90/one_shot.cu", "sm_90a")?;
        Ok(())
    });
    #[cfg(feature = "cutlass")]
    warpweave_nvcc::run(|| {
        // The slowest first: they are compiled side by side.
        let sources = [
            "waiting.cu",
            "pingpong.cu",
            "cooperative.cu",
            "stream_k.cu",
            "warpweave_cutlass.cu",
        ]
        .map(|source| format!("cuda/cutlass/{source}"));
        warpweave_nvcc::Builder::new()?
            .include("cuda/cutlass")
            .device_headers()?
            .cutlass()?
            .define("CUTLASS_ENABLE_GDC_FOR_SM90", Some("1"))
            .static_library("warpweave_cutlass", &sources, "sm_90a")
    });
}
