//! Where `cargo xtask setup` puts the pinned toolchain, and how a build finds it again.
//!
//! ```text
//! target/toolchain/cuda-13.0/{bin,nvvm,include,lib,lib64}
//! target/toolchain/cutlass-4.2/{include,tools/util/include}
//! target/toolchain/runtime/lib          (optional: NCCL and cuBLASLt)
//! target/toolchain/inspect/bin          (optional: cuobjdump and nvdisasm)
//! target/toolchain/link/lib             (for `cargo xtask ci --only candle`: what a project with candle
//! links)
//! ```

use std::path::{Path, PathBuf};

use crate::environment::Environment;
use crate::error::Rejection;
use crate::trust::distrust;

/// The toolchain's folder in the target directory.
pub const TOOLCHAIN: &str = "toolchain";
/// The compiler's folder in the toolchain.
pub const CUDA: &str = "cuda-13.0";
/// The CUTLASS headers' folder in the toolchain.
pub const CUTLASS: &str = "cutlass-4.2";
/// The run-time libraries' folder in the toolchain.
pub const RUNTIME: &str = "runtime";
/// The folder of the tools that take binaries apart.
pub const INSPECT: &str = "inspect";
/// The folder of the libraries that a project with candle links.
pub const LINK: &str = "link";

/// The cargo target directory that contains `path`: its nearest ancestor with the tag file that cargo writes
/// there.
pub fn target_directory(path: &Path) -> Option<&Path> {
    path.ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
}

/// Candidates for the toolchain of the enclosing workspace: next to the build output, then in `target/` of
/// every folder above the package. Folders that users other than the owner of the package may write are
/// rejected.
pub(crate) fn toolchains(environment: &Environment) -> (Vec<PathBuf>, Vec<Rejection>) {
    let package = environment.path("CARGO_MANIFEST_DIR");
    let (mut found, mut rejected) = (Vec::new(), Vec::<Rejection>::new());
    let mut add = |folder: PathBuf| {
        if !folder.is_dir() || found.contains(&folder) || rejected.iter().any(|r| r.path == folder)
        {
            return;
        }
        match distrust(&folder, package.as_deref().unwrap_or(Path::new("/"))) {
            None => found.push(folder),
            Some(reason) => rejected.push(Rejection {
                path: folder,
                reason,
            }),
        }
    };
    if let Some(out) = environment.path("OUT_DIR") {
        out.ancestors()
            .for_each(|folder| add(folder.join(TOOLCHAIN)));
    }
    if let Some(target) = environment.path("CARGO_TARGET_DIR") {
        add(target.join(TOOLCHAIN));
    }
    if let Some(package) = &package {
        package
            .ancestors()
            .for_each(|folder| add(folder.join("target").join(TOOLCHAIN)));
    }
    (found, rejected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_target_directory_is_the_tagged_one() {
        let root = tempfile::tempdir().unwrap();
        let target = root.path().join("elsewhere");
        let out = target.join("x86_64-unknown-linux-gnu/release/build/p-1/out");
        fs::create_dir_all(&out).unwrap();
        assert_eq!(target_directory(&out), None);
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        assert_eq!(target_directory(&out), Some(target.as_path()));
    }

    #[test]
    fn the_toolchain_beside_the_output_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("elsewhere/debug/build/p-1/out");
        let package = root.path().join("workspace/crates/p");
        let sibling = root.path().join("elsewhere/toolchain");
        let above = root.path().join("workspace/target/toolchain");
        for folder in [&out, &package, &sibling, &above] {
            fs::create_dir_all(folder).unwrap();
        }
        let environment = Environment::empty()
            .with("OUT_DIR", &out)
            .with("CARGO_MANIFEST_DIR", &package);
        assert_eq!(toolchains(&environment), (vec![sibling, above], vec![]));
    }

    #[test]
    fn a_toolchain_that_others_may_write_is_rejected() {
        use std::os::unix::fs::PermissionsExt;

        let root = tempfile::tempdir().unwrap();
        let shared = root.path().join("shared");
        let package = shared.join("job/package");
        let planted = shared.join("target/toolchain");
        for folder in [&package, &planted] {
            fs::create_dir_all(folder).unwrap();
        }
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&shared, everybody).unwrap();
        let environment = Environment::empty().with("CARGO_MANIFEST_DIR", &package);
        let (found, rejected) = toolchains(&environment);
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(rejected[0].path, planted);
        let compiler = crate::fake::nvcc(&planted.join(CUDA).join("bin/nvcc"), "13.0", "");
        let error = crate::Nvcc::find(&environment).unwrap_err().to_string();
        assert!(
            compiler.exists() && error.contains("can be written by everybody"),
            "{error}"
        );
    }
}
