//! Hands the device headers up to the crates that build kernels on them.

fn main() {
    let dir = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::metadata=include={dir}/cuda/include");
    println!("cargo::rerun-if-changed=cuda/include");
}
