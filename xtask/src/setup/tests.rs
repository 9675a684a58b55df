use std::io::Write;
use std::process::{Command, Stdio};

use super::pins::CUTLASS;
use super::*;

fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = names
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// An executable script. Another process writes it: were it open for writing here, a child that another test
/// forks meanwhile would hold it open too, and the system refuses to run such a file.
pub(crate) fn script(path: &Path, body: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write!(install.stdin.take().unwrap(), "#!/bin/sh\n{body}\n").unwrap();
    assert!(install.wait().unwrap().success());
}

/// A Python whose pip does what `pip` says, as a shell script that sees the folder to fill as `$target` and the pins as `$list`.
fn python(folder: &Path, pip: &str) -> Python {
    let path = folder.join("python");
    let body = format!(
        r#"case "$*" in
    *"pip install --require-hashes"*"--target "*" -r "*)
        while [ "$1" != --target ]; do shift; done; target="$2"; list="$4"; {pip} ;;
esac
"#
    );
    script(&path, &body);
    Python::first([path.into()]).unwrap()
}

fn make_with(pip: &str) -> (tempfile::TempDir, Result<()>) {
    let root = tempfile::tempdir().unwrap();
    let python = python(root.path(), pip);
    let toolchain = root.path().join("toolchain");
    fs::create_dir(&toolchain).unwrap();
    let pins = CUTLASS.requirements("x86_64").unwrap();
    let made = make(&toolchain, &CUTLASS, &pins, &python);
    assert!(entries(&toolchain).is_empty(), "a failure leaves nothing");
    (root, made)
}

#[test]
fn a_stamped_component_needs_nothing() {
    let root = tempfile::tempdir().unwrap();
    let there = root.path().join(CUTLASS.name);
    fs::create_dir(&there).unwrap();
    let pins = CUTLASS.requirements(std::env::consts::ARCH).unwrap();
    fs::write(there.join(STAMP), pins).unwrap();
    let provided = provide(root.path(), &[&CUTLASS], false).unwrap();
    assert!(!provided[0].is_new && provided[0].folder == there);
    assert_eq!(
        entries(root.path()),
        [CUTLASS.name],
        "not even the lock was taken"
    );
}

#[test]
fn a_wheel_that_is_not_the_pinned_one_is_refused() {
    let (_root, made) = make_with(
        "cat $list >&2; echo 'THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE' >&2; exit 1",
    );
    let error = made.unwrap_err();
    assert!(matches!(error, Error::Download { .. }), "{error}");
    let text = error.to_string();
    let expected = CUTLASS.wheels[0].sha256("x86_64").unwrap();
    assert!(
        text.contains(expected) && text.contains("do not use it"),
        "{text}"
    );
}

#[test]
fn a_component_is_made_of_what_pip_unpacks() {
    let files = "cutlass_library/source/include/cutlass/cutlass.h cutlass_library/source/include/cute/tensor.hpp \
        cutlass_library/source/tools/util/include/cutlass/util/packed_stride.hpp \
        nvidia_cutlass-4.2.0.0.dist-info/licenses/LICENSE.txt";
    let pip = format!(
        "cd $target/.. && for file in {files}; do install -D /dev/null unpacked/$file; done"
    );
    let root = tempfile::tempdir().unwrap();
    let python = python(root.path(), &pip);
    let toolchain = root.path().join("toolchain");
    fs::create_dir(&toolchain).unwrap();
    make(&toolchain, &CUTLASS, "the pins", &python).unwrap();
    assert_eq!(
        entries(&toolchain),
        [CUTLASS.name],
        "the staging folder is gone"
    );
    let made = toolchain.join(CUTLASS.name);
    for file in CUTLASS
        .required
        .iter()
        .chain(&["licenses/nvidia_cutlass-4.2.0.0/LICENSE.txt"])
    {
        assert!(made.join(file).is_file(), "{file}");
    }
    assert_eq!(fs::read_to_string(made.join(STAMP)).unwrap(), "the pins");
    // A wheel that lacks something is told at once.
    let fewer = pip.replace("cutlass_library/source/include/cute/tensor.hpp", "");
    let (_root, made) = make_with(&fewer);
    assert!(
        made.unwrap_err()
            .to_string()
            .contains("include/cute/tensor.hpp")
    );
}

#[test]
fn a_download_without_network_says_what_else_to_do() {
    let (_root, made) = make_with("echo 'Max retries exceeded' >&2; exit 1");
    let text = made.unwrap_err().to_string();
    for word in ["network", "WARPWEAVE_CUTLASS", "WARPWEAVE_NVCC"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_full_disk_is_named() {
    let (_root, made) = make_with("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1");
    assert!(matches!(made, Err(Error::ToolchainSpace { .. })));
}

#[test]
fn a_missing_python_and_a_missing_pip_differ() {
    let root = tempfile::tempdir().unwrap();
    let absent = root.path().join("absent");
    assert!(matches!(
        Python::first([absent.into()]),
        Err(Error::NoPython { .. })
    ));
    let path = root.path().join("bare");
    script(&path, "case \"$*\" in *pip*) exit 1;; esac");
    assert!(matches!(
        Python::first([path.into()]),
        Err(Error::NoPip { .. })
    ));
}

#[test]
fn a_newer_component_takes_the_older_ones_place() {
    let root = tempfile::tempdir().unwrap();
    let (ready, place) = (root.path().join("staging/ready"), root.path().join("cuda"));
    for (folder, text) in [(&ready, "new"), (&place, "old")] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("file"), text).unwrap();
    }
    put_in_place(&ready, &place).unwrap();
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "new");
}

#[test]
fn what_a_killed_run_left_is_removed() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join(".staging-cuda-13.0-4711/unpacked")).unwrap();
    fs::create_dir_all(root.path().join("cuda-13.0")).unwrap();
    remove_stale(root.path()).unwrap();
    assert_eq!(entries(root.path()), ["cuda-13.0"]);
}
