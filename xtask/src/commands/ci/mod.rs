//! `cargo xtask ci`: the checks that a change must pass.

mod steps;

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::harness::Counts;
use crate::place;
use steps::{Step, steps, succeeds};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only these steps, separated by commas [default: all but those that `--list` marks as run by name only]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these steps out
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    skip: Vec<String>,
    /// List the steps and run nothing
    #[arg(long)]
    list: bool,
}

/// Runs the steps up to the first that fails; the last line is `N passed, N failed`, tests and other steps
/// together.
pub fn run(options: &Options) -> Result<()> {
    let root = place::workspace()?;
    // The steps build xtask anew, and then the link to a running program's file is gone.
    let xtask = std::env::current_exe().map_err(Error::file("cannot find", "this program"))?;
    let steps = chosen(steps(), options)?;
    if options.list {
        for step in &steps {
            let by_name = if step.by_name {
                "  (by name only: --only)"
            } else {
                ""
            };
            println!("{:<18}{}{by_name}", step.name, step.line());
        }
        return Ok(());
    }
    let logs = place::target_directory(&root).join("warpweave/ci");
    let (mut done, mut started) = (Vec::new(), None::<Started>);
    for (index, step) in steps.iter().enumerate() {
        println!(
            "\n==== {}/{} {}: {}",
            index + 1,
            steps.len(),
            step.name,
            step.line()
        );
        if let Some((probe, missing)) = step.needs
            && !succeeds(probe, &root)
        {
            println!("left out: {missing}");
            continue;
        }
        let command = step.command(&root, &xtask);
        if step.with_next && started.is_none() && index + 1 < steps.len() {
            started = Some(Started::new(step, command, &logs)?);
            continue;
        }
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let (status, counts) = execute(command, step.counts)?;
        let this = Done {
            name: step.name,
            status,
            counts,
            took: began.elapsed(),
            cpu: cpu_seconds() - cpu,
        };
        let before = started.take().map(Started::finish).transpose()?;
        done.extend(before.into_iter().chain([this]));
        if done.iter().any(|done: &Done| !done.status.success()) {
            break;
        }
    }
    if let Some(last) = started {
        done.push(last.finish()?);
    }
    summarise(&steps, &done)
}

/// A step that runs with the next one. What it prints comes after what that one does.
struct Started {
    name: &'static str,
    child: Child,
    log: PathBuf,
    began: Instant,
}

impl Started {
    fn new(step: &Step, mut command: Command, logs: &Path) -> Result<Self> {
        fs::create_dir_all(logs).map_err(Error::file("cannot make", logs))?;
        let log = logs.join(format!("{}.log", step.name));
        let file = File::create(&log).map_err(Error::file("cannot write", &log))?;
        let both = file
            .try_clone()
            .map_err(Error::file("cannot write", &log))?;
        let child = command.stdout(file).stderr(both).spawn();
        Ok(Self {
            name: step.name,
            child: child.map_err(Error::not_started(command.get_program()))?,
            log,
            began: Instant::now(),
        })
    }

    fn finish(mut self) -> Result<Done> {
        let cpu = cpu_seconds();
        let status = self
            .child
            .wait()
            .map_err(Error::file("cannot wait for", self.name))?;
        let text = fs::read(&self.log).map_err(Error::file("cannot read", &self.log))?;
        println!("\n---- {}", self.name);
        let _ = io::stdout().write_all(&text);
        Ok(Done {
            name: self.name,
            status,
            counts: None,
            took: self.began.elapsed(),
            // The times of a process count once it has been waited for.
            cpu: cpu_seconds() - cpu,
        })
    }
}

struct Done {
    name: &'static str,
    status: ExitStatus,
    counts: Option<Counts>,
    took: Duration,
    /// CPU seconds of all its processes. On a busy machine they say more than the elapsed time.
    cpu: f64,
}

/// CPU seconds of all child processes that have ended, and of theirs.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may have spaces: the state is field 3, the children's times are fields 16 and 17.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: f64 = fields
        .skip(13)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok())
        .sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Keeps the steps that were asked for, and refuses names that no step has. A list also has the steps that
/// run by name only.
fn chosen(steps: Vec<Step>, options: &Options) -> Result<Vec<Step>> {
    let Options { only, skip, list } = options;
    for (option, names) in [("--only", only), ("--skip", skip)] {
        if let Some(name) = names
            .iter()
            .find(|name| !steps.iter().any(|step| step.name == **name))
        {
            let known: Vec<_> = steps.iter().map(|step| step.name).collect();
            let why = format!("no step `{name}`; there are {}", known.join(", "));
            return Err(Error::option(option, why));
        }
    }
    let wanted = |step: &Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        let all = only.is_empty() && (*list || !step.by_name);
        (all || named(only)) && !named(skip)
    };
    Ok(steps.into_iter().filter(wanted).collect())
}

fn execute(mut command: Command, counts_tests: bool) -> Result<(ExitStatus, Option<Counts>)> {
    let program = command.get_program().into();
    let failed = |source| Error::NotStarted { program, source };
    if !counts_tests {
        return Ok((command.status().map_err(failed)?, None));
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut counts = None;
    let lines = child
        .stdout
        .take()
        .map(|pipe| BufReader::new(pipe).split(b'\n'));
    let mut out = io::stdout();
    for line in lines.into_iter().flatten().map_while(|line| line.ok()) {
        let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        counts = Counts::of_summary(&String::from_utf8_lossy(&line)).or(counts);
    }
    let status = child
        .wait()
        .map_err(Error::file("cannot wait for", "the tests"))?;
    Ok((status, counts))
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
            "{:<18} {word} {:>7.1} s {:>7.1} s CPU{counts}",
            step.name,
            step.took.as_secs_f64(),
            step.cpu
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
    fn a_step_that_runs_with_the_next_is_told_after_it() {
        let logs = tempfile::tempdir().unwrap();
        let step = Step::new("fails", "sh").with_next();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.2; echo told; echo error >&2; exit 7"]);
        let started = Started::new(&step, command, logs.path()).unwrap();
        let done = started.finish().unwrap();
        assert_eq!((done.name, done.status.code()), ("fails", Some(7)));
        assert!(done.took >= Duration::from_millis(200));
        let log = fs::read_to_string(logs.path().join("fails.log")).unwrap();
        assert_eq!(log, "told\nerror\n");
    }

    #[test]
    fn the_cpu_time_of_children_is_counted() {
        let before = cpu_seconds();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(succeeds(busy, Path::new(".")));
        assert!(cpu_seconds() > before);
    }

    #[test]
    fn a_failing_step_is_counted_and_named() {
        use std::os::unix::process::ExitStatusExt;
        let done = |code: i32, counts| Done {
            name: "test",
            status: ExitStatus::from_raw(code << 8),
            counts,
            took: Duration::ZERO,
            cpu: 0.0,
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
