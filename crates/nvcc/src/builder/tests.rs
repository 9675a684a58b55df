use std::fs;

use super::*;
use crate::fake;

struct Bench {
    root: tempfile::TempDir,
    environment: Environment,
}

fn bench(says: &str) -> Bench {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fake::nvcc(&at("cuda/bin/nvcc"), "13.0", says);
    fake::script(&at("bin/g++"), "exit 0");
    for folder in ["package/cuda", "target/debug/build/p-1/out"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::write(at("target/CACHEDIR.TAG"), "").unwrap();
    fs::write(at("package/cuda/x.cu"), "code").unwrap();
    fs::write(at("package/cuda/header.cuh"), "one").unwrap();
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let environment = Environment::empty()
        .with("WARPWEAVE_NVCC", at("cuda/bin/nvcc"))
        .with("PATH", path)
        .with("CARGO_MANIFEST_DIR", at("package"))
        .with("OUT_DIR", at("target/debug/build/p-1/out"));
    Bench { root, environment }
}

impl Bench {
    fn builder(&self) -> Builder {
        Builder::with_environment(self.environment.clone()).unwrap()
    }

    fn compiles(&self) -> usize {
        fs::read_to_string(self.root.path().join("cuda/bin/count")).unwrap_or_default().lines().count()
    }
}

#[test]
fn results_are_named_by_source_and_architecture() {
    let bench = bench("");
    let made = bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    assert!(made.ends_with("out/x.sm_90a.cubin"));
    assert_eq!(fs::read_to_string(made).unwrap(), "code");
    assert!(bench.builder().ptx("cuda/x.cu", "compute_80").unwrap().ends_with("out/x.compute_80.ptx"));
}

#[test]
fn an_unchanged_source_is_compiled_once() {
    let bench = bench("");
    bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    assert_eq!(bench.compiles(), 1);
    bench.builder().define("A", None).cubin("cuda/x.cu", "sm_90a").unwrap();
    assert_eq!(bench.compiles(), 2, "another option");
    fs::write(bench.root.path().join("package/cuda/header.cuh"), "two").unwrap();
    bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    assert_eq!(bench.compiles(), 3, "another header");
}

#[test]
fn one_output_is_built_once_a_script() {
    let builder = bench("");
    let builder = builder.builder();
    builder.cubin("cuda/x.cu", "sm_90a").unwrap();
    assert!(matches!(builder.cubin("cuda/x.cu", "sm_90a"), Err(Error::DuplicateOutput { .. })));
    builder.variant("again").cubin("cuda/x.cu", "sm_90a").unwrap();
}

#[test]
fn a_refusal_shows_what_the_compiler_said() {
    let bench = bench("");
    fs::write(bench.root.path().join("package/cuda/x.cu"), "refuse").unwrap();
    let error = bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap_err().to_string();
    assert!(error.contains("error: refused"), "{error}");
}

#[test]
fn serialised_wgmma_is_an_error_every_time() {
    let bench = bench("ptxas info : (C7510) Potential Performance Loss: wgmma");
    for _ in 0..2 {
        let error = bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap_err();
        assert!(matches!(error, Error::Degraded { code: "C7510", .. }), "{error}");
    }
}

#[test]
fn outside_a_build_script_the_variable_is_named() {
    let error = Builder::with_environment(Environment::empty()).unwrap_err().to_string();
    assert!(error.contains("CARGO_MANIFEST_DIR"), "{error}");
}
