//! Compiles the device code of transports and collectives with the feature `nvcc`.

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    #[cfg(feature = "nvcc")]
    warpweave_nvcc::run(|| {
        let signals = std::env::var("DEP_WARPWEAVE_SYMM_MEM_INCLUDE")
            .expect("warpweave-symm-mem says where its device headers are");
        let device = warpweave_nvcc::Builder::new()?
            .quick_to_check()
            .include(signals)
            .include("cuda");
        for source in [
            "packets",
            "sentinel",
            "direct",
            "push_reduce",
            "scatter_all_gather",
            "norm",
            "sentinel_norm",
            "copy",
        ] {
            device.cubin(format!("cuda/{source}.cu"), "sm_90a")?;
            device.ptx(format!("cuda/{source}.cu"), "compute_80")?;
        }
        for source in ["bulk", "bulk_copy", "multimem", "norm_stream"] {
            device.cubin(format!("cuda/{source}.cu"), "sm_90a")?;
        }
        Ok(())
    });
}
