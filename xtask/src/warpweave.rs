//! Commands of other programs: `warpweave plan` in one process, what measures on every rank;
//! `warpweave-report report` and `compare`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::cargo::Kept;
use crate::device::{Asked, Chosen};
use crate::error::{Error, Result};
use crate::launch::{JobOptions, Launch};
use crate::place::Place;

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Arguments {
    /// Arguments of the program; `--help` lists them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    args: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub struct Timeline {
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    job: JobOptions,
    /// As `pushChunks --shape 8192x3584x8192 --dtype bf16 --machine h200x4 --out trace.json`
    #[arg(required = true, last = true, value_name = "ALGORITHM …")]
    args: Vec<OsString>,
}

/// The options of `compare`. The status is 0 if nothing is slower, 1 if something is or a row is wrong, 2 if
/// there is nothing to compare, 3 if the machines differ.
#[derive(Debug, clap::Args)]
pub struct Compare {
    /// The old baseline: a name, or the path of a file of `bench --json`
    #[arg(value_name = "A")]
    old: OsString,
    /// The new one
    #[arg(value_name = "B")]
    new: OsString,
    /// How much slower a time may be, in percent [default: 5 on GPUs, 25 on the host]
    #[arg(long, value_name = "PERCENT")]
    threshold: Option<OsString>,
    /// The folder of the baselines [default: target/warpweave/baselines]
    #[arg(long, value_name = "DIR")]
    baselines: Option<PathBuf>,
}

/// Becomes `warpweave plan` with the same arguments. No device is touched, so no device code is built.
pub fn plan(options: &Arguments) -> Result<()> {
    let program = Place::find()?.warpweave(false)?;
    become_program(program, "plan", &options.args)
}

/// Becomes `warpweave-report report` with the same arguments.
pub fn report(options: &Arguments) -> Result<()> {
    become_program(Place::find()?.report()?, "report", &options.args)
}

/// Becomes `warpweave-report compare`. A comparison that cannot be made is an error in usage, since status 1
/// is a verdict.
pub fn compare(options: &Compare) -> Result<()> {
    let place = Place::find()?;
    let default = place.results("baselines");
    let folder = options.baselines.clone().unwrap_or(default);
    let mut args = vec!["--baselines".into(), folder.into()];
    if let Some(threshold) = &options.threshold {
        args.extend(["--threshold".into(), threshold.clone()]);
    }
    args.extend(["--".into(), options.old.clone(), options.new.clone()]);
    let program = place.report();
    let started = program.and_then(|program| become_program(program, "compare", &args));
    started.map_err(|error| Error::usage(error.to_string()))
}

/// Starts `warpweave timeline` on every rank.
pub fn timeline(options: &Timeline) -> Result<()> {
    let Timeline { asked, job, args } = options;
    start("timeline", *asked, job, args.clone())
}

/// Runs a command of `warpweave` on every rank.
pub fn start(
    command: &'static str,
    asked: Asked,
    job: &JobOptions,
    more: Vec<OsString>,
) -> Result<()> {
    let place = Place::find()?;
    launch(
        command,
        &place,
        place.choose(asked, job.hosts.len())?,
        job,
        more,
    )?
    .run()
}

/// Builds `warpweave`, for a job that runs a command of it on every rank.
pub fn launch(
    command: &'static str,
    place: &Place,
    chosen: Chosen,
    job: &JobOptions,
    more: Vec<OsString>,
) -> Result<Launch> {
    let program = place.warpweave(chosen.cuda)?;
    // Other hosts may have it by its first name alone, and nobody builds in a bundle.
    let kept = match place {
        Place::Workspace(_) if job.hosts.is_empty() => Some(Kept::of(&program)?),
        _ => None,
    };
    let mut args: Vec<OsString> = [command, "--device", chosen.name()].map(Into::into).into();
    args.extend(more);
    Ok(Launch {
        label: command,
        program: kept.as_ref().map_or(program, |kept| kept.0.clone()),
        _kept: kept,
        args,
        ranks: chosen.ranks,
        job: job.clone(),
    })
}

/// Returns only if the program cannot be started.
fn become_program(program: PathBuf, command: &str, args: &[OsString]) -> Result<()> {
    let source = Command::new(&program).arg(command).args(args).exec();
    Err(Error::not_started(program)(source))
}
