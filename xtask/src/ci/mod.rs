//! `cargo xtask ci`: the checks that a change must pass.

mod steps;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use fs_err::{self as fs, File};

use crate::device::{Asked, Wanted};
use crate::error::{Error, Result};
use crate::harness::Counts;
use crate::output::print;
use crate::{cargo, process, test};
use steps::{Step, TESTS, steps};

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
    let root = cargo::workspace()?;
    // The steps build xtask anew, and then the link to a running program's file is gone.
    let xtask = std::env::current_exe()?;
    let steps = chosen(steps(), options)?;
    if options.list {
        for step in &steps {
            let note = if step.by_name {
                "  (by name only: --only)"
            } else {
                ""
            };
            print(format_args!("{:<18}{}{note}\n", step.name, step.line()))?;
        }
        return Ok(());
    }
    fs::create_dir_all(steps::checked(&root))?;
    let background: Vec<_> = steps.iter().filter(|step| step.background).collect();
    let is_alone = background.len() == steps.len();
    let (mut done, mut checks) = (Vec::new(), None);
    for (index, step) in steps.iter().enumerate() {
        if step.background && !is_alone {
            // All of them start with the first.
            if checks.is_none() {
                checks = Some(Background::start(&background, &xtask, &root)?);
            }
            continue;
        }
        let (number, all) = (index + 1, steps.len());
        print(format_args!(
            "\n==== {number}/{all} {}: {}\n",
            step.name,
            step.line()
        ))?;
        if let Some((probe, missing)) = step.needs
            && !succeeds(probe, &root)
        {
            print(format_args!("left out: {missing}\n"))?;
            continue;
        }
        let this = execute(step, &xtask, &root)?;
        let has_failed = this.failure.is_some();
        done.push(this);
        if has_failed || checks.as_mut().is_some_and(Background::has_failed) {
            break;
        }
    }
    done.extend(checks.map(Background::finish).transpose()?);
    summarise(&steps, &done)
}

/// The checks that nothing waits for: this program with their names, at the lowest priority, so that tests
/// keep their deadlines. What it prints is kept in a file until its end.
struct Background {
    child: Child,
    log: PathBuf,
    began: Instant,
    cpu: f64,
}

impl Background {
    fn start(steps: &[&Step], xtask: &Path, root: &Path) -> Result<Self> {
        let logs = cargo::target_directory(root).join("warpweave/ci");
        let log = logs.join("background.log");
        fs::create_dir_all(&logs)?;
        let file = File::create(&log)?.into_parts().0;
        let names: Vec<_> = steps.iter().map(|step| step.name).collect();
        let names = names.join(",");
        print(format_args!(
            "\n==== in the background, see {}: {names}\n",
            log.display()
        ))?;
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(xtask);
        command.args(["ci", "--only", &names]);
        command.current_dir(root).stdin(Stdio::null());
        let child = command.stdout(file.try_clone()?).stderr(file).spawn();
        Ok(Self {
            child: child.map_err(Error::not_started("nice"))?,
            log,
            began: Instant::now(),
            cpu: 0.0,
        })
    }

    fn has_failed(&mut self) -> bool {
        let ended = self.timed(Child::try_wait);
        matches!(ended, Ok(Some(status)) if !status.success())
    }

    /// Waits, and counts the times of the process, which are known once it has been waited for.
    fn timed<T>(&mut self, wait: impl FnOnce(&mut Child) -> T) -> T {
        let before = cpu_seconds();
        let ended = wait(&mut self.child);
        self.cpu += cpu_seconds() - before;
        ended
    }

