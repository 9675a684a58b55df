//! The compilers of the programs and of the device code.

use std::path::Path;

use warpweave_nvcc::{Cutlass, Environment, Error, HostCompiler, NEWEST, Nvcc};

use super::probe;
use super::{Answer, Finding, State, Use, doubtful, missing, present};
use crate::setup;

/// Rust; nvcc and what it needs; Python, with which `cargo xtask setup` downloads them.
pub fn examine(target: &Path) -> Vec<Finding> {
    // What a build script would find whose output is in this target directory.
    let environment = Environment::current().with("CARGO_TARGET_DIR", target);
    let nvcc = nvcc(&environment).about("nvcc", Use::DeviceCode);
    let cutlass = cutlass(&environment).about("CUTLASS", Use::DeviceCode);
    // Only setup uses Python.
    let setup = match [&nvcc, &cutlass]
        .iter()
        .any(|finding| finding.state == State::Missing)
    {
        true => Use::DeviceCode,
        false => Use::Optional,
    };
    vec![
        rustc().about("rustc", Use::Build),
        nvcc,
        cutlass,
        host_compiler(&environment).about("C++ compiler", Use::DeviceCode),
        python().about("python, pip", setup),
    ]
}

fn rustc() -> Answer {
    match probe::first_line("rustc", ["--version"]) {
        Some(version) => present(version),
        None => missing("not in PATH", "install Rust from https://rustup.rs"),
    }
}

fn nvcc(environment: &Environment) -> Answer {
    let found = match Nvcc::find(environment) {
        Ok(found) => found,
        Err(error) => return refused(&error),
    };
    let text = format!(
        "{} at {} ({})",
        found.version,
        found.path.display(),
        found.origin
    );
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
    match Cutlass::find(environment) {
        Ok(found) => {
            let folder = found
                .include
                .first()
                .map(|path| path.display().to_string())
                .unwrap_or_default();
            present(format!("{folder} ({})", found.origin))
        }
        Err(error) => refused(&error),
    }
}

fn host_compiler(environment: &Environment) -> Answer {
    match HostCompiler::find(environment) {
        Ok(found) => {
            let version = probe::first_line(&found.path, ["--version"])
                .unwrap_or_else(|| "version unknown".into());
            present(format!("{version} at {}", found.path.display()))
        }
        Err(error) => refused(&error),
    }
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
    match setup::Python::find() {
        Ok(python) => {
            let version =
                probe::first_line(python.name(), ["-m", "pip", "--version"]).unwrap_or_default();
            // pip prints its folder and its Python as well: "pip 23.2 from … (python 3.11)".
            let brief = version.split(" from ").next().unwrap_or_default();
            present(format!("{} with {brief}", python.name()))
        }
        Err(error) => {
            let text = error.to_string();
            let (found, advice) = text
                .split_once(':')
                .unwrap_or((&text, "install python3 with pip"));
            let advice = advice.lines().next().unwrap_or_default().trim();
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
        let finding = cutlass(&nowhere).about("CUTLASS", Use::DeviceCode);
        assert_eq!(finding.state, State::Missing);
        assert!(finding.found.contains("/nonexistent"), "{}", finding.found);
        assert!(finding.advice.unwrap().contains("cargo xtask setup"));
        let finding = host_compiler(&nowhere).about("C++ compiler", Use::DeviceCode);
        assert!(finding.found.contains("g++") && finding.advice.unwrap().contains("NVCC_CCBIN"));
    }
}
