//! `cargo xtask ci`: the checks that a change must pass.

mod steps;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use fs_err::{self as fs, File};

use super::test;
use crate::device::{Asked, Wanted};
use crate::error::{Error, Result};
use crate::harness::Counts;
use crate::place;
use steps::{Step, TESTS, steps};

#[derive(Debug, Default, clap::Args)]
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
    let xtask = std::env::current_exe()?;
    let steps = chosen(steps(), options)?;
    if options.list {
        for step in &steps {
            let note = if step.by_name {
                "  (by name only: --only)"
            } else {
                ""
            };
            println!("{:<18}{}{note}", step.name, step.line());
        }
        return Ok(());
    }
    let logs = place::target_directory(&root).join("warpweave/ci");
    let (mut done, mut with_next) = (Vec::new(), None);
    for (index, step) in steps.iter().enumerate() {
        let (number, all) = (index + 1, steps.len());
        println!("\n==== {number}/{all} {}: {}", step.name, step.line());
        if let Some((probe, missing)) = step.needs
            && !succeeds(probe, &root)
        {
            println!("left out: {missing}");
            continue;
        }
        let command = step.command(&root, &xtask);
        if step.with_next && with_next.is_none() && number < all {
            with_next = Some(Running::start(step.name, command, Some(&logs))?);
            continue;
        }
        let this = match step.line {
            TESTS => tests(step.name)?,
            _ => Running::start(step.name, command, None)?.finish()?,
        };
        let before = with_next.take().map(Running::finish).transpose()?;
        done.extend(before.into_iter().chain([this]));
        if done.iter().any(|step: &Done| step.failure.is_some()) {
            break;
        }
    }
    done.extend(with_next.map(Running::finish).transpose()?);
    summarise(&steps, &done)
}

/// A step that runs, with its output in a file if the next step runs meanwhile.
struct Running {
    name: &'static str,
    child: Child,
    log: Option<PathBuf>,
    began: (Instant, f64),
}

impl Running {
    fn start(name: &'static str, mut command: Command, logs: Option<&Path>) -> Result<Self> {
        let log = logs.map(|logs| logs.join(format!("{name}.log")));
        if let (Some(logs), Some(log)) = (logs, &log) {
            fs::create_dir_all(logs)?;
            let file = File::create(log)?.into_parts().0;
            command.stdout(file.try_clone()?).stderr(file);
        }
        let began = (Instant::now(), cpu_seconds());
        let child = command
            .spawn()
            .map_err(Error::not_started(command.get_program()))?;
        Ok(Self {
            name,
            child,
            log,
            began,
        })
    }

    fn finish(mut self) -> Result<Done> {
        if self.log.is_some() {
            // The next step has ended: what is counted from here is of this one alone.
            self.began.1 = cpu_seconds();
        }
        let status = self.child.wait()?;
        if let Some(log) = self.log {
            println!("\n---- {}", self.name);
            let _ = io::stdout().write_all(&fs::read(log)?);
        }
        let failure = (!status.success()).then(|| status.to_string());
        Ok(Done::new(self.name, self.began, failure, None))
    }
}

/// Runs the tests of the workspace on the host.
fn tests(name: &'static str) -> Result<Done> {
    let began = (Instant::now(), cpu_seconds());
    let asked = Asked {
        device: Wanted::Host,
        ranks: None,
    };
    let (failure, counts) = match test::tests(asked, test::LIMIT) {
        Ok(counts) if counts.failed == 0 => (None, Some(counts)),
        Ok(counts) => (Some(format!("{} failures", counts.failed)), Some(counts)),
        Err(error) => (Some(error.to_string()), None),
    };
    Ok(Done::new(name, began, failure, counts))
}

struct Done {
    name: &'static str,
    failure: Option<String>,
    counts: Option<Counts>,
    seconds: f64,
    /// CPU seconds of all its processes. On a busy machine they say more than the elapsed time.
    cpu: f64,
}

