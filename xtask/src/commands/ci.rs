//! `cargo xtask ci`: the checks that a change must pass, in the order in which they fail soonest.
//!
//! Few sets of flags, since each compiles everything again: warnings are denied by arguments of clippy, and the device
//! code is compiled once into a cache that all profiles share.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::cargo::{CUDA_FEATURES, Cargo};
use crate::error::{Error, Result};
use crate::harness::Counts;
use crate::place;

/// Packages with models for loom, which their tests named `loom_*` are.
const LOOM_PACKAGES: &[&str] = &["warpweave-symm-mem", "warpweave-comm", "warpweave-gemm"];

/// The options of `ci`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these steps, separated by commas [default: all but those that `--list` says are run by name alone]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these steps out
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    skip: Vec<String>,
    /// List the steps and run nothing
    #[arg(long)]
    list: bool,
}

/// Whose command line a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Cargo,
    Xtask,
    Rustup,
}

#[derive(Debug)]
struct Step {
    name: &'static str,
    runs: Runs,
    words: Vec<&'static str>,
    env: Option<(&'static str, &'static str)>,
    /// Whether its last line counts tests.
    counts: bool,
    /// What it cannot do without; it is left out where that is missing.
    needs: Option<Need>,
    /// Takes too long to be run unless it is asked for.
    by_name: bool,
}

/// What the workspace does not bring along.
#[derive(Clone, Copy, Debug)]
struct Need {
    /// A line of shell that ends well where it is there.
    probe: &'static str,
    /// What is said where it is not.
    missing: &'static str,
}

