use super::*;
use crate::fake;

#[test]
fn the_search_follows_its_order() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let named = fake::nvcc(&at("named/nvcc"), "13.0", "");
    let workspace = fake::nvcc(&at("target/toolchain/cuda-13.0/bin/nvcc"), "13.0", "");
    let home = fake::nvcc(&at("home/bin/nvcc"), "12.9", "");
    let in_path = fake::nvcc(&at("path/nvcc"), "12.8", "");
    let path_only = Environment::empty().with("PATH", in_path.parent().unwrap());
    let with_home = path_only.clone().with("CUDA_HOME", at("home"));
    let with_workspace = with_home.clone().with("CARGO_TARGET_DIR", at("target"));
    let with_name = with_workspace.clone().with("WARPWEAVE_NVCC", &named);
    for (environment, path, origin) in [
        (path_only, in_path, Origin::Path),
        (with_home, home, Origin::CudaHome),
        (with_workspace, workspace, Origin::Workspace),
        (with_name, named, Origin::Named),
    ] {
        let found = Nvcc::find(&environment).unwrap();
        assert_eq!((found.path, found.origin), (path, origin));
    }
}

#[test]
fn an_unsuitable_compiler_is_passed_over_unless_it_was_named() {
    let root = tempfile::tempdir().unwrap();
    let old = fake::nvcc(&root.path().join("old/bin/nvcc"), "11.8", "");
    let good = fake::nvcc(&root.path().join("good/nvcc"), "13.0", "");
    let environment = Environment::empty()
        .with("CUDA_HOME", root.path().join("old"))
        .with("PATH", good.parent().unwrap());
    assert_eq!(Nvcc::find(&environment).unwrap().path, good);
    let error = Nvcc::find(&environment.with("WARPWEAVE_NVCC", &old))
        .unwrap_err()
        .to_string();
    assert!(error.contains("11.8 is older than"), "{error}");
}

#[test]
fn a_newer_compiler_needs_consent() {
    let root = tempfile::tempdir().unwrap();
    let newer = fake::nvcc(&root.path().join("nvcc"), "13.4", "");
    let environment = Environment::empty().with("WARPWEAVE_NVCC", &newer);
    let error = Nvcc::find(&environment).unwrap_err().to_string();
    assert!(error.contains("WARPWEAVE_ALLOW_NEWER_NVCC"), "{error}");
    assert!(Nvcc::find(&environment.with("WARPWEAVE_ALLOW_NEWER_NVCC", "1")).is_ok());
}

#[test]
fn what_is_missing_is_named() {
    let root = tempfile::tempdir().unwrap();
    let empty = Environment::empty().with("PATH", root.path());
    let error = HostCompiler::find(&empty).unwrap_err().to_string();
    assert!(
        error.contains("g++") && error.contains("clang++"),
        "{error}"
    );
    let error = Cutlass::find(&empty.with("WARPWEAVE_CUTLASS", root.path()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("include/cutlass/cutlass.h"), "{error}");
}

#[test]
fn cutlass_is_found_by_its_root_or_its_headers() {
    let root = tempfile::tempdir().unwrap();
    let include = root.path().join("include");
    std::fs::create_dir_all(include.join("cutlass")).unwrap();
    std::fs::create_dir_all(root.path().join("tools/util/include")).unwrap();
    std::fs::write(include.join("cutlass/cutlass.h"), "").unwrap();
    for named in [root.path(), &include] {
        let found = Cutlass::find(&Environment::empty().with("WARPWEAVE_CUTLASS", named)).unwrap();
        assert_eq!(
            found.include,
            [include.clone(), root.path().join("tools/util/include")]
        );
    }
}
