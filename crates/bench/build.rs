//! Bakes the commit into the binary, so that a report can say what was measured.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=WARPWEAVE_COMMIT");
    let commit = std::env::var("WARPWEAVE_COMMIT").ok().or_else(commit);
    println!(
        "cargo::rustc-env=WARPWEAVE_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

/// The commit of the checkout, followed by `+` if tracked files differ; `None` outside of one.
fn commit() -> Option<String> {
    let hash = git(&["rev-parse", "--short=12", "HEAD"])?;
    for name in ["HEAD", "index"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // Whether files differ from the commit is asked again when the sources of any crate have changed.
    println!("cargo::rerun-if-changed=..");
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() {
        hash
    } else {
        format!("{hash}+")
    })
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    if !output.status.success() {
        return None;
    }
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
