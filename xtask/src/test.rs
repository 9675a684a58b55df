//! `cargo xtask test`: all tests on the host, and those that want a GPU where there is one.

use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fs_err::File;

use crate::bundle::Bundle;
use crate::cargo::{self, CUDA_FEATURES};
use crate::device::{Asked, Chosen};
use crate::error::{Error, Result};
use crate::harness::{self, Conditions, Counts, Out, TestProgram};
use crate::launch::log::LogFolder;
use crate::output::print;
use crate::place::Place;
use crate::{process, setup};

/// For one test program with GPUs, unless --timeout says otherwise.
pub const LIMIT: Duration = Duration::from_secs(300);

/// For one of the host, several at once, some of which build: far more than any takes.
const HOST_LIMIT: Duration = Duration::from_secs(1800);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "With GPUs, the tests that want one run after those of the host. The number of ranks \
    is for tests that start several processes: they read it from WARPWEAVE_TEST_RANKS."
)]
pub struct Options {
    #[command(flatten)]
    asked: Asked,
    /// Kill a test program that wants a GPU after so many seconds, others after half an hour at least
    #[arg(long, value_name = "SECONDS", default_value_t = LIMIT.as_secs())]
    timeout: u64,
}

/// Runs the tests; the last line is `N passed, N failed, N skipped`.
pub fn run(options: &Options) -> Result<()> {
    let counts = tests(options.asked, Duration::from_secs(options.timeout))?;
    for name in &counts.names {
        print(format_args!("failed: {name}\n"))?;
    }
    print(format_args!("{counts}\n"))?;
    match counts.failed {
        0 => Ok(()),
        _ => Err(Error::Reported),
    }
}

/// Runs the tests that fit the device; each program with GPUs ends at the limit.
pub fn tests(asked: Asked, limit: Duration) -> Result<Counts> {
    let place = Place::find()?;
    let chosen = place.choose(asked, 0)?;
    let conditions = Conditions {
        env: environment(chosen, asked.ranks),
        limit,
        out: || Box::new(io::stdout()),
    };
    match &place {
        Place::Workspace(root) => workspace(root, chosen, &conditions),
        Place::Bundle(bundle) => bundled(bundle, chosen, &conditions),
    }
}

fn environment(chosen: Chosen, ranks: Option<usize>) -> Vec<(&'static str, String)> {
    let mut env = vec![("WARPWEAVE_TEST_DEVICE", chosen.name().to_owned())];
    env.extend(ranks.map(|ranks| ("WARPWEAVE_TEST_RANKS", ranks.to_string())));
    if chosen.cuda {
        // Ranks that are threads on one GPU: a stream must not queue after another rank's kernel that waits
        // for it.
        env.push(("CUDA_DEVICE_MAX_CONNECTIONS", "32".into()));
    }
    env
}

/// Builds everything that cargo tests and runs it, several programs at once. Then come, one after another,
/// the programs with tests for GPUs.
fn workspace(root: &Path, chosen: Chosen, conditions: &Conditions) -> Result<Counts> {
    let mut args = vec!["test"];
    if chosen.cuda {
        setup::provide_toolchain(root)?;
        args.extend(["--features", CUDA_FEATURES]);
    }
    fetch(root);
    // Apart from the run, so that a test that fails and a test that does not compile are distinguished.
    let made = cargo::build(root, &[&args[..], &["--no-run"]].concat())?;
    let made = made.iter().filter(|made| made.profile.test);
    let programs: Vec<_> = made.map(TestProgram::of).collect();

    let mut documentation = cargo::command(root, &args);
    documentation.args(["--doc", "--no-fail-fast"]);
    documentation.stdin(Stdio::null());
    let mut runs = vec![(String::from("documentation"), documentation)];
    for program in &programs {
        runs.push((program.name(), program.command(&[])));
    }
    let rank = |name: &str| LONGEST.iter().position(|long| name.starts_with(long));
    runs.sort_by_key(|(name, _)| rank(name).unwrap_or(LONGEST.len()));
    for (_, command) in &mut runs {
        command.envs(conditions.env.iter().cloned());
    }
    let logs = cargo::target_directory(root).join("warpweave/tests");
    LogFolder::keep_newest(&logs, "test", KEPT_RUNS - 1);
    let LogFolder(logs) = LogFolder::create(&logs, "test")?;
    let limit = conditions.limit.max(HOST_LIMIT);
    let mut counts = at_once(runs, &logs, limit, conditions.out)?;

    if chosen.cuda {
        let gpu = on_gpus(&programs, "--ignored", conditions)?;
        // The run on the host counted them as skipped.
        counts.skipped = counts.skipped.saturating_sub(gpu.passed + gpu.failed);
        counts += gpu;
    }
    Ok(counts)
}

/// Runs whose logs are kept, this one among them.
const KEPT_RUNS: usize = 10;

/// What takes longest is started first, so that the others fill the gaps. The first two build something.
const LONGEST: [&str; 8] = [
    "documentation",
    "xtask",
    "comm conformance",
    "bench cli",
    "overlap execute",
    "comm host",
    "symm-mem fake_driver",
    "overlap plans",
];

/// More programs than this at once would be slow for their own deadlines: each has a thread for each
/// processor.
const AT_ONCE: usize = 4;