    fn finish(mut self) -> Result<Done> {
        print("\n---- background, until its end\n")?;
        let status = self.timed(Child::wait)?;
        let text = String::from_utf8_lossy(&fs::read(self.log)?).into_owned();
        print(&text)?;
        let failure = (!status.success()).then(|| status.to_string());
        // Its last line counts what it did not leave out.
        let last = text.lines().last().unwrap_or_default();
        let passed = last.split_once(" passed");
        let passed = passed.and_then(|(number, _)| number.parse().ok());
        let counts = Counts {
            passed: passed.unwrap_or(0),
            ..Counts::of_one(failure.is_some())
        };
        Ok(Done {
            name: BACKGROUND,
            failure,
            counts: Some(counts),
            seconds: self.began.elapsed().as_secs_f64(),
            cpu: self.cpu,
        })
    }
}

/// What the checks in the background are called together.
const BACKGROUND: &str = "background";

/// Runs the command of a step; the tests of the workspace, on the host, are counted.
fn execute(step: &Step, xtask: &Path, root: &Path) -> Result<Done> {
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let (failure, counts) = if step.line == TESTS {
        let asked = Asked {
            device: Wanted::Host,
            ranks: None,
        };
        match test::tests(asked, test::LIMIT) {
            Ok(counts) => {
                let (failed, names) = (counts.failed, counts.names.join(", "));
                let failure = (failed > 0).then(|| format!("{failed} failures: {names}"));
                (failure, Some(counts))
            }
            Err(error) => (Some(error.to_string()), None),
        }
    } else {
        let status = process::status(&mut step.command(root, xtask))?;
        ((!status.success()).then(|| status.to_string()), None)
    };
    Ok(Done {
        name: step.name,
        failure,
        counts,
        seconds: began.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
    })
}

struct Done {
    name: &'static str,
    failure: Option<String>,
    counts: Option<Counts>,
    seconds: f64,
    /// CPU seconds of all its processes. On a busy machine they say more than the elapsed time.
    cpu: f64,
}

/// CPU seconds of all child processes that have been waited for, and of theirs.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may have spaces: the state is field 3, the children's times are fields 16 and 17.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let times = fields.skip(13).take(2).flat_map(str::parse::<f64>);
    times.sum::<f64>() / rustix::param::clock_ticks_per_second() as f64
}

fn succeeds(shell: &str, root: &Path) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", shell]).current_dir(root);
    process::succeeds(command.stderr(Stdio::null()))
}

/// Keeps the steps that were asked for, and refuses names that no step has and choices without a step. A list
/// also has the steps that run by name only.
fn chosen(steps: Vec<Step>, options: &Options) -> Result<Vec<Step>> {
    let Options { only, skip, list } = options;
    let known: Vec<_> = steps.iter().map(|step| step.name).collect();
    let is_unknown = |name: &&String| !known.contains(&name.as_str());
    if let Some(name) = only.iter().chain(skip).find(is_unknown) {
        let known = known.join(", ");
        return Err(Error::usage(format!("no step `{name}`; there are {known}")));
    }
    let wanted = |step: &Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        let all = only.is_empty() && (*list || !step.by_name);
        (all || named(only)) && !named(skip)
    };
    let chosen: Vec<_> = steps.into_iter().filter(wanted).collect();
    match chosen.is_empty() {
        true => Err(Error::usage("--skip leaves no step of --only")),
        false => Ok(chosen),
    }
}

