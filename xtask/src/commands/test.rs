//! `cargo xtask test`: all tests on the host, and those that want a GPU where there is one.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::bundle::Bundle;
use crate::cargo::{CUDA_FEATURES, Cargo};
use crate::device::{self, Chosen, Gpus, Wanted};
use crate::error::{Error, Result};
use crate::harness::{self, Conditions, Counts, Harness};
use crate::place::Place;
use crate::program;

/// For one test program with GPUs, unless --timeout says otherwise.
const LIMIT: Duration = Duration::from_secs(300);

/// The options of `test`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where to run: `cuda` adds the tests that want a GPU to those of the host
    #[arg(long, value_enum, default_value_t)]
    device: Wanted,
    /// Ranks of the tests that start several processes, in WARPWEAVE_TEST_RANKS
    #[arg(long, short = 'n')]
    ranks: Option<usize>,
    /// Kill a test program that wants a GPU after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LIMIT.as_secs())]
    timeout: u64,
}

/// Runs the tests; the last line is `N passed, N failed, N skipped`.
pub fn run(options: &Options) -> Result<()> {
    let place = Place::find()?;
    let chosen = device::choose(
        options.device,
        options.ranks,
        &Gpus::find(),
        program::has_device_code(&place),
    )?;
    let conditions = Conditions {
        env: environment(chosen, options.ranks),
        limit: Duration::from_secs(options.timeout),
        out: || Box::new(io::stdout()),
    };
    let counts = match &place {
        Place::Workspace(root) => workspace(&Cargo::new(root), root, chosen, &conditions)?,
        Place::Bundle(bundle) => bundled(bundle, chosen, &conditions)?,
    };
    println!("{counts}");
    if counts.failed > 0 {
        Err(Error::TestsFailed {
            failed: counts.failed,
        })
    } else {
        Ok(())
    }
}

fn environment(chosen: Chosen, ranks: Option<usize>) -> Vec<(String, String)> {
    let device = ("WARPWEAVE_TEST_DEVICE".to_owned(), chosen.name().to_owned());
    let ranks = ranks.map(|ranks| ("WARPWEAVE_TEST_RANKS".to_owned(), ranks.to_string()));
    let on_gpus = [
        // Ranks that are threads on one GPU: a stream must not queue behind another rank's kernel that waits for it.
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ];
    let on_gpus = on_gpus.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let on_gpus = on_gpus.into_iter().filter(|_| chosen.cuda);
    std::iter::once(device)
        .chain(ranks)
        .chain(on_gpus)
        .collect()
}

