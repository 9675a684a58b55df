//! The steps: their commands, their order, and what they need.
//!
//! There are two builds of the dependencies. What only checks and documents has a target directory of its
//! own, so that it can go on in the background; it selects the whole workspace. What runs is in the profile
//! `dev` with the features of all default members; `examples/llama`, which has candle, is none of them. No
//! step sets RUSTFLAGS, and none builds in release.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cargo;
use crate::place::PROFILE;

/// The line of the step whose tests are counted.
pub const TESTS: &str = "xtask test --device host";

#[derive(Debug, Default)]
pub struct Step {
    pub name: &'static str,
    /// A command of `cargo`, of `xtask` or of `rustup`.
    pub line: &'static str,
    pub env: Vec<(&'static str, &'static str)>,
    /// A shell command that fails where something is missing, and the message then: the step is left out.
    pub needs: Option<(&'static str, &'static str)>,
    /// Takes too long to run unless it is asked for.
    pub by_name: bool,
    /// Uses what later steps leave of the processors: none needs it.
    pub background: bool,
}

impl Step {
    fn new(name: &'static str, line: &'static str) -> Self {
        Self {
            name,
            line,
            ..Self::default()
        }
    }

    fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    fn needs(mut self, probe: &'static str, missing: &'static str) -> Self {
        self.needs = Some((probe, missing));
        self
    }

    /// The command for a shell in the workspace's root.
    pub fn line(&self) -> String {
        let mut line = String::new();
        for (name, value) in &self.env {
            line += &format!("{name}='{value}' ");
        }
        if self.line.starts_with("xtask") {
            line += "cargo ";
        }
        line + self.line
    }

    pub fn command(&self, root: &Path, xtask: &Path) -> Command {
        let mut words = self.line.split_whitespace();
        let mut command = match words.next() {
            Some("xtask") => Command::new(xtask),
            Some(program) if program != "cargo" => Command::new(program),
            _ => cargo::command(root, &[""; 0]),
        };
        command.args(words).current_dir(root).stdin(Stdio::null());
        for (name, value) in &self.env {
            // Files of the workspace: cargo wants their whole paths.
            if *value == CHECKED {
                command.env(name, checked(root));
            } else if let Some(file) = value.strip_prefix("./") {
                command.env(name, root.join(file));
            } else {
                command.env(name, value);
            }
        }
        command
    }
}

/// The toolchain of the workspace's rust-version.
macro_rules! msrv {
    () => {
        concat!(env!("CARGO_PKG_RUST_VERSION"), ".0")
    };
}

/// The tag of the release of the workspace's version.
macro_rules! version {
    () => {
        concat!("v", env!("CARGO_PKG_VERSION"))
    };
}

/// Runs rustc for the workspace's own crates: a cfg that it sets leaves their dependencies as they are.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// The target directory of what is only checked, in the default one: there its builds find the toolchain, and
/// the device code that other builds have compiled.
const CHECKED: &str = "target/checked";

pub fn checked(root: &Path) -> PathBuf {
    cargo::target_directory(root).join("checked")
}