fn summarise(steps: &[Step], done: &[Done]) -> Result<()> {
    let mut all = Counts::default();
    print("\n")?;
    for step in done {
        let word = step.failure.as_ref().map_or("passed", |_| "FAILED");
        let (name, seconds, cpu) = (step.name, step.seconds, step.cpu);
        let counts = step.counts.as_ref();
        let shown = counts.map_or_else(String::new, |counts| format!("  {counts}"));
        print(format_args!(
            "{name:<18} {word} {seconds:>7.1} s {cpu:>7.1} s CPU{shown}\n"
        ))?;
        let one = || Counts::of_one(step.failure.is_some());
        all += step.counts.clone().unwrap_or_else(one);
    }
    let ran = |step: &&Step| {
        let is_it = |name| name == step.name || (step.background && name == BACKGROUND);
        done.iter().any(|done| is_it(done.name))
    };
    for step in steps.iter().filter(|step| !ran(step)) {
        print(format_args!("{:<18} not run\n", step.name))?;
    }
    let failed = |step: &Done| Some((step.name, step.failure.clone()?));
    let failure = done.iter().find_map(failed);
    if let Some((name, failure)) = &failure {
        print(format_args!("{name}: {failure}\n"))?;
    }
    print(format_args!(
        "{} passed, {} failed\n",
        all.passed, all.failed
    ))?;
    failure.map_or(Ok(()), |_| Err(Error::Reported))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name() {
        let names = |only: &[&str], skip: &[&str], list| {
            let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
            let (only, skip) = (owned(only), owned(skip));
            let steps = chosen(steps(), &Options { only, skip, list });
            steps.map(|steps| steps.iter().map(|step| step.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["doc", "fmt"], &[], false).unwrap(), ["fmt", "doc"]);
        let all = names(&[], &[], false).unwrap();
        let skipped = names(&[], &["setup"], false).unwrap();
        assert_eq!(skipped.len(), all.len() - 1);
        let message = names(&["dcos"], &[], false).unwrap_err().to_string();
        for part in ["dcos", "clippy"] {
            assert!(message.contains(part), "{message}");
        }
        let none = names(&["fmt"], &["fmt"], false).unwrap_err();
        assert!(matches!(none, Error::Usage(_)), "{none}");
        // A long step is listed, and run by its name alone.
        assert!(!all.contains(&"candle"));
        assert_eq!(names(&["candle"], &[], false).unwrap(), ["candle"]);
        assert!(names(&[], &[], true).unwrap().contains(&"candle"));
    }

    #[test]
    fn what_a_step_needs_is_looked_for() {
        for (probe, expected) in [("true", true), ("false", false), ("no-such-program", false)] {
            assert_eq!(succeeds(probe, Path::new(".")), expected, "{probe}");
        }
    }

    #[test]
    fn checks_in_the_background_have_one_result_and_a_log() {
        let root = tempfile::tempdir().unwrap();
        let target = cargo::target_directory(root.path());
        for (script, failure) in [("exit 7", Some("exit status: 7")), ("sleep 0.2", None)] {
            let program = root.path().join("xtask");
            let script = format!("echo $* >&2; echo 5 passed, 0 failed; {script}");
            process::tests::script(&program, &script);
            let all = steps();
            let some: Vec<_> = all.iter().filter(|step| step.background).take(2).collect();
            let mut checks = Background::start(&some, &program, root.path()).unwrap();
            while failure.is_some() && !checks.has_failed() {
                std::thread::yield_now();
            }
            let done = checks.finish().unwrap();
            assert_eq!(done.failure.as_deref(), failure);
            let counts = done.counts.unwrap();
            assert_eq!(counts.passed, 5);
            assert_eq!(counts.failed, usize::from(failure.is_some()));
            assert!(failure.is_some() || done.seconds >= 0.2);
            let log = fs::read_to_string(target.join("warpweave/ci/background.log")).unwrap();
            assert_eq!(log, "ci --only msrv,semver\n5 passed, 0 failed\n");
        }
    }

    #[test]
    fn the_cpu_time_of_children_is_counted() {
        let before = cpu_seconds();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(succeeds(busy, Path::new(".")));
        assert!(cpu_seconds() > before);
    }

    #[test]
    fn a_failing_step_fails_the_checks() {
        let done = |failure| Done {
            name: "test",
            failure,
            counts: None,
            seconds: 1.0,
            cpu: 0.0,
        };
        assert!(summarise(&[], &[done(None), done(None)]).is_ok());
        let failed = summarise(&steps(), &[done(None), done(Some("1 failures".into()))]);
        assert!(matches!(failed, Err(Error::Reported)));
    }
}
