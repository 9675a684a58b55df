//! `cargo xtask bench`: builds the program that runs on every rank and starts it on all of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::launch::JobOptions;
use crate::device::{self, Chosen, Gpus, Wanted};
use crate::error::{Error, Result};
use crate::launch::Launch;
use crate::peers;
use crate::place::Place;
use crate::program;
use crate::setup::Python;

/// The options of `bench`.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// Where to run: all GPUs where there are some, else four host ranks
    #[arg(long, value_enum, default_value_t)]
    device: Wanted,
    /// Number of ranks [default: one a GPU, four on the host; one for the suite `gemm`]
    #[arg(long, short = 'n')]
    ranks: Option<usize>,
    /// Compile the device code even where no GPU is
    #[arg(long)]
    cuda_features: bool,
    #[command(flatten)]
    what: What,
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
#[derive(Debug, Default, clap::Args)]
struct What {
    /// The suite, see --list [default: the main one]
    #[arg(long)]
    suite: Option<String>,
    /// A problem, as 8192x8192x3584; may be repeated
    #[arg(long, value_name = "MxNxK", value_delimiter = ',')]
    shape: Vec<String>,
    /// Element type of the inputs
    #[arg(long, value_name = "bf16|f16|f32")]
    dtype: Option<String>,
    /// Suite `collectives`: what a rank brings in bytes, as 4K,64K,1M
    #[arg(long, value_name = "4K,64K,1M", value_delimiter = ',')]
    sizes: Vec<String>,
    /// Suite `collectives`: operations, separated by commas
    #[arg(long = "op", value_name = "A,B", value_delimiter = ',')]
    operations: Vec<String>,
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
    /// PyTorch's operators as rows beside ours: `torch` times them first, on the same problems and GPUs; a file has the
    /// figures of an earlier run
    #[arg(long, value_name = "torch|FILE")]
    peers: Option<PathBuf>,
    /// What the ranks log, as `debug`, `warpweave_comm=trace` or `warn;0:info`, the latter for rank 0
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Write when the spans of the program ran to files of this name, one a rank, for Perfetto
    #[arg(long, value_name = "FILE")]
    spans: Option<PathBuf>,
    /// Make NVTX ranges of the spans of the program, for `nsys profile`; by the library of this file, else by CUDA's
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    nvtx: Option<Option<PathBuf>>,
    /// List the suites and implementations and run nothing
    #[arg(long)]
    list: bool,
}

/// Suites without communication, whose figures are of one device alone.
const OF_ONE_RANK: [&str; 1] = ["gemm"];

impl What {
    /// How many ranks the suite is for, where it is not for as many as there are.
    fn ranks(&self) -> Option<usize> {
        let suite = self.suite.as_deref()?;
        OF_ONE_RANK.contains(&suite).then_some(1)
    }

    /// Whether PyTorch is to be timed, and no file to be read.
    fn wants_torch(&self) -> bool {
        self.peers.as_deref() == Some(Path::new("torch"))
    }

    fn arguments(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                args.extend([name.into(), value]);
            }
        };
        add("--suite", self.suite.as_ref().map(Into::into));
        for shape in &self.shape {
            add("--shape", Some(shape.into()));
        }
        add("--dtype", self.dtype.as_ref().map(Into::into));
        for (name, list) in [
            ("--sizes", &self.sizes),
            ("--op", &self.operations),
            ("--impl", &self.implementations),
        ] {
            add(name, (!list.is_empty()).then(|| list.join(",").into()));
        }
        add(
            "--iterations",
            self.iterations.map(|n| n.to_string().into()),
        );
        add("--json", self.json.as_ref().map(Into::into));
        add("--markdown", self.markdown.as_ref().map(Into::into));
        add("--report", self.report.as_ref().map(Into::into));
        add("--plot", self.plot.as_ref().map(Into::into));
        add("--costs", self.costs.as_ref().map(Into::into));
        let figures = self.peers.as_ref().filter(|_| !self.wants_torch());
        add("--peers", figures.map(Into::into));
        add("--log", self.log.as_ref().map(Into::into));
        add("--spans", self.spans.as_ref().map(Into::into));
        if let Some(file) = &self.nvtx {
            let mut word = OsString::from("--nvtx");
            if let Some(file) = file {
                word.push("=");
                word.push(file);
            }
            args.push(word);
        }
        args
    }
}

fn arguments(options: &Options, chosen: Chosen, baselines: PathBuf) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["bench".into(), "--device".into(), chosen.name().into()];
    args.extend(options.what.arguments());
    if let Some(name) = &options.save_baseline {
        let folder = options.baselines.clone().unwrap_or(baselines);
        args.extend(["--save-baseline".into(), name.clone()]);
        args.extend(["--baselines".into(), folder.into()]);
    }
    args.extend(options.more.iter().cloned());
    args
}

