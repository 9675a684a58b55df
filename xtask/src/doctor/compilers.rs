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
    let found = match Nvcc::find(environment) {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    let path = found.path.display();
    let text = format!("{} at {path} ({})", found.version, found.origin);
    if found.version > NEWEST {
        let advice = format!(
            "newer than {NEWEST}: every machine that runs its code needs a driver newer than branch 580"
        );
        return doubtful(text, advice);
    }
    if found.library_directory().is_none() {
        let advice = "it came without libcudart_static.a, which the feature `cutlass` links: run `cargo \
            xtask setup`";
        return doubtful(text, advice);
    }
    present(text)
}

fn cutlass(environment: &Environment) -> Answer {
    let answer = Cutlass::find(environment).map(|found| {
        let folder = found.include.first().cloned().unwrap_or_default();
        present(format!("{} ({})", folder.display(), found.origin))
    });
    answer.unwrap_or_else(|error| refused(&error))
}

fn host_compiler(environment: &Environment) -> Answer {
    let answer = HostCompiler::find(environment).map(|found| {
        let version = process::first_line(&found.path, &["--version"]);
        let version = version.unwrap_or_else(|| "version unknown".into());
        present(format!("{version} at {}", found.path.display()))
    });
    answer.unwrap_or_else(|error| refused(&error))
}

/// The error's message: what is wrong, and in its last line what to do.
fn refused(error: &Error) -> Answer {
    let text = error.to_string();
    let (found, advice) = text
        .trim_end()
        .rsplit_once('\n')
        .unwrap_or((&text, "run `cargo xtask setup`"));
    let found: Vec<&str> = found.lines().map(str::trim).collect();
    missing(found.join("; "), advice)
}

fn python() -> Answer {
    match Python::with_pip(Python::candidates()) {
        Ok(python) => {
            let version =
                process::first_line(python.name(), &["-m", "pip", "--version"]).unwrap_or_default();
            // pip prints its folder and its Python as well: "pip 23.2 from … (python 3.11)".
            let brief = version.split(" from ").next().unwrap_or_default();
            present(format!("{} with {brief}", python.name()))
        }
        Err(error) => {
            let text = error.to_string();
            // The other lines say what to do without the toolchain.
            let line = text.lines().next().unwrap_or_default();
            let (found, advice) = line
                .split_once(": ")
                .unwrap_or((line, "install python3 with pip"));
            missing(
                found,
                format!("{advice} (only `cargo xtask setup` uses it)"),
            )
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
