//! Builds the static library of CUTLASS kernels, behind the feature `cutlass`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
