//! What builds the programs and the device code.

use std::path::Path;

use warpweave_nvcc::{Cutlass, Environment, Error, HostCompiler, NEWEST, Nvcc};

use super::probe;
use super::report::{Finding, State, Use};
use crate::setup;

/// Rust, nvcc with what it needs, and what `cargo xtask setup` needs to bring it.
pub fn examine(target: &Path) -> Vec<Finding> {
    // As a build script would be asked, whose output lies in this target directory.
    let environment = Environment::current().with("CARGO_TARGET_DIR", target);
    let nvcc = nvcc(&environment);
    let cutlass = cutlass(&environment);
    let has_toolchain = [&nvcc, &cutlass]
        .iter()
        .all(|finding| finding.state != State::Missing);
    vec![
        rustc(),
        nvcc,
        cutlass,
        host_compiler(&environment),
        python(has_toolchain),
    ]
}

fn rustc() -> Finding {
    match probe::first_line("rustc", ["--version"]) {
        Some(version) => Finding::present("rustc", Use::Build, version),
        None => Finding::missing(
            "rustc",
            Use::Build,
            "not in PATH",
            "install Rust from https://rustup.rs",
        ),
    }
}

fn nvcc(environment: &Environment) -> Finding {
    let found = match Nvcc::find(environment) {
        Ok(found) => found,
        Err(error) => return refused("nvcc", &error),
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
        return Finding::doubtful("nvcc", Use::DeviceCode, text, advice);
    }
    if found.library_directory().is_none() {
        let advice = "it came without libcudart_static.a, which the feature `cutlass` links: run `cargo xtask setup`";
        return Finding::doubtful("nvcc", Use::DeviceCode, text, advice);
    }
    Finding::present("nvcc", Use::DeviceCode, text)
}

fn cutlass(environment: &Environment) -> Finding {
    match Cutlass::find(environment) {
        Ok(found) => {
            let folder = found
                .include
                .first()
                .map(|path| path.display().to_string())
                .unwrap_or_default();
            Finding::present(
                "CUTLASS",
                Use::DeviceCode,
                format!("{folder} ({})", found.origin),
            )
        }
        Err(error) => refused("CUTLASS", &error),
    }
}

fn host_compiler(environment: &Environment) -> Finding {
    match HostCompiler::find(environment) {
        Ok(found) => {
            let version = probe::first_line(&found.path, ["--version"])
                .unwrap_or_else(|| "version unknown".into());
            Finding::present(
                "C++ compiler",
                Use::DeviceCode,
                format!("{version} at {}", found.path.display()),
            )
        }
        Err(error) => refused("C++ compiler", &error),
    }
}

/// The error's own words: what it found wrong, then what to do, which is its last line.
fn refused(name: &'static str, error: &Error) -> Finding {
    let text = error.to_string();
    let (found, advice) = text
        .trim_end()
        .rsplit_once('\n')
        .unwrap_or((&text, "run `cargo xtask setup`"));
    let found: Vec<&str> = found.lines().map(str::trim).collect();
    Finding::missing(name, Use::DeviceCode, found.join("; "), advice)
}

fn python(has_toolchain: bool) -> Finding {
    // Only setup uses it.
    let needed_for = if has_toolchain {
        Use::Optional
    } else {
        Use::DeviceCode
    };
    match setup::Python::find() {
        Ok(python) => {
            let version =
                probe::first_line(python.name(), ["-m", "pip", "--version"]).unwrap_or_default();
            // pip says where it lies and for which Python: "pip 23.2 from … (python 3.11)".
            let brief = version.split(" from ").next().unwrap_or_default();
            Finding::present(
                "python, pip",
                needed_for,
                format!("{} with {brief}", python.name()),
            )
        }
        Err(error) => {
            let text = error.to_string();
            let (found, advice) = text
                .split_once(':')
                .unwrap_or((&text, "install python3 with pip"));
            let advice = advice.lines().next().unwrap_or_default().trim();
            Finding::missing(
                "python, pip",
                needed_for,
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
        let finding = cutlass(&nowhere);
        assert_eq!(finding.state, State::Missing);
        assert!(finding.found.contains("/nonexistent"), "{}", finding.found);
        assert!(finding.advice.unwrap().contains("cargo xtask setup"));
        let finding = host_compiler(&nowhere);
        assert!(finding.found.contains("g++") && finding.advice.unwrap().contains("NVCC_CCBIN"));
    }
}