/// Builds, starts the ranks and waits for them.
pub fn run(options: &Options) -> Result<()> {
    let place = Place::find()?;
    let gpus = Gpus::find();
    let chosen = device::choose(
        options.device,
        options.ranks.or(options.what.ranks()),
        &gpus,
        program::has_device_code(&place),
    )?;
    let torch = match options.what.wants_torch() && !options.what.list {
        true if !chosen.cuda => {
            return Err(Error::Option {
                option: "--peers torch",
                why: "PyTorch's operators run on GPUs alone; --peers FILE takes figures that were measured before".into(),
            });
        }
        true => Some(Python::with_torch()?),
        false => None,
    };
    let program = program::warpweave(&place, chosen.cuda || options.cuda_features)?;
    let args = arguments(options, chosen, place.baselines());
    check_arguments(&program, &args, options.what.list)?;
    if options.what.list {
        return Ok(());
    }
    eprintln!("{}", announcement(chosen));
    let mut launch = Launch {
        label: "bench",
        program,
        args,
        ranks: chosen.ranks,
        port: options.job.port,
        logs: options.job.logs.clone().unwrap_or_else(|| place.logs()),
        patience: options.job.patience(),
    };
    if let Some(python) = torch {
        let figures = peers::measure(&python, &launch)?;
        launch.args.extend(["--peers".into(), figures.into()]);
    }
    launch.run()
}

fn announcement(chosen: Chosen) -> String {
    match (chosen.ranks, chosen.cuda) {
        (1, true) => "1 rank on a GPU".into(),
        (ranks, true) => format!("{ranks} ranks on GPUs"),
        (1, false) => "1 rank on the host backend".into(),
        (ranks, false) => format!("{ranks} ranks on the host backend"),
    }
}

/// Has the program read its arguments once, so that an unknown suite is one message and not one from every rank.
fn check_arguments(program: &PathBuf, args: &[OsString], show: bool) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args).arg("--list");
    if !show {
        command.stdout(std::process::Stdio::null());
    }
    let status = command.status().map_err(|source| Error::NotStarted {
        program: program.clone(),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Refused {
        program: "warpweave bench".into(),
        status,
    })
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

    fn mapped(line: &[&str], chosen: Chosen) -> Vec<String> {
        let line = Line::try_parse_from(std::iter::once(&"bench").chain(line)).unwrap();
        arguments(&line.options, chosen, "kept".into())
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn options_reach_the_ranks_under_their_own_names() {
        let host = Chosen {
            cuda: false,
            ranks: 4,
        };
        assert_eq!(mapped(&[], host), ["bench", "--device", "host"]);
        let line = "--suite fused-matmul --shape 64x64x64,8x8x8 --shape 4x4x4 --dtype f16 --impl a,b --impl c \
            --iterations 3 --json out.json --markdown out.md --report out.html --log debug --spans s.json --ranks 2 --timeout 9 -- --more here";
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = "bench --device cuda --suite fused-matmul --shape 64x64x64 --shape 8x8x8 --shape 4x4x4 \
            --dtype f16 --impl a,b,c --iterations 3 --json out.json --markdown out.md --report out.html --log debug --spans s.json --more here";
        let expected: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(
            mapped(
                &words,
                Chosen {
                    cuda: true,
                    ranks: 2
                }
            ),
            expected
        );
    }

    #[test]
    fn ranges_are_made_by_the_library_that_is_named() {
        let host = Chosen {
            cuda: false,
            ranks: 4,
        };
        for word in ["--nvtx", "--nvtx=lib/libnvtx3interop.so.1"] {
            assert_eq!(mapped(&[word], host)[3..], [word]);
        }
    }

    #[test]
    fn options_of_collectives_reach_the_ranks_too() {
        let host = Chosen {
            cuda: false,
            ranks: 4,
        };
        let line = "--suite collectives --sizes 4K,64K --sizes 1M --op all-gather,all-reduce --impl nccl,push \
            --plot out.svg --costs a.tsv --peers torch.json";
        let words: Vec<_> = line.split_whitespace().collect();
        let expected = "bench --device host --suite collectives --sizes 4K,64K,1M --op all-gather,all-reduce \
            --impl nccl,push --plot out.svg --costs a.tsv --peers torch.json";
        let expected: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(mapped(&words, host), expected);
    }

    #[test]
    fn peers_are_a_file_or_pytorch_which_is_timed_first() {
        let gpus = Chosen {
            cuda: true,
            ranks: 2,
        };
        assert_eq!(mapped(&["--peers", "torch"], gpus).len(), 3);
        let file = mapped(&["--peers", "./torch"], gpus);
        assert_eq!(file[3..], ["--peers", "./torch"]);
    }

    #[test]
    fn a_baseline_has_a_folder() {
        let host = Chosen {
            cuda: false,
            ranks: 4,
        };
        let line = ["--save-baseline", "before"];
        let expected = "bench --device host --save-baseline before --baselines kept";
        assert_eq!(mapped(&line, host).join(" "), expected);
        let line = ["--save-baseline", "before", "--baselines", "here"];
        assert!(mapped(&line, host).join(" ").ends_with("--baselines here"));
        // Nothing is said of folders where nothing is kept.
        assert_eq!(mapped(&["--baselines", "here"], host).len(), 3);
    }

    #[test]
    fn suites_of_one_device_start_one_rank() {
        let ranks = |line: &[&str]| {
            let line = Line::try_parse_from(std::iter::once(&"bench").chain(line)).unwrap();
            line.options.ranks.or(line.options.what.ranks())
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
