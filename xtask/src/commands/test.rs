//! `cargo xtask test`: all tests on the host, and those that want a GPU where there is one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::bundle::Bundle;
use crate::cargo::{CUDA_FEATURES, Cargo};
use crate::device::{self, Chosen, Gpus, Wanted};
use crate::error::{Error, Result};
use crate::harness::{self, Conditions, Counts, Harness};
use crate::place::{self, Place};
use crate::program;

/// For one test program with GPUs, unless --timeout says otherwise.
const LIMIT: Duration = Duration::from_secs(300);

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
        Place::Workspace(root) => workspace(root, chosen, &conditions)?,
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
        // Ranks that are threads on one GPU: a stream must not queue after another rank's kernel that waits
        // for it.
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ];
    let on_gpus = on_gpus.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let on_gpus = on_gpus.into_iter().filter(|_| chosen.cuda);
    std::iter::once(device)
        .chain(ranks)
        .chain(on_gpus)
        .collect()
}

/// Builds everything that cargo tests and runs it, several programs at once. Then come, one after another,
/// the programs with tests for GPUs.
fn workspace(root: &Path, chosen: Chosen, conditions: &Conditions) -> Result<Counts> {
    let cargo = Cargo::new(root);
    let mut args = vec!["test"];
    if chosen.cuda {
        program::provide_toolchain(root)?;
        args.extend(["--features", CUDA_FEATURES]);
    }
    fetch(&cargo);
    // Apart from the run, so that a test that fails and a test that does not compile are distinguished.
    let made = cargo.build(&[&args[..], &["--no-run"]].concat())?;
    let made: Vec<_> = made.into_iter().filter(|made| made.is_test).collect();

    let mut runs = vec![(String::from("documentation"), {
        let mut command = cargo.command(&args);
        command
            .args(["--doc", "--no-fail-fast"])
            .stdin(Stdio::null());
        command
    })];
    for made in &made {
        let program = Harness::of(made);
        runs.push((program.name.clone(), program.command(&[])));
    }
    runs.sort_by_key(|(name, _)| {
        LONGEST
            .iter()
            .position(|long| name.starts_with(long))
            .unwrap_or(LONGEST.len())
    });
    for (_, command) in &mut runs {
        command.envs(conditions.env.iter().cloned());
    }
    let logs = place::target_directory(root).join("warpweave/tests");
    let mut counts = at_once(runs, &logs, conditions.out)?;

    if chosen.cuda {
        let gpu = on_gpus(made.iter().map(Harness::of), &["--ignored"], conditions)?;
        // The run on the host counted them as skipped.
        counts.skipped = counts.skipped.saturating_sub(gpu.passed + gpu.failed);
        counts += gpu;
    }
    Ok(counts)
}

/// What takes longest is started first, so that the others fill the gaps. The first two build something.
const LONGEST: [&str; 7] = [
    "documentation",
    "xtask",
    "bench cli",
    "comm conformance",
    "overlap execute",
    "symm-mem fake_driver",
    "overlap plans",
];

/// More programs than this at once would be slow for their own deadlines: each has a thread for each
/// processor.
const AT_ONCE: usize = 4;

/// Runs the named commands, one more at once than there are processors, up to [`AT_ONCE`]: many tests wait
/// for a deadline or another process. Each writes to a file in `logs`, which is passed on as a whole when the
/// command has ended.
fn at_once(
    runs: Vec<(String, Command)>,
    logs: &Path,
    out: fn() -> Box<dyn Write>,
) -> Result<Counts> {
    fs::create_dir_all(logs).map_err(Error::file("cannot make", logs))?;
    let (queue, out) = (Mutex::new(runs.into_iter()), Mutex::new(out));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<Counts> {
        let mut counts = Counts::default();
        while let Some((name, mut command)) = next() {
            let log = logs.join(format!("{}.log", name.replace(' ', "-")));
            // A file, not a pipe: a process that a test leaves behind would hold a pipe open.
            let file = File::create(&log).map_err(Error::file("cannot write", &log))?;
            let both = file
                .try_clone()
                .map_err(Error::file("cannot write", &log))?;
            let status = command.stdout(file).stderr(both).status();
            let status = status.map_err(Error::not_started(command.get_program()))?;
            let said = File::open(&log).map_err(Error::file("cannot read", &log))?;
            let out = out.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(out(), "\n---- {name}");
            let mut these = harness::count(said, out());
            these.account_for(status);
            counts += these;
        }
        Ok(counts)
    };
    let workers = thread::available_parallelism().map_or(1, |cores| (cores.get() + 1).min(AT_ONCE));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut counts = Counts::default();
        for worker in workers {
            counts += worker.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(counts)
    })
}

/// Downloads all packages. A build downloads only those that it compiles; the tests of the repository also
/// look at those for other systems, and never use the network. Without a network, the packages that are here
/// may be enough.
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
        let why = "a bundle holds only the tests for GPUs, and this machine shows none or the bundle \
            has no device code";
        return Err(Error::option("--device", why));
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

    const CUDA: Chosen = Chosen {
        cuda: true,
        ranks: 4,
    };
    const HOST: Chosen = Chosen {
        cuda: false,
        ranks: 4,
    };

    #[test]
    fn programs_run_at_once_and_are_counted_together() {
        let folder = tempfile::tempdir().unwrap();
        let shell = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(folder.path());
            (name.to_owned(), command)
        };
        // What each starts holds its output open after its end.
        let result = |result: &str| format!("sleep 60 & echo 'test result: {result}; 0 measured'");
        let runs = vec![
            shell("one unit", &result("ok. 2 passed; 0 failed; 1 ignored")),
            shell(
                "two unit",
                &(result("FAILED. 3 passed; 1 failed; 0 ignored") + "; exit 101"),
            ),
            shell("three unit", "kill -SEGV $$"),
        ];
        let began = std::time::Instant::now();
        let counts = at_once(runs, folder.path(), || Box::new(io::sink())).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!((counts.passed, counts.failed, counts.skipped), (5, 2, 1));
        assert!(folder.path().join("two-unit.log").is_file());
    }

    #[test]
    fn tests_learn_where_they_run() {
        let env = environment(CUDA, Some(4));
        let expected = [
            ("WARPWEAVE_TEST_DEVICE", "cuda"),
            ("WARPWEAVE_TEST_RANKS", "4"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ];
        assert_eq!(
            env,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        assert_eq!(environment(HOST, None).len(), 1);
    }

    #[test]
    fn the_programs_of_a_bundle_run_with_their_ignored_tests() {
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, result: &str| {
            let path = std::path::PathBuf::from(name);
            let script = format!(
                "[ $1 = --list ] && {{ echo 'cuda::a: test'; exit 0; }}\n\
                 echo $* $WARPWEAVE_TEST_DEVICE >{name}.args\necho 'test result: {result}; 0 measured'\n\
                 case '{result}' in ok*) exit 0;; esac; exit 101\n"
            );
            crate::setup::tests::script(&folder.path().join(name), &script);
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
        let conditions = Conditions {
            env: environment(CUDA, None),
            limit: LIMIT,
            out: || Box::new(io::sink()),
        };
        let counts = bundled(&bundle, CUDA, &conditions).unwrap();
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
        assert!(bundled(&bundle, HOST, &conditions).is_err());
    }
}
