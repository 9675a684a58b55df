//! Tests with the real compiler; the unit tests use a fake one.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use warpweave_nvcc::{Builder, Environment, Error, layout};

struct Package {
    root: tempfile::TempDir,
}

impl Package {
    /// A package with one source file.
    fn new(source: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["package/cuda", "target/debug/build/p-1/out"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        fs::write(root.path().join("target/CACHEDIR.TAG"), "").unwrap();
        fs::write(root.path().join("package/cuda/x.cu"), source).unwrap();
        Self { root }
    }

    fn builder(&self) -> Builder {
        // The toolchain of the workspace, whose target directory holds this test.
        let test = std::env::current_exe().unwrap();
        let target = layout::target_directory(&test).unwrap().to_owned();
        let environment = Environment::current()
            .with("CARGO_TARGET_DIR", target)
            .with("CARGO_MANIFEST_DIR", self.root.path().join("package"))
            .with("OUT_DIR", self.out());
        Builder::with_environment(environment).unwrap()
    }

    fn out(&self) -> PathBuf {
        self.root.path().join("target/debug/build/p-1/out")
    }
}

const SCALE: &str = r#"
    extern "C" __global__ void scale(float* x, float by, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] *= by;
    }
    int launch(float* x, int n) {
        scale<<<(n + 255) / 256, 256>>>(x, 2.0f, n);
        return (int)cudaGetLastError();
    }
"#;

#[test]
#[ignore = "needs an nvcc: cargo xtask setup"]
fn one_source_becomes_machine_code_ptx_and_a_library() {
    let package = Package::new(SCALE);
    let builder = package.builder();
    let cubin = fs::read(builder.cubin("cuda/x.cu", "sm_90a").unwrap()).unwrap();
    assert!(cubin.starts_with(b"\x7fELF"));
    let ptx = fs::read_to_string(builder.ptx("cuda/x.cu", "compute_80").unwrap()).unwrap();
    assert!(ptx.contains(".target sm_80") && ptx.contains(".entry scale"));
    builder
        .static_library("scale", &["cuda/x.cu"], "sm_90a")
        .unwrap();
    let symbols = Command::new("nm")
        .arg(package.out().join("libscale.a"))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&symbols.stdout).contains("launch"));
}

#[test]
#[ignore = "needs an nvcc: cargo xtask setup"]
fn a_mistake_in_inline_assembly_fails_the_build() {
    let package = Package::new(r#"__global__ void f() { asm volatile("no.such.instruction;"); }"#);
    let error = package
        .builder()
        .ptx("cuda/x.cu", "compute_80")
        .unwrap_err();
    assert!(matches!(error, Error::Compile { .. }), "{error}");
}

/// ptxas numbers each cause of serialised wgmma separately; this one is not the number of a missing NDEBUG.
#[test]
#[ignore = "needs an nvcc: cargo xtask setup"]
fn a_kernel_whose_wgmma_is_serialised_fails_the_build() {
    let package = Package::new(
        r#"
        __device__ __noinline__ float between(float x) { return x * x + 1.f; }
        __global__ void __launch_bounds__(128) f(float* out, unsigned long long a, unsigned long long b) {
            float d[4] = {};
            asm volatile("wgmma.fence.sync.aligned;");
            for (int i = 0; i < 4; i++) {
                asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
                d[0] = between(d[0]);
            }
            asm volatile("wgmma.commit_group.sync.aligned;");
            asm volatile("wgmma.wait_group.sync.aligned 0;");
            out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
        }"#,
    );
    let error = package.builder().cubin("cuda/x.cu", "sm_90a").unwrap_err();
    assert!(
        matches!(&error, Error::Degraded { meaning, .. } if meaning.starts_with("wgmma")),
        "{error}"
    );
}

#[test]
#[ignore = "needs an nvcc: cargo xtask setup"]
fn an_ignored_register_request_fails_the_build() {
    let package = Package::new(
        r#"__global__ void f() { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); }"#,
    );
    let error = package.builder().cubin("cuda/x.cu", "sm_90a").unwrap_err();
    assert!(
        matches!(&error, Error::Degraded { code, .. } if code == "C7508"),
        "{error}"
    );
}