/// Runs the named commands, two more at once than there are processors, up to [`AT_ONCE`]: many tests wait
/// for a deadline or another process. Each writes to a file in `logs`, which is passed on as a whole when the
/// command has ended, or was killed at the limit.
fn at_once(runs: Vec<(String, Command)>, logs: &Path, limit: Duration, out: Out) -> Result<Counts> {
    let (queue, out) = (Mutex::new(runs.into_iter()), Mutex::new(out));
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || -> Result<Counts> {
        let mut counts = Counts::default();
        while let Some((name, mut command)) = next() {
            let log = logs.join(format!("{}.log", name.replace(' ', "-")));
            // A file, not a pipe: a process that outlives its test would keep a pipe open.
            let file = File::create(&log)?.into_parts().0;
            let began = Instant::now();
            command.stdout(file.try_clone()?).stderr(file);
            let slow = || eprintln!("{name} still runs, its output so far: {}", log.display());
            let status = process::status_within(&mut command, limit, slow)?;
            let out = out.lock().unwrap_or_else(PoisonError::into_inner);
            let seconds = began.elapsed().as_secs_f64();
            let _ = writeln!(out(), "\n---- {name}: {seconds:.1} s");
            counts +=
                harness::count(File::open(&log)?, out()).of_program(&name, status.ok_or(limit));
        }
        Ok(counts)
    };
    let workers = thread::available_parallelism().map_or(1, |cores| (cores.get() + 2).min(AT_ONCE));
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
fn fetch(root: &Path) {
    if !process::succeeds(&mut cargo::command(root, &["fetch", "--locked"])) {
        eprintln!("warning: `cargo fetch` failed: tests that look at all packages may miss some");
    }
}

fn bundled(bundle: &Bundle, chosen: Chosen, conditions: &Conditions) -> Result<Counts> {
    if !chosen.cuda {
        return Err(Error::usage(
            "--device: a bundle holds only the tests for GPUs, and this machine shows none or the bundle has \
             no device code",
        ));
    }
    on_gpus(&bundle.tests(), "--include-ignored", conditions)
}

/// Runs the programs that have tests for GPUs, and in each one test at a time: they share the GPUs.
fn on_gpus(programs: &[TestProgram], which: &str, conditions: &Conditions) -> Result<Counts> {
    let args = [which, "--test-threads", "1"];
    let mut counts = Counts::default();
    for program in programs {
        let tests = program.device_tests()?.len();
        if tests > 0 {
            print(format_args!(
                "\n{}: {tests} tests with GPUs\n",
                program.name()
            ))?;
            counts += program.run(&args, conditions)?;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_err as fs;

    const fn on(cuda: bool) -> Chosen {
        Chosen { cuda, ranks: 4 }
    }

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
        let good = result("ok. 2 passed; 0 failed; 1 ignored");
        let bad = result("FAILED. 3 passed; 1 failed; 0 ignored");
        let runs = vec![
            shell("one unit", &good),
            shell("two unit", &format!("{bad}; exit 101")),
            shell("three unit", "kill -SEGV $$"),
        ];
        let began = Instant::now();
        let counts = at_once(runs, folder.path(), HOST_LIMIT, || Box::new(io::sink())).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!((counts.passed, counts.failed, counts.skipped), (5, 2, 1));
        assert_eq!(counts.names.len(), 1, "{counts:?}");
        let name = &counts.names[0];
        assert!(name.starts_with("three unit: signal: 11"), "{name}");
        assert!(folder.path().join("two-unit.log").is_file());
    }

    #[test]
    fn a_program_of_the_host_that_hangs_is_killed_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("60");
        let (limit, runs) = (
            Duration::from_millis(300),
            vec![("one unit".to_owned(), command)],
        );
        let began = Instant::now();
        let counts = at_once(runs, folder.path(), limit, || Box::new(io::sink())).unwrap();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert_eq!((counts.passed, counts.failed), (0, 1));
        assert!(
            counts.names[0].ends_with("one unit: killed, it did not end within 300ms"),
            "{counts:?}"
        );
    }

    #[test]
    fn tests_learn_where_they_run() {
        let expected = [
            ("WARPWEAVE_TEST_DEVICE", "cuda"),
            ("WARPWEAVE_TEST_RANKS", "4"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
        ];
        let expected = expected.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(environment(on(true), Some(4)), expected);
        assert_eq!(environment(on(false), None).len(), 1);
    }

    #[test]
    fn the_programs_of_a_bundle_run_with_their_ignored_tests() {
        let folder = tempfile::tempdir().unwrap();
        let results = [
            ("good", "ok. 2 passed; 0 failed; 0 ignored"),
            ("bad", "FAILED. 3 passed; 1 failed; 0 ignored"),
        ];
        let programs = results.map(|(target, result)| {
            let script = format!(
                "[ $1 = --list ] && {{ echo 'cuda::a: test'; exit 0; }}\n\
                 echo $* $WARPWEAVE_TEST_DEVICE >{target}.args\necho 'test result: {result}; 0 measured'\n\
                 case '{result}' in ok*) exit 0;; esac; exit 101\n"
            );
            TestProgram {
                path: target.into(),
                folder: "".into(),
                ..harness::tests::shell(folder.path(), target, &script)
            }
        });
        Bundle::write(folder.path(), vec!["nvcc".into()], programs.into()).unwrap();
        let bundle = Bundle::in_folder(folder.path()).unwrap().unwrap();
        assert!(bundle.has_device_code());
        assert_eq!(bundle.warpweave(), folder.path().join("bin/warpweave"));
        let conditions = Conditions {
            env: environment(on(true), None),
            limit: LIMIT,
            out: || Box::new(io::sink()),
        };
        let counts = bundled(&bundle, on(true), &conditions).unwrap();
        assert_eq!((counts.passed, counts.failed, counts.skipped), (5, 1, 0));
        let args = fs::read_to_string(folder.path().join("good.args")).unwrap();
        assert_eq!(args, "--include-ignored --test-threads 1 cuda\n");
        assert!(bundled(&bundle, on(false), &conditions).is_err());
    }
}