impl Need {
    fn is_met(&self, root: &Path) -> bool {
        let mut command = Command::new("sh");
        command
            .args(["-c", self.probe])
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Step {
    fn new(name: &'static str, runs: Runs, line: &'static str) -> Self {
        Self {
            name,
            runs,
            words: line.split_whitespace().collect(),
            env: None,
            counts: false,
            needs: None,
            by_name: false,
        }
    }

    fn line(&self) -> String {
        let env = self
            .env
            .map(|(name, value)| format!("{name}='{value}' "))
            .unwrap_or_default();
        let program = match self.runs {
            Runs::Cargo => "cargo",
            Runs::Xtask => "cargo xtask",
            Runs::Rustup => "rustup",
        };
        format!("{env}{program} {}", self.words.join(" "))
    }
}

/// The toolchain of the workspace's rust-version.
macro_rules! msrv {
    () => {
        concat!(env!("CARGO_PKG_RUST_VERSION"), ".0")
    };
}

fn steps() -> Vec<Step> {
    use Runs::{Cargo, Rustup, Xtask};
    let mut steps = vec![
        Step::new("fmt", Cargo, "fmt --all --check"),
        Step {
            needs: Some(Need {
                probe: "cargo deny --version",
                missing: "cargo-deny is not installed; the tests hold to deny.toml all the same",
            }),
            ..Step::new("deny", Cargo, "deny --offline check licenses bans sources")
        },
        Step::new(
            "clippy",
            Cargo,
            "clippy --workspace --all-targets -- -D warnings",
        ),
        // The workspace's rust-version itself. Without that toolchain there are two weaker checks: clippy's
        // `incompatible_msrv`, which knows the library but not the language, and the test that no dependency
        // asks for more.
        Step {
            needs: Some(Need {
                probe: concat!("rustup run ", msrv!(), " cargo --version"),
                missing: concat!(
                    "that toolchain is not installed: rustup toolchain install ",
                    msrv!()
                ),
            }),
            ..Step::new(
                "msrv",
                Rustup,
                concat!("run ", msrv!(), " cargo check --workspace --all-targets"),
            )
        },
        Step {
            env: Some(("RUSTDOCFLAGS", "-D warnings")),
            ..Step::new("doc", Cargo, "doc --workspace --no-deps")
        },
        Step {
            counts: true,
            ..Step::new("test", Xtask, "test --device host")
        },
        Step::new("plans", Xtask, "plan check all"),
        Step::new(
            "bench",
            Xtask,
            "bench --device host --suite quick --iterations 3 --timeout 300",
        ),
    ];
    steps.push(Step::new(
        "collectives",
        Xtask,
        "bench --device host --suite collectives --sizes 1K,64K --iterations 2 --timeout 300",
    ));
    // Every bench of criterion once, by the processes that it starts itself.
    steps.push(Step::new(
        "criterion",
        Cargo,
        "test --workspace --bench layers",
    ));
    // And as they are used: kept under a name, then compared with it. Whatever `cargo bench` runs gets these
    // options.
    steps.push(Step::new(
        "criterion-save",
        Cargo,
        "bench --profile dev -- --quick --save-baseline ci ^exchange/",
    ));
    steps.push(Step::new(
        "criterion-compare",
        Cargo,
        "bench --profile dev -- --quick --baseline ci ^exchange/",
    ));
    let mut loom = Step::new("loom", Cargo, "test --release --lib");
    loom.env = Some(("RUSTFLAGS", "--cfg loom"));
    loom.words
        .extend(LOOM_PACKAGES.iter().flat_map(|package| ["-p", package]));
    loom.words.push("loom_");
    steps.push(loom);
    steps.push(Step {
        env: Some(("RUSTFLAGS", "--cfg shuttle")),
        ..Step::new("shuttle", Cargo, "test -p warpweave-overlap --test shuttle")
    });
    // Against what was released under the version that the workspace has.
    let mut semver = Step::new(
        "semver",
        Cargo,
        concat!(
            "semver-checks --workspace --baseline-rev v",
            env!("CARGO_PKG_VERSION")
        ),
    );
    semver.needs = Some(Need {
        probe: concat!(
            "cargo semver-checks --version && git rev-parse --verify --quiet v",
            env!("CARGO_PKG_VERSION")
        ),
        missing: "cargo-semver-checks is not installed, or this version has not been released",
    });
    steps.push(semver);
    let mut device_clippy = Step::new(
        "device-clippy",
        Cargo,
        "clippy --workspace --all-targets --features",
    );
    device_clippy
        .words
        .extend([CUDA_FEATURES, "--", "-D", "warnings"]);
    // A project outside the workspace whose own cudarc links dynamically, by the bindings of an older CUDA and of ours.
    for (name, version) in [("cudarc-12.8", "12080"), ("cudarc-13.0", "13000")] {
        steps.push(Step {
            env: Some(("CUDARC_CUDA_VERSION", version)),
            ..Step::new(
                name,
                Cargo,
                "check --manifest-path examples/with-cudarc/Cargo.toml --target-dir target/with-cudarc",
            )
        });
    }
    // Linked once, and no more than that needs: clippy does not see a symbol that the static library lacks.
    let mut device_link = Step::new(
        "device-link",
        Cargo,
        "build -p warpweave-gemm --example gemm_sweep --features",
    );
    device_link.words.push(CUDA_FEATURES);
    steps.extend([
        Step::new("setup", Xtask, "setup"),
        device_clippy,
        device_link,
        Step {
            by_name: true,
            ..Step::new("candle", Xtask, "candle")
        },
    ]);
    steps
}

/// Runs the steps up to the first that fails; the last line is `N passed, N failed`, tests and other steps together.
pub fn run(options: &Options) -> Result<()> {
    let root = place::workspace()?;
    // The steps build xtask anew, and then the link to a running program's file is gone.
    let xtask = std::env::current_exe().map_err(Error::file("cannot find", "this program"))?;
    let steps = chosen(steps(), options)?;
    if options.list {
        for step in &steps {
            let by_name = if step.by_name {
                "  (only by its name: --only)"
            } else {
                ""
            };
            println!("{:<18}{}{by_name}", step.name, step.line());
        }
        return Ok(());
    }
    let mut done: Vec<Done> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!(
            "\n==== {}/{} {}: {}",
            index + 1,
            steps.len(),
            step.name,
            step.line()
        );
        if let Some(need) = step.needs.filter(|need| !need.is_met(&root)) {
            println!("left out: {}", need.missing);
            continue;
        }
        let began = Instant::now();
        let (status, counts) = execute(step, &root, &xtask)?;
        done.push(Done {
            name: step.name,
            status,
            counts,
            took: began.elapsed(),
        });
        if !status.success() {
            break;
        }
    }
    summarise(&steps, &done)
}

struct Done {
    name: &'static str,
    status: ExitStatus,
    counts: Option<Counts>,
    took: Duration,
}

/// Keeps the steps that were asked for, and refuses names that no step has. A list has also those that are run by their
/// names alone.
fn chosen(steps: Vec<Step>, options: &Options) -> Result<Vec<Step>> {
    let Options { only, skip, list } = options;
    for (option, names) in [("--only", only), ("--skip", skip)] {
        if let Some(name) = names
            .iter()
            .find(|name| !steps.iter().any(|step| step.name == **name))
        {
            let known: Vec<_> = steps.iter().map(|step| step.name).collect();
            return Err(Error::Option {
                option,
                why: format!("no step `{name}`; there are {}", known.join(", ")),
            });
        }
    }
    let wanted = |step: &Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        let all = only.is_empty() && (*list || !step.by_name);
        (all || named(only)) && !named(skip)
    };
    Ok(steps.into_iter().filter(wanted).collect())
}

