//! A fake compiler for tests: a shell script that writes output like nvcc's.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes an executable script to `path`.
///
/// Another process writes it: if this one did, a child that another test forks meanwhile would also hold it
/// open for writing, and the system refuses to run such a file.
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

/// A fake compiler of `release`. It counts its compiles in the file `count` next to it, copies its source as
/// the result and prints `output`. The last argument is the source, the one before it the result. A source
/// that contains `refuse` does not compile; PTX that contains `bad assembly` does not assemble.
pub(crate) fn nvcc(path: &Path, release: &str, output: &str) -> PathBuf {
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
printf '%s\n' "{output}""#
    );
    script(path, &body)
}