impl Done {
    fn new(
        name: &'static str,
        (began, cpu): (Instant, f64),
        failure: Option<String>,
        counts: Option<Counts>,
    ) -> Self {
        Self {
            name,
            failure,
            counts,
            seconds: began.elapsed().as_secs_f64(),
            cpu: cpu_seconds() - cpu,
        }
    }
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
    command
        .args(["-c", shell])
        .current_dir(root)
        .stdin(Stdio::null());
    command.output().is_ok_and(|output| output.status.success())
}

/// Keeps the steps that were asked for, and refuses names that no step has. A list also has the steps that
/// run by name only.
fn chosen(steps: Vec<Step>, options: &Options) -> Result<Vec<Step>> {
    let Options { only, skip, list } = options;
    let known: Vec<_> = steps.iter().map(|step| step.name).collect();
    if let Some(name) = only
        .iter()
        .chain(skip)
        .find(|name| !known.contains(&name.as_str()))
    {
        let known = known.join(", ");
        return Err(Error::usage(format!("no step `{name}`; there are {known}")));
    }
    let wanted = |step: &Step| {
        let named = |names: &[String]| names.iter().any(|name| name == step.name);
        let all = only.is_empty() && (*list || !step.by_name);
        (all || named(only)) && !named(skip)
    };
    Ok(steps.into_iter().filter(wanted).collect())
}

fn summarise(steps: &[Step], done: &[Done]) -> Result<()> {
    let mut all = Counts::default();
    println!();
    for step in done {
        let word = step.failure.as_ref().map_or("passed", |_| "FAILED");
        let counts = step
            .counts
            .map(|counts| format!("  {counts}"))
            .unwrap_or_default();
        let Done {
            name, seconds, cpu, ..
        } = step;
        println!("{name:<18} {word} {seconds:>7.1} s {cpu:>7.1} s CPU{counts}");
        all += step.counts.unwrap_or(Counts {
            passed: usize::from(step.failure.is_none()),
            failed: usize::from(step.failure.is_some()),
            skipped: 0,
        });
    }
    for step in steps
        .iter()
        .filter(|step| !done.iter().any(|done| done.name == step.name))
    {
        println!("{:<18} not run", step.name);
    }
    let failure = done
        .iter()
        .find_map(|step| Some((step.name, step.failure.as_ref()?)));
    if let Some((name, failure)) = failure {
        println!("{name}: {failure}");
    }
    println!("{} passed, {} failed", all.passed, all.failed);
    failure.map_or(Ok(()), |_| Err(Error::Reported))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

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
        assert!(
            message.contains("dcos") && message.contains("clippy"),
            "{message}"
        );
        // A long step is listed, and run by its name alone.
        assert!(!all.contains(&"candle"));
        assert_eq!(names(&["candle"], &[], false).unwrap(), ["candle"]);
        assert!(names(&[], &[], true).unwrap().contains(&"candle"));
    }

    #[test]
    fn what_a_step_needs_is_looked_for() {
        let here = Path::new(".");
        assert!(succeeds("true", here));
        assert!(!succeeds("false", here));
        assert!(!succeeds("no-such-program-anywhere", here));
    }

    #[test]
    fn a_step_that_runs_with_the_next_is_printed_after_it() {
        let logs = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.2; echo output; echo error >&2; exit 7"]);
        let running = Running::start("fails", command, Some(logs.path())).unwrap();
        let done = running.finish().unwrap();
        assert_eq!(
            (done.name, done.failure),
            ("fails", Some("exit status: 7".into()))
        );
        assert!(done.seconds >= 0.2);
        let log = fs::read_to_string(logs.path().join("fails.log")).unwrap();
        assert_eq!(log, "output\nerror\n");
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
        let began = Instant::now() - Duration::from_secs(1);
        let done = |failure| Done::new("test", (began, 0.0), failure, None);
        assert!(summarise(&[], &[done(None), done(None)]).is_ok());
        let failed = summarise(&steps(), &[done(None), done(Some("1 failures".into()))]);
        assert!(matches!(failed, Err(Error::Reported)));
    }
}
