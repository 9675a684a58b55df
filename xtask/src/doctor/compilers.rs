//! The compilers of the programs and of the device code.

use std::path::Path;

use warpweave_nvcc::{Cutlass, Environment, Error, HostCompiler, NEWEST, Nvcc};

use super::{Answer, Finding, State, Use, doubtful, missing, present};
use crate::process;
use crate::setup::Python;

/// Rust; nvcc and what it needs; Python, with which `cargo xtask setup` downloads them.
pub fn examine(target: &Path) -> Vec<Finding> {
    // What a build script would find whose output is in this target directory.
    let environment = Environment::current().with("CARGO_TARGET_DIR", target);
    let (nvcc, cutlass) = (nvcc(&environment), cutlass(&environment));
    // Only setup uses Python.
    let setup = match nvcc.state == State::Missing || cutlass.state == State::Missing {
        true => Use::DeviceCode,
        false => Use::Optional,
    };
    vec![
        ("rustc", Use::Build, rustc()),
        ("nvcc", Use::DeviceCode, nvcc),
        ("CUTLASS", Use::DeviceCode, cutlass),
        ("C++ compiler", Use::DeviceCode, host_compiler(&environment)),
        ("python, pip", setup, python()),
    ]
}

fn rustc() -> Answer {
    match process::first_line("rustc", &["--version"]) {
        Some(version) => present(version),
        None => missing("not in PATH", "install Rust from https://rustup.rs"),
    }
}

fn nvcc(environment: &Environment) -> Answer {
    Nvcc::find(environment).map_or_else(refused, |found| {
        let path = found.path.display();
        let text = format!("{} at {path} ({})", found.version, found.origin);
        if found.version > NEWEST {
            let advice = "every machine that runs its code needs a driver newer than branch 580";
            return doubtful(text, format!("newer than {NEWEST}: {advice}"));
        }
        if found.library_directory().is_none() {
            let advice = "it came without libcudart_static.a, which the feature `cutlass` links: run \
                `cargo xtask setup`";
            return doubtful(text, advice);
        }
        present(text)
    })
}

fn cutlass(environment: &Environment) -> Answer {
    Cutlass::find(environment).map_or_else(refused, |found| {
        let folder = found.include.first().cloned().unwrap_or_default();
        present(format!("{} ({})", folder.display(), found.origin))
    })
}

fn host_compiler(environment: &Environment) -> Answer {
    HostCompiler::find(environment).map_or_else(refused, |found| {
        let version = process::first_line(&found.path, &["--version"]);
        let version = version.unwrap_or_else(|| "version unknown".into());
        present(format!("{version} at {}", found.path.display()))
    })
}

/// The error's message: what is wrong, and in its last line what to do.
fn refused(error: Error) -> Answer {
    let text = error.to_string();
    let split = text.trim_end().rsplit_once('\n');
    let (found, advice) = split.unwrap_or((&text, "run `cargo xtask setup`"));
    let found: Vec<&str> = found.lines().map(str::trim).collect();
    missing(found.join("; "), advice)
}

fn python() -> Answer {
    match Python::with_pip(Python::candidates()) {
        Ok(python) => {
            let version = process::first_line(&python.0, &["-m", "pip", "--version"]);
            let version = version.unwrap_or_default();
            // pip prints its folder and its Python as well: "pip 23.2 from … (python 3.11)".
            let brief = version.split(" from ").next().unwrap_or_default();
            present(format!("{} with {brief}", python.0.display()))
        }
        Err(error) => {
            let text = error.to_string();
            // The other lines say what to do without the toolchain.
            let line = text.lines().next().unwrap_or_default();
            let split = line.split_once(": ");
            let (found, advice) = split.unwrap_or((line, "install python3 with pip"));
            let advice = format!("{advice} (only `cargo xtask setup` uses it)");
            missing(found, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_comes_with_its_advice() {
        let nowhere = Environment::empty().with("WARPWEAVE_CUTLASS", "/nonexistent");
        let answer = cutlass(&nowhere);
        assert_eq!(answer.state, State::Missing);
        assert!(answer.found.contains("/nonexistent"), "{}", answer.found);
        assert!(answer.advice.unwrap().contains("cargo xtask setup"));
        let answer = host_compiler(&nowhere);
        assert!(answer.found.contains("g++") && answer.advice.unwrap().contains("NVCC_CCBIN"));
    }
}
