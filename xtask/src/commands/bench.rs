//! `cargo xtask bench`: builds the program that runs on every rank and starts it on all of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::warpweave;
use crate::device::Asked;
use crate::error::{Error, Result};
use crate::launch::JobOptions;
use crate::peers;
use crate::place::Place;
use crate::setup::Python;

#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "All other options are those of `warpweave bench`: cargo xtask bench -- --help"
)]
pub struct Options {
    #[command(flatten)]
    pub asked: Asked,
    /// The suite, see --list [default: the main one]
    #[arg(long)]
    pub suite: Option<String>,
    /// All suites, one after another, into this folder: their reports, a page of all, and what the machine
    /// is. The suite `quick` comes first, which checks every kernel on small data; if it fails, nothing is
    /// timed
    #[arg(long, value_name = "DIR", conflicts_with_all = ["suite", "list"])]
    pub all: Option<PathBuf>,
    /// PyTorch's operators as more rows: `torch` times them first, on the same problems and GPUs; a file has
    /// the figures of an earlier run
    #[arg(long, value_name = "torch|FILE")]
    pub peers: Option<PathBuf>,
    /// List the suites and implementations and run nothing
    #[arg(long)]
    list: bool,
    /// Keep the results, if all are right, as the baseline of this name, for `compare`
    #[arg(long, value_name = "NAME")]
    save_baseline: Option<OsString>,
    /// The folder of the baselines [default: target/warpweave/baselines]
    #[arg(long, value_name = "DIR")]
    baselines: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobOptions,
    /// More options for the program that runs on every rank
    #[arg(last = true, value_name = "OPTIONS")]
    pub more: Vec<OsString>,
}

/// The suite without communication, which measures one device.
const OF_ONE_RANK: &str = "gemm";

impl Options {
    /// Where to run, as the options or the suite ask.
    fn asked(&self) -> Asked {
        let is_of_one = self.suite.as_deref() == Some(OF_ONE_RANK);
        Asked {
            ranks: self.asked.ranks.or(is_of_one.then_some(1)),
            ..self.asked
        }
    }

    /// Whether PyTorch is to be timed. Any other value of `--peers` is a file.
    fn wants_torch(&self) -> bool {
        self.peers.as_deref() == Some(Path::new("torch"))
    }

    /// The options for every rank.
    fn arguments(&self, baselines: PathBuf) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        if let Some(suite) = &self.suite {
            args.extend(["--suite".into(), suite.into()]);
        }
        if let Some(file) = self.peers.as_ref().filter(|_| !self.wants_torch()) {
            args.extend(["--peers".into(), file.into()]);
        }
        if let Some(name) = &self.save_baseline {
            let folder = self.baselines.clone().unwrap_or(baselines);
            args.extend(["--save-baseline".into(), name.clone()]);
            args.extend(["--baselines".into(), folder.into()]);
        }
        args.extend(self.more.iter().cloned());
        args
    }
}

/// Builds, starts the ranks and waits for them.
pub fn suite(options: &Options, place: &Place) -> Result<()> {
    let chosen = place.choose(options.asked())?;
    let torch = match options.wants_torch() && !options.list {
        true if !chosen.cuda => {
            return Err(Error::usage(
                "--peers torch: PyTorch's operators run on GPUs only; --peers FILE takes figures that were \
                 measured before",
            ));
        }
        true => Some(Python::with_torch(Python::candidates())?),
        false => None,
    };
    let args = options.arguments(place.results("baselines"));
    let mut launch = warpweave::launch("bench", place, chosen, &options.job, args)?;
    let list = peers::answer(&launch, &["--list"])?;
    if options.list {
        print!("{list}");
        return Ok(());
    }
    let ranks = if chosen.ranks == 1 { "rank" } else { "ranks" };
    let on = if chosen.cuda {
        "GPUs"
    } else {
        "the host backend"
    };
    eprintln!("{} {ranks} on {on}", chosen.ranks);
    match torch.map(|python| peers::measure(&python, &launch)) {
        Some(Ok(figures)) => launch.args.extend(["--peers".into(), figures.into()]),
        // Of all suites, PyTorch has operators for some.
        Some(Err(error)) if options.all.is_some() && !matches!(error, Error::Interrupted(_)) => {
            eprintln!("without figures of PyTorch: {error}");
        }
        Some(Err(error)) => return Err(error),
        None => {}
    }
    launch.run()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::time::Duration;

    pub(in super::super) fn parsed(line: &str) -> std::result::Result<Options, clap::Error> {
        #[derive(clap::Parser)]
        #[command(name = "xtask")]
        enum Line {
            Bench(Options),
        }
        let words = format!("xtask bench {line}");
        let Line::Bench(options) = crate::parsed(words.split(' ').map(OsString::from))?;
        Ok(options)
    }

    #[test]
    fn options_reach_the_ranks_under_their_own_names() {
        for (line, expected) in [
            ("-n3 --suite quick", "--suite quick"),
            (
                "--shape 8x8x8 --ranks 2 --suite a --impl a,b --timeout=9 --nvtx --log debug -- --more here",
                "--suite a --shape 8x8x8 --impl a,b --nvtx --log debug --more here",
            ),
            (
                "--nvtx=lib/libnvtx3interop.so.1 --list",
                "--nvtx=lib/libnvtx3interop.so.1",
            ),
            // PyTorch is timed first: then its figures are in a file.
            ("--peers torch --op a", "--op a"),
            ("--peers ./torch", "--peers ./torch"),
            (
                "--save-baseline old",
                "--save-baseline old --baselines kept",
            ),
            (
                "--save-baseline old --baselines here",
                "--save-baseline old --baselines here",
            ),
            ("--baselines here --json a", "--json a"),
        ] {
            let args = parsed(line).unwrap().arguments("kept".into());
            assert_eq!(args.join(&OsString::from(" ")), expected, "{line}");
        }
    }

    #[test]
    fn suites_of_one_device_start_one_rank() {
        for (line, expected) in [
            ("--suite gemm", Some(1)),
            ("--suite gemm --ranks 4", Some(4)),
            ("--suite fused-matmul", None),
            ("--list", None),
        ] {
            assert_eq!(parsed(line).unwrap().asked().ranks, expected, "{line}");
        }
    }

    #[test]
    fn job_options_are_ours_alone() {
        let options = parsed("--json out --timeout 1.5 --grace 0 --port 7000").unwrap();
        assert_eq!(options.job.port, Some(7000));
        assert_eq!(options.job.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(options.job.grace, Duration::ZERO);
        let default = parsed("--list").unwrap().job;
        assert_eq!(default.grace, Duration::from_secs(20));
        for wrong in [
            "--timeout -1",
            "--grace soon",
            "--port 0",
            "--device tpu",
            "--grace",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
