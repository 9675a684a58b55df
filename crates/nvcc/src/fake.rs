//! A compiler for tests: a shell script that writes what nvcc would.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An executable script at `path`.
///
/// Another process writes it: were it open for writing here, a child that another test forks meanwhile would hold it
/// open too, and the system refuses to run such a file.
pub(crate) fn script(path: &Path, body: &str) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    write!(install.stdin.take().unwrap(), "#!/bin/sh\n{body}\n").unwrap();
    assert!(install.wait().unwrap().success());
    path.to_owned()
}

/// A compiler of `release` that counts its compiles in `count` beside it, copies its source as the result and prints
/// `says`. The last argument is the source, the one before it the result. A source with `refuse` in it does not
/// compile, PTX with `bad assembly` in it does not assemble.
pub(crate) fn nvcc(path: &Path, release: &str, says: &str) -> PathBuf {
    let body = format!(
        r#"if [ "$1" = --version ]; then echo "Cuda compilation tools, release {release}, V{release}.88"; exit 0; fi
for last; do :; done
case "$last" in
    *.ptx) grep -q "bad assembly" "$last" && {{ echo "ptxas error: unknown instruction"; exit 255; }}
           while [ "$1" != -o ]; do shift; done; echo machine code > "$2"; exit 0 ;;
esac
echo compile >> "$(dirname "$0")/count"
while [ $# -gt 2 ]; do [ "$1" = -MF ] && dep="$2"; out="$2"; shift; done
out="$1"; src="$2"
grep -q refuse "$src" && {{ echo "$src(1): error: refused"; exit 2; }}
cat "$src" > "$out"
printf '%s: %s %s\n' "$out" "$src" "$(dirname "$src")/header.cuh" > "$dep"
printf '%s\n' "{says}""#
    );
    script(path, &body)
}