/// Everything that cargo tests, documentation included; then, one after another, the programs with tests for GPUs.
fn workspace(
    cargo: &Cargo,
    root: &Path,
    chosen: Chosen,
    conditions: &Conditions,
) -> Result<Counts> {
    let features = if chosen.cuda {
        program::provide_toolchain(root)?;
        vec!["--features", CUDA_FEATURES]
    } else {
        Vec::new()
    };
    fetch(cargo);
    // Apart from the run, so that a test that fails and a test that does not compile are told apart.
    let build: Vec<_> = ["test", "--workspace", "--no-run"]
        .into_iter()
        .chain(features.iter().copied())
        .collect();
    let made = cargo.build(&build)?;

    let mut command = cargo.command(["test", "--workspace", "--no-fail-fast"]);
    command
        .args(&features)
        .envs(conditions.env.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let started = |source| Error::CargoMissing {
        program: Cargo::program(),
        source,
    };
    let mut child = command.spawn().map_err(started)?;
    let mut counts = child
        .stdout
        .take()
        .map_or_else(Counts::default, |pipe| harness::count(pipe, io::stdout()));
    counts.account_for(child.wait().map_err(started)?);

    if chosen.cuda {
        let programs = made.iter().filter(|made| made.is_test).map(Harness::of);
        let gpu = on_gpus(programs, &["--ignored"], conditions)?;
        // Cargo's run counted them as skipped.
        counts.skipped = counts.skipped.saturating_sub(gpu.passed + gpu.failed);
        counts += gpu;
    }
    Ok(counts)
}

/// Gets all packages. A build gets what it compiles alone, and the tests of the repository look at those for other systems too, but
/// never to the network. Where that cannot be reached, what is here may do.
fn fetch(cargo: &Cargo) {
    let fetched = cargo
        .command(["fetch", "--locked"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    if !fetched.is_ok_and(|status| status.success()) {
        eprintln!("warning: `cargo fetch` failed: tests that look at all packages may miss some");
    }
}

fn bundled(bundle: &Bundle, chosen: Chosen, conditions: &Conditions) -> Result<Counts> {
    let programs = bundle
        .manifest()
        .tests
        .iter()
        .map(|test| harness::bundled(bundle.root(), test));
    if !chosen.cuda {
        let why = "a bundle holds the tests for GPUs alone, and this machine shows none or the bundle has no device code";
        return Err(Error::Option {
            option: "--device",
            why: why.into(),
        });
    }
    on_gpus(programs, &["--include-ignored"], conditions)
}

/// Runs the programs that have tests for GPUs, and in each one test at a time: they share the GPUs.
fn on_gpus(
    programs: impl Iterator<Item = Harness>,
    which: &[&str],
    conditions: &Conditions,
) -> Result<Counts> {
    let mut counts = Counts::default();
    for program in programs {
        let tests = program.device_tests()?.len();
        if tests > 0 {
            println!("\n{}: {tests} tests with GPUs", program.name);
            let args: Vec<_> = which
                .iter()
                .copied()
                .chain(["--test-threads", "1"])
                .collect();
            counts += program.run(&args, conditions)?;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_learn_where_they_run() {
        let env = environment(
            Chosen {
                cuda: true,
                ranks: 4,
            },
            Some(4),
        );
        let expected = [
            ("WARPWEAVE_TEST_DEVICE", "cuda"),
            ("WARPWEAVE_TEST_RANKS", "4"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ];
        assert_eq!(
            env,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(
            environment(
                Chosen {
                    cuda: false,
                    ranks: 4
                },
                None
            )
            .len(),
            1
        );
    }

    #[test]
    fn the_programs_of_a_bundle_run_with_their_ignored_tests() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, result: &str| {
            let path = std::path::PathBuf::from(name);
            let script = format!(
                "#!/bin/sh\n[ $1 = --list ] && {{ echo 'cuda::a: test'; exit 0; }}\n\
                 echo $* $WARPWEAVE_TEST_DEVICE >{name}.args\necho 'test result: {result}; 0 measured'\n\
                 case '{result}' in ok*) exit 0;; esac; exit 101\n"
            );
            std::fs::write(folder.path().join(name), script).unwrap();
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.path().join(name), mode).unwrap();
            crate::bundle::Program {
                package: "gemm".into(),
                name: name.into(),
                path,
            }
        };
        let mut manifest =
            crate::bundle::Manifest::new(None, true, vec!["nvcc".into()], "w".into());
        manifest
            .tests
            .push(program("good", "ok. 2 passed; 0 failed; 0 ignored"));
        manifest
            .tests
            .push(program("bad", "FAILED. 3 passed; 1 failed; 0 ignored"));
        manifest.write(folder.path()).unwrap();
        let bundle = Bundle::in_folder(folder.path()).unwrap().unwrap();
        let cuda = Chosen {
            cuda: true,
            ranks: 2,
        };
        let conditions = Conditions {
            env: environment(cuda, None),
            limit: LIMIT,
            out: || Box::new(io::sink()),
        };
        let counts = bundled(&bundle, cuda, &conditions).unwrap();
        assert_eq!(
            counts,
            Counts {
                passed: 5,
                failed: 1,
                skipped: 0
            }
        );
        let args = std::fs::read_to_string(folder.path().join("good.args")).unwrap();
        assert_eq!(args, "--include-ignored --test-threads 1 cuda\n");
        let host = Chosen {
            cuda: false,
            ranks: 4,
        };
        assert!(bundled(&bundle, host, &conditions).is_err());
    }
}
