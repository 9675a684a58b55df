//! `cargo xtask bench`: builds the program that runs on every rank and starts it on all of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::forward::Forward;
use super::launch::JobOptions;
use crate::device::{self, Asked, Chosen, Gpus};
use crate::error::{Error, Result};
use crate::peers;
use crate::place::Place;
use crate::program;
use crate::setup::Python;

#[derive(Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    asked: Asked,
    /// Compile the device code even on a machine without a GPU
    #[arg(long)]
    cuda_features: bool,
    /// The suite, see --list [default: the main one]
    #[arg(long)]
    suite: Option<String>,
    #[command(flatten)]
    what: Forward<What>,
    /// PyTorch's operators as more rows: `torch` times them first, on the same problems and GPUs; a file has
    /// the figures of an earlier run
    #[arg(long, value_name = "torch|FILE")]
    peers: Option<PathBuf>,
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
    job: JobOptions,
    /// More options for the program that runs on every rank
    #[arg(last = true, value_name = "OPTIONS")]
    more: Vec<OsString>,
}

/// Options that the program on every rank takes under the same names.
#[derive(Debug, clap::Args)]
struct What {
    /// A problem, as 8192x8192x3584; may be repeated
    #[arg(long, value_name = "MxNxK", value_delimiter = ',')]
    shape: Vec<String>,
    /// Element type of the inputs
    #[arg(long, value_name = "bf16|f16|f32")]
    dtype: Option<String>,
    /// Suite `collectives`: bytes of each rank's input, as 4K,64K,1M
    #[arg(long, value_name = "4K,64K,1M", value_delimiter = ',')]
    sizes: Vec<String>,
    /// Suite `collectives`: operations, separated by commas
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    op: Vec<String>,
    /// Only these implementations, separated by commas
    #[arg(long = "impl", value_name = "A,B", value_delimiter = ',')]
    implementations: Vec<String>,
    /// Timed iterations
    #[arg(long, value_name = "N")]
    iterations: Option<u32>,
    /// Write the results to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results to this file too, as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write the results to this file too, as an HTML page that needs nothing else
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Suite `collectives`: draw times over sizes to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Suite `collectives`: write the variants' times to this file, as the library's `select` takes them
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// What the ranks log, as `debug`, `warpweave_comm=trace` or `warn;0:info`, the latter for rank 0
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Write when the spans of the program ran to files of this name, one a rank, for Perfetto
    #[arg(long, value_name = "FILE")]
    spans: Option<PathBuf>,
    /// Make NVTX ranges of the spans of the program, for `nsys profile`; with this library file, else with
    /// CUDA's
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    nvtx: Option<Option<PathBuf>>,
}

/// Suites without communication, which measure one device.
const OF_ONE_RANK: [&str; 1] = ["gemm"];

impl Options {
    /// The number of ranks that the options or the suite ask for.
    fn ranks(&self) -> Option<usize> {
        let suite = self.suite.as_deref();
        let one = suite
            .is_some_and(|suite| OF_ONE_RANK.contains(&suite))
            .then_some(1);
        self.asked.ranks.or(one)
    }

    /// Whether PyTorch is to be timed. Any other value of `--peers` is a file.
    fn wants_torch(&self) -> bool {
        self.peers.as_deref() == Some(Path::new("torch"))
    }

