//! Instructions from a build script to cargo.

use std::process::exit;

use crate::error::Result;

/// Runs a build step. Reports its error through cargo and ends the build script.
pub fn run(build: impl FnOnce() -> Result<()>) {
    if let Err(error) = build() {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        exit(1);
    }
}

pub(crate) fn warning(line: &str) {
    println!("cargo::warning={line}");
}

pub(crate) fn rerun_if_changed(path: &std::path::Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}

pub(crate) fn rerun_if_env_changed(name: &str) {
    println!("cargo::rerun-if-env-changed={name}");
}

pub(crate) fn link_search(folder: &std::path::Path) {
    println!("cargo::rustc-link-search=native={}", folder.display());
}

pub(crate) fn link_static(name: &str) {
    println!("cargo::rustc-link-lib=static={name}");
}

pub(crate) fn link_shared(name: &str) {
    println!("cargo::rustc-link-lib=dylib={name}");
}