#[rustfmt::skip]
pub fn steps() -> Vec<Step> {
    let step = Step::new;
    // The program that the tests have built.
    let dev = |name, line| step(name, line).env(PROFILE, "dev");
    let check = |name, line| step(name, line).env("CARGO_TARGET_DIR", CHECKED);
    let later = |step| Step { background: true, ..step };
    // While CUTLASS compiles, no other work is left: with two compilers both cores have some.
    const JOBS: &str = "WARPWEAVE_NVCC_JOBS";
    const CHECK: &str = "WARPWEAVE_NVCC_CHECK";
    // A project outside the workspace whose own cudarc links dynamically, with the bindings of an older CUDA
    // and of ours. With our profile its dependencies are those that clippy has checked.
    let cudarc = |name, version| {
        check(name, "cargo check --manifest-path examples/with-cudarc/Cargo.toml")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("CARGO_PROFILE_DEV_LTO", "off")
            .env("CUDARC_CUDA_VERSION", version)
    };
    vec![
        step("fmt", "cargo fmt --all --check"),
        step("deny", "cargo deny --offline check licenses bans sources")
            .needs("cargo deny --version", "cargo-deny is not installed; tests check the rules of \
                deny.toml too"),
        // Libraries differ without device code. All else is the same with it, as `device-clippy` sees it.
        check("clippy", "cargo clippy --workspace --lib --bins -- -D warnings"),
        check("doc", "cargo doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings"),
        // Only where the other steps use a newer toolchain. Without the old one there are two weaker checks:
        // clippy's `incompatible_msrv`, which knows the library but not the language, and the test that no
        // dependency asks for more.
        later(check("msrv", concat!("rustup run ", msrv!(), " cargo check")).needs(
            concat!("! rustc -V | grep -q ' ", msrv!(), " ' && rustup run ", msrv!(), " cargo -V"),
            concat!("all steps use ", msrv!(), ", or it is missing: rustup toolchain install ", msrv!()),
        )),
        // Against the release of the workspace's version.
        later(check("semver", concat!("cargo semver-checks --workspace --baseline-rev ", version!())).needs(
            concat!("cargo semver-checks --version && git rev-parse --verify --quiet ", version!()),
            "cargo-semver-checks is not installed, or this version has not been released",
        )),
        later(cudarc("cudarc-12.8", "12080")),
        later(cudarc("cudarc-13.0", "13000")),
        later(step("setup", "xtask setup")),
        later(check("device-clippy",
            "cargo clippy --workspace --all-targets --features nvcc,cutlass -- -D warnings")
            .env(JOBS, "2").env(CHECK, "1")),
        // Clippy does not see a symbol that the static library lacks. All else that is linked, the tests have
        // built.
        later(step("device-link", "cargo build --example gemm_sweep --features nvcc,cutlass")
            .env(JOBS, "2").env(CHECK, "1")),
        step("test", TESTS),
        dev("plans", "xtask plan check all"),
        dev("bench", "xtask bench --device host --suite quick --iterations 3 --timeout 300"),
        dev("collectives",
            "xtask bench --device host --suite collectives --sizes 1K,64K --iterations 2 --timeout 300"),
        // Every bench of criterion once, by the processes that it starts itself.
        step("criterion", "cargo test --bench layers"),
        // And as they are used: kept under a name, then compared with it. Whatever `cargo bench` runs gets
        // these options.
        step("criterion-save", "cargo bench --profile dev -- --quick --save-baseline ci ^exchange/"),
        step("criterion-compare", "cargo bench --profile dev -- --quick --baseline ci ^exchange/"),
        step("loom", "cargo test --lib -p warpweave-symm-mem -p warpweave-comm -p warpweave-gemm loom_")
            .env(WRAPPER, "./.ci/rustc-loom"),
        step("shuttle", "cargo test --test shuttle").env(WRAPPER, "./.ci/rustc-shuttle"),
        step("llama", "cargo test -p warpweave-example-llama"),
        Step { by_name: true, ..step("candle", "xtask candle") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::CUDA_FEATURES;

    #[test]
    fn dependencies_are_built_once() {
        for step in steps() {
            let line = step.line();
            // RUSTFLAGS change every package; another profile has a folder of its own.
            let has = |text: &str| line.contains(text);
            assert!(!has("RUSTFLAGS") && !has("--release"), "{line}");
            assert_eq!(has("--features"), has(CUDA_FEATURES), "{line}");
        }
    }

    #[test]
    fn what_a_step_uses_is_made_before_it() {
        let steps = steps();
        let place = |name: &str| steps.iter().position(|step| step.name == name).unwrap();
        assert!(place("criterion-save") < place("criterion-compare"));
        assert!(place("setup") < place("device-clippy") && place("setup") < place("device-link"));
    }

    #[test]
    fn the_toolchain_of_rust_version_is_named_in_full() {
        let steps = steps();
        let msrv = steps.iter().find(|step| step.name == "msrv").unwrap();
        assert_eq!(msrv!().split('.').count(), 3);
        assert!(msrv.line().contains(concat!("rustup run ", msrv!())));
    }
}