    fn arguments(&self, chosen: Chosen, baselines: PathBuf) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["bench".into(), "--device".into(), chosen.name().into()];
        if let Some(suite) = &self.suite {
            args.extend(["--suite".into(), suite.into()]);
        }
        args.extend(self.what.0.iter().cloned());
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
pub fn run(options: &Options) -> Result<()> {
    let place = Place::find()?;
    let device_code = program::has_device_code(&place);
    let chosen = device::choose(
        options.asked.device,
        options.ranks(),
        &Gpus::find(),
        device_code,
    )?;
    let torch = match options.wants_torch() && !options.list {
        true if !chosen.cuda => {
            let why = "PyTorch's operators run on GPUs only; --peers FILE takes figures that were measured \
                before";
            return Err(Error::option("--peers torch", why));
        }
        true => Some(Python::with_torch()?),
        false => None,
    };
    let program = program::warpweave(&place, chosen.cuda || options.cuda_features)?;
    let args = options.arguments(chosen, place.baselines());
    check_arguments(&program, &args, options.list)?;
    if options.list {
        return Ok(());
    }
    let ranks = if chosen.ranks == 1 { "rank" } else { "ranks" };
    let on = if chosen.cuda {
        "GPUs"
    } else {
        "the host backend"
    };
    eprintln!("{} {ranks} on {on}", chosen.ranks);
    let mut launch = options
        .job
        .launch("bench", program, args, chosen.ranks, &place);
    if let Some(python) = torch {
        let figures = peers::measure(&python, &launch)?;
        launch.args.extend(["--peers".into(), figures.into()]);
    }
    launch.run()
}

/// Has the program parse its arguments once: an unknown suite is then one message, not one from every rank.
fn check_arguments(program: &Path, args: &[OsString], show: bool) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).arg("--list");
    if !show {
        command.stdout(Stdio::null());
    }
    match command.status().map_err(Error::not_started(program))? {
        status if status.success() => Ok(()),
        status => Err(Error::Refused {
            program: "warpweave bench",
            status,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    const HOST: Chosen = Chosen {
        cuda: false,
        ranks: 4,
    };
    const GPUS: Chosen = Chosen {
        cuda: true,
        ranks: 2,
    };

    fn mapped(line: &[&str], chosen: Chosen) -> Vec<String> {
        let line = Line::try_parse_from(std::iter::once(&"bench").chain(line)).unwrap();
        let words = line.options.arguments(chosen, "kept".into());
        words
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn options_reach_the_ranks_under_their_own_names() {
        assert_eq!(mapped(&[], HOST), ["bench", "--device", "host"]);
        let line = "--suite fused-matmul --shape 64x64x64,8x8x8 --shape 4x4x4 --dtype f16 --impl a,b \
            --impl c --iterations 3 --json out.json --markdown out.md --report out.html --log debug \
            --spans s.json --ranks 2 --timeout 9 -- --more here";
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = "bench --device cuda --suite fused-matmul --shape 64x64x64 --shape 8x8x8 --shape \
            4x4x4 --dtype f16 --impl a --impl b --impl c --iterations 3 --json out.json --markdown \
            out.md --report out.html --log debug --spans s.json --more here";
        let expected: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(mapped(&words, GPUS), expected);
    }

    #[test]
    fn ranges_are_made_by_the_library_that_is_named() {
        for word in ["--nvtx", "--nvtx=lib/libnvtx3interop.so.1"] {
            assert_eq!(mapped(&[word], HOST)[3..], [word]);
        }
    }

    #[test]
    fn options_of_collectives_reach_the_ranks_too() {
        let line = "--suite collectives --sizes 4K,64K --sizes 1M --op all-gather,all-reduce --impl \
            nccl,push --plot out.svg --costs a.tsv --peers torch.json";
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = "bench --device host --suite collectives --sizes 4K --sizes 64K --sizes 1M --op \
            all-gather --op all-reduce --impl nccl --impl push --plot out.svg --costs a.tsv --peers \
            torch.json";
        let expected: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(mapped(&words, HOST), expected);
    }

    #[test]
    fn peers_are_a_file_or_pytorch_which_is_timed_first() {
        assert_eq!(mapped(&["--peers", "torch"], GPUS).len(), 3);
        let file = mapped(&["--peers", "./torch"], GPUS);
        assert_eq!(file[3..], ["--peers", "./torch"]);
    }

    #[test]
    fn a_baseline_has_a_folder() {
        let line = ["--save-baseline", "before"];
        let expected = "bench --device host --save-baseline before --baselines kept";
        assert_eq!(mapped(&line, HOST).join(" "), expected);
        let line = ["--save-baseline", "before", "--baselines", "here"];
        assert!(mapped(&line, HOST).join(" ").ends_with("--baselines here"));
        // Without a baseline the folder is not passed on.
        assert_eq!(mapped(&["--baselines", "here"], HOST).len(), 3);
    }

    #[test]
    fn suites_of_one_device_start_one_rank() {
        let ranks = |line: &[&str]| {
            let line = Line::try_parse_from(std::iter::once(&"bench").chain(line)).unwrap();
            line.options.ranks()
        };
        assert_eq!(ranks(&["--suite", "gemm"]), Some(1));
        assert_eq!(ranks(&["--suite", "gemm", "--ranks", "4"]), Some(4));
        assert_eq!(ranks(&["--suite", "fused-matmul"]), None);
        assert_eq!(ranks(&[]), None);
    }

    #[test]
    fn job_options_are_ours_alone() {
        let line = Line::try_parse_from([
            "bench",
            "--timeout",
            "1.5",
            "--grace",
            "0",
            "--port",
            "7000",
        ])
        .unwrap();
        let job = &line.options.job;
        assert_eq!(job.port, Some(7000));
        assert_eq!(
            job.patience().job,
            Some(std::time::Duration::from_millis(1500))
        );
        assert_eq!(job.patience().grace, std::time::Duration::ZERO);
        let default = Line::try_parse_from(["bench"])
            .unwrap()
            .options
            .job
            .patience();
        assert_eq!(default.grace, std::time::Duration::from_secs(20));
        for wrong in [
            ["--timeout", "-1"],
            ["--grace", "soon"],
            ["--port", "0"],
            ["--device", "tpu"],
        ] {
            assert!(
                Line::try_parse_from(std::iter::once("bench").chain(wrong)).is_err(),
                "{wrong:?}"
            );
        }
    }
}
