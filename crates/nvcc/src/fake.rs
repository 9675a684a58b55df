//! A compiler for tests: a shell script that writes what nvcc would.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An executable script at `path`.
pub(crate) fn script(path: &Path, body: &str) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
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
