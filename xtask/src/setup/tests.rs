use super::pins::CUTLASS;
use super::*;
use crate::process::tests::script;

fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().flatten();
    names
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// A folder with a Python whose pip is this shell script, which sees the folder to fill as `$target` and the
/// pins as `$list`, and with an empty toolchain.
fn with_pip(pip: &str) -> (tempfile::TempDir, PathBuf, Python) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("python");
    let body = format!(
        r#"case "$*" in
    *"pip install --require-hashes"*"--target "*" -r "*)
        while [ "$1" != --target ]; do shift; done; target="$2"; list="$4"; {pip} ;;
esac
"#
    );
    script(&path, &body);
    let toolchain = root.path().join("toolchain");
    fs::create_dir(&toolchain).unwrap();
    let python = Python::with_pip(vec![path]).unwrap();
    (root, toolchain, python)
}

/// The message of a download or a wheel that fails so.
fn failure(pip: &str) -> String {
    let (root, toolchain, python) = with_pip(&format!("cp $list ${{target%/*}}/../..; {pip}"));
    let pins = CUTLASS.requirements("x86_64").unwrap();
    let error = make(&toolchain, &CUTLASS, &pins, &python).unwrap_err();
    assert!(entries(&toolchain).is_empty(), "a failure leaves nothing");
    let list = fs::read_to_string(root.path().join("requirements.txt")).unwrap();
    assert_eq!(list, pins, "what pip was given");
    error.to_string()
}

#[test]
fn a_stamped_component_needs_nothing() {
    let root = tempfile::tempdir().unwrap();
    let there = root.path().join(CUTLASS.name);
    fs::create_dir(&there).unwrap();
    let pins = CUTLASS.requirements(std::env::consts::ARCH).unwrap();
    fs::write(there.join(STAMP), pins).unwrap();
    provide(root.path(), &[&CUTLASS]).unwrap();
    // Not even the lock was taken.
    assert_eq!(entries(root.path()), [CUTLASS.name]);
}

#[test]
fn a_component_is_made_of_what_pip_unpacks() {
    let files = "cutlass_library/source/include/cutlass/cutlass.h \
        cutlass_library/source/include/cute/tensor.hpp \
        cutlass_library/source/tools/util/include/cutlass/util/packed_stride.hpp \
        nvidia_cutlass-4.2.0.0.dist-info/licenses/LICENSE.txt";
    let pip = format!(
        "cd $target/.. && for file in {files}; do install -D /dev/null unpacked/$file; done"
    );
    let (_root, toolchain, python) = with_pip(&pip);
    // An older component is replaced.
    let made = toolchain.join(CUTLASS.name);
    fs::create_dir(&made).unwrap();
    fs::write(made.join("old"), "").unwrap();
    make(&toolchain, &CUTLASS, "the pins", &python).unwrap();
    // The staging folder is gone.
    assert_eq!(entries(&toolchain), [CUTLASS.name]);
    assert!(!made.join("old").exists());
    let licence = "licenses/nvidia_cutlass-4.2.0.0/LICENSE.txt";
    for file in CUTLASS.required.iter().chain(&[licence]) {
        assert!(made.join(file).is_file(), "{file}");
    }
    assert_eq!(fs::read_to_string(made.join(STAMP)).unwrap(), "the pins");
    // A wheel that lacks something is refused at once.
    let missing = "include/cute/tensor.hpp";
    let message = failure(&pip.replace(&format!("cutlass_library/source/{missing}"), ""));
    assert!(message.contains(missing), "{message}");
}

#[test]
fn a_failed_download_says_what_to_do() {
    let message = failure("exit 1");
    for cure in [
        "pip failed with exit status: 1",
        "check the network",
        "do not use it",
        "no space: 66 MB are needed",
        "WARPWEAVE_CUTLASS",
        "WARPWEAVE_NVCC",
    ] {
        assert!(message.contains(cure), "no `{cure}` in: {message}");
    }
}

#[test]
fn a_missing_python_and_a_missing_pip_differ() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("bare");
    script(&path, "case \"$*\" in *pip*) exit 1;; esac");
    for (program, expected) in [("absent", "no Python 3.8"), ("bare", "has no pip")] {
        let path = root.path().join(program);
        let message = Python::with_pip(vec![path]).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn what_a_killed_run_left_is_removed() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join(".staging-cuda-13.0-4711/unpacked")).unwrap();
    fs::create_dir_all(root.path().join("cuda-13.0")).unwrap();
    remove_stale(root.path()).unwrap();
    assert_eq!(entries(root.path()), ["cuda-13.0"]);
}
