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
        fs::read_to_string(self.root.path().join("cuda/bin/count"))
            .unwrap_or_default()
            .lines()
            .count()
    }
}

#[test]
fn results_are_named_by_source_and_architecture() {
    let bench = bench("");
    let made = bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    assert!(made.ends_with("out/x.sm_90a.cubin"));
    assert_eq!(fs::read_to_string(made).unwrap(), "code");
    assert!(
        bench
            .builder()
            .ptx("cuda/x.cu", "compute_80")
            .unwrap()
            .ends_with("out/x.compute_80.ptx")
    );
}

#[test]
fn an_unchanged_source_is_compiled_once() {
    let bench = bench("");
    bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    assert_eq!(bench.compiles(), 1);
    bench
        .builder()
        .define("A", None)
        .cubin("cuda/x.cu", "sm_90a")
        .unwrap();
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
    assert!(matches!(
        builder.cubin("cuda/x.cu", "sm_90a"),
        Err(Error::DuplicateOutput { .. })
    ));
    builder
        .variant("again")
        .cubin("cuda/x.cu", "sm_90a")
        .unwrap();
}

#[test]
fn a_refusal_shows_what_the_compiler_said() {
    let bench = bench("");
    fs::write(bench.root.path().join("package/cuda/x.cu"), "refuse").unwrap();
    let error = bench
        .builder()
        .cubin("cuda/x.cu", "sm_90a")
        .unwrap_err()
        .to_string();
    assert!(error.contains("error: refused"), "{error}");
}

#[test]
fn serialised_wgmma_is_an_error_every_time() {
    let bench = bench("ptxas info : (C7510) Potential Performance Loss: wgmma");
    for _ in 0..2 {
        let error = bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap_err();
        assert!(
            matches!(&error, Error::Degraded { code, .. } if code == "C7510"),
            "{error}"
        );
    }
}

#[test]
fn outside_a_build_script_the_variable_is_named() {
    let error = Builder::with_environment(Environment::empty())
        .unwrap_err()
        .to_string();
    assert!(error.contains("CARGO_MANIFEST_DIR"), "{error}");
}

#[test]
fn inline_assembly_is_checked_although_nvcc_would_not() {
    let bench = bench("");
    fs::write(bench.root.path().join("package/cuda/x.cu"), "bad assembly").unwrap();
    let error = bench
        .builder()
        .ptx("cuda/x.cu", "compute_80")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("x.cu") && error.contains("unknown instruction"),
        "{error}"
    );
}

#[test]
fn options_that_nvcc_reads_itself_are_part_of_the_key() {
    let bench = bench("");
    bench.builder().cubin("cuda/x.cu", "sm_90a").unwrap();
    let environment = bench.environment.clone().with("NVCC_APPEND_FLAGS", "-G");
    Builder::with_environment(environment)
        .unwrap()
        .cubin("cuda/x.cu", "sm_90a")
        .unwrap();
    assert_eq!(bench.compiles(), 2);
}

#[test]
fn device_headers_come_from_the_crate_that_has_them() {
    let bench = bench("");
    let error = bench.builder().device_headers().unwrap_err().to_string();
    assert!(error.contains("warpweave-symm-mem"), "{error}");
    let environment = bench
        .environment
        .clone()
        .with("DEP_WARPWEAVE_SYMM_MEM_INCLUDE", "/elsewhere/include");
    let builder = Builder::with_environment(environment)
        .unwrap()
        .device_headers()
        .unwrap();
    assert_eq!(builder.include, [Path::new("/elsewhere/include")]);
}

#[test]
fn what_is_only_checked_has_fewer_instances_and_may_be_optimised_less() {
    let bench = bench("");
    for (set, defines, options) in [("0", vec![], vec![]), ("1", vec!["FEW"], vec!["-Ofc=max"])] {
        let environment = bench.environment.clone().with(CHECK, set);
        let builder = Builder::with_environment(environment).unwrap();
        assert!(builder.options.is_empty(), "sources that have wgmma");
        let builder = builder.quick_to_check();
        assert_eq!(builder.options, options);
        let named = |name: &str| (format!("WARPWEAVE_{name}_INSTANCES"), None);
        assert_eq!(
            builder.defines,
            defines.into_iter().map(named).collect::<Vec<_>>()
        );
    }
}

/// A package of four sources, and a toolkit that can link them.
fn library() -> (Bench, Vec<String>) {
    let bench = bench("");
    fs::create_dir_all(bench.root.path().join("cuda/lib64")).unwrap();
    fs::write(bench.root.path().join("cuda/lib64/libcudart_static.a"), "").unwrap();
    let sources: Vec<String> = (0..4).map(|index| format!("cuda/s{index}.cu")).collect();
    for source in &sources {
        fs::write(bench.root.path().join("package").join(source), source).unwrap();
    }
    (bench, sources)
}

#[test]
fn a_library_holds_an_object_of_each_source() {
    for jobs in ["1", "3"] {
        let (bench, sources) = library();
        let environment = bench.environment.clone().with("WARPWEAVE_NVCC_JOBS", jobs);
        let builder = Builder::with_environment(environment).unwrap();
        builder
            .static_library("kernels", &sources, "sm_90a")
            .unwrap();
        let archive = bench
            .root
            .path()
            .join("target/debug/build/p-1/out/libkernels.a");
        let listed = Command::new("ar").arg("t").arg(archive).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&listed.stdout),
            "s0.o\ns1.o\ns2.o\ns3.o\n"
        );
        assert_eq!(bench.compiles(), 4);
    }
}

#[test]
fn one_bad_source_fails_the_library_and_is_named() {
    let (bench, sources) = library();
    fs::write(bench.root.path().join("package/cuda/s1.cu"), "refuse").unwrap();
    let error = bench
        .builder()
        .static_library("kernels", &sources, "sm_90a")
        .unwrap_err();
    assert!(
        matches!(&error, Error::Compile { source_file, .. } if source_file.ends_with("cuda/s1.cu")),
        "{error}"
    );
    assert!(bench.compiles() <= 2, "what follows is not begun");
}

#[test]
fn a_toolkit_that_cannot_link_is_refused_before_the_long_compile() {
    let (bench, sources) = library();
    fs::remove_file(bench.root.path().join("cuda/lib64/libcudart_static.a")).unwrap();
    let error = bench
        .builder()
        .static_library("kernels", &sources, "sm_90a")
        .unwrap_err();
    assert!(matches!(error, Error::NoRuntimeLibrary { .. }), "{error}");
    assert_eq!(bench.compiles(), 0);
}