fn execute(step: &Step, root: &Path, xtask: &PathBuf) -> Result<(ExitStatus, Option<Counts>)> {
    let mut command = match step.runs {
        Runs::Cargo => Cargo::new(root).command(step.words.iter().copied()),
        Runs::Xtask => {
            let mut command = Command::new(xtask);
            command.args(&step.words).current_dir(root);
            command
        }
        Runs::Rustup => {
            let mut command = Command::new("rustup");
            command.args(&step.words).current_dir(root);
            command
        }
    };
    command.envs(step.env).stdin(Stdio::null());
    let failed = |source| match step.runs {
        Runs::Cargo => Error::CargoMissing {
            program: Cargo::program(),
            source,
        },
        Runs::Xtask => Error::NotStarted {
            program: xtask.clone(),
            source,
        },
        Runs::Rustup => Error::NotStarted {
            program: "rustup".into(),
            source,
        },
    };
    if !step.counts {
        return Ok((command.status().map_err(failed)?, None));
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut counts = None;
    if let Some(pipe) = child.stdout.take() {
        let mut out = io::stdout();
        for line in BufReader::new(pipe)
            .split(b'\n')
            .map_while(|line| line.ok())
        {
            let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
            counts = Counts::of_summary(&String::from_utf8_lossy(&line)).or(counts);
        }
    }
    Ok((child.wait().map_err(failed)?, counts))
}

fn summarise(steps: &[Step], done: &[Done]) -> Result<()> {
    let (mut passed, mut failed) = (0, 0);
    println!();
    for step in done {
        let word = if step.status.success() {
            "passed"
        } else {
            "FAILED"
        };
        let counts = step
            .counts
            .map(|counts| format!("  {counts}"))
            .unwrap_or_default();
        println!(
            "{:<18} {word} {:>7.1} s{counts}",
            step.name,
            step.took.as_secs_f64()
        );
        match step.counts {
            Some(counts) => {
                passed += counts.passed;
                failed += counts.failed.max(usize::from(!step.status.success()));
            }
            None if step.status.success() => passed += 1,
            None => failed += 1,
        }
    }
    let ran = |step: &&Step| done.iter().any(|done| done.name == step.name);
    for step in steps.iter().filter(|step| !ran(step)) {
        println!("{:<18} not run", step.name);
    }
    let failure = done.iter().find(|step| !step.status.success());
    if let Some(step) = failure {
        println!("{} failed with {}", step.name, step.status);
    }
    println!("{passed} passed, {failed} failed");
    failure.map_or(Ok(()), |step| {
        Err(Error::StepFailed {
            step: step.name,
            status: step.status,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(steps: &[Step]) -> Vec<&str> {
        steps.iter().map(|step| step.name).collect()
    }

    fn options(only: &[&str], skip: &[&str]) -> Options {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Options {
            only: owned(only),
            skip: owned(skip),
            list: false,
        }
    }

    #[test]
    fn steps_are_chosen_by_name() {
        let only = chosen(steps(), &options(&["doc", "fmt"], &[])).unwrap();
        assert_eq!(names(&only), ["fmt", "doc"]);
        let all = chosen(steps(), &options(&[], &[])).unwrap().len();
        let skipped = chosen(steps(), &options(&[], &["setup"])).unwrap();
        assert_eq!(skipped.len(), all - 1);
        let error = chosen(steps(), &options(&["dcos"], &[]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("dcos") && error.contains("clippy"),
            "{error}"
        );
    }

    #[test]
    fn a_long_step_is_listed_and_run_by_its_name_alone() {
        let has = |options: &Options| {
            let chosen = chosen(steps(), options).unwrap();
            names(&chosen).contains(&"candle")
        };
        assert!(!has(&options(&[], &[])));
        assert!(has(&options(&["candle"], &[])));
        let list = Options {
            list: true,
            ..options(&[], &[])
        };
        assert!(has(&list));
    }

    #[test]
    fn what_a_step_needs_is_looked_for() {
        let need = |probe| Need {
            probe,
            missing: "it",
        };
        let here = Path::new(".");
        assert!(need("true").is_met(here));
        assert!(!need("false").is_met(here));
        assert!(!need("no-such-program-anywhere").is_met(here));
    }

    #[test]
    fn a_baseline_is_saved_before_it_is_compared_with() {
        let steps = steps();
        let place = |name: &str| steps.iter().position(|step| step.name == name).unwrap();
        assert!(place("criterion-save") < place("criterion-compare"));
    }

    #[test]
    fn the_toolchain_of_rust_version_is_named_in_full() {
        let step = steps()
            .into_iter()
            .find(|step| step.name == "msrv")
            .unwrap();
        assert_eq!(msrv!().split('.').count(), 3);
        assert!(step.line().starts_with(concat!("rustup run ", msrv!())));
    }

    #[test]
    fn the_device_code_comes_after_its_toolchain() {
        let steps = steps();
        let place = |name: &str| steps.iter().position(|step| step.name == name).unwrap();
        assert!(place("setup") < place("device-clippy") && place("setup") < place("device-link"));
    }

    #[test]
    fn a_failing_step_is_counted_and_named() {
        use std::os::unix::process::ExitStatusExt;
        let done = |code: i32, counts| Done {
            name: "test",
            status: ExitStatus::from_raw(code << 8),
            counts,
            took: Duration::ZERO,
        };
        assert!(summarise(&[], &[done(0, None), done(0, None)][..0]).is_ok());
        let steps = steps();
        let failed = summarise(&steps, &[done(0, None), done(101, Some(Counts::default()))]);
        assert!(matches!(
            failed,
            Err(Error::StepFailed { step: "test", .. })
        ));
    }
}
