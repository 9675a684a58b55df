//! The command line, and what each command does.

use std::ffi::OsString;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use candle_core::{DType, Device};
use clap::builder::RangedU64ValueParser;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use tokenizers::Tokenizer;
use warpweave_comm::{CollectiveKernels, Communicator};
use warpweave_overlap::execute::ExecuteBackend;

use crate::bench::Bench;
use crate::checkpoint::{Checkpoint, random};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::generate::{Decoding, Generated, Request, generate};
use crate::job::{self, Interrupts, Watch};
use crate::model::Model;
#[cfg(feature = "cuda")]
use crate::parallel::Parallel;
use crate::parallel::{Batches, Plain, Warpweave};
use crate::place::Place;
use crate::sampler::Sampling;
use crate::show::shown;
use crate::weights::Weights;

/// Tensor-parallel Llama and Qwen in candle, over Warpweave. Without a command: a small random model on one
/// rank by candle alone and on four host ranks, which must give the same tokens.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Ranks, where there is no command
    #[arg(long, default_value_t = 4, value_parser = positive())]
    ranks: usize,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Continue prompts with a model, on ranks of this machine
    Run(Run),
    /// What each rank of `run` does
    #[command(hide = true)]
    Rank(Run),
    /// Measure prefill and decode of a model with random weights
    Bench(Bench),
    /// What each rank of `bench` does
    #[command(hide = true)]
    BenchRank(Bench),
    /// Write a small random checkpoint to a folder
    Make {
        folder: PathBuf,
        #[arg(long, default_value = "llama")]
        family: Family,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Family {
    Llama,
    Qwen2,
    Qwen3,
}

#[derive(Clone, Debug, Args)]
struct Run {
    /// Folder with config.json, safetensors and tokenizer.json
    #[arg(long)]
    checkpoint: PathBuf,
    /// Number of ranks; 0 is one rank by candle alone
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// A prompt; several are one batch
    #[arg(long = "prompt", required = true)]
    prompts: Vec<String>,
    /// The most tokens to generate for each prompt
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    /// The most rows of a step: what the layers are made for
    #[arg(long, default_value_t = 512)]
    rows: usize,
    /// What ranks compute on
    #[arg(long, default_value = "host")]
    device: Processor,
    /// Element type of weights and activations
    #[arg(long, default_value = "f32")]
    dtype: Element,
    /// 0 takes the most probable token
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    temperature: f64,
    /// Sample from the most probable tokens, whose probabilities add up to this
    #[arg(long, default_value_t = 1.0, value_parser = top_p)]
    top_p: f64,
    /// Enqueue every step; else GPUs decode in graphs where they can
    #[arg(long)]
    eager: bool,
    /// Of the first request's random numbers; the others count on
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the tokens to this file, as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

fn temperature(text: &str) -> Result<f64, String> {
    let is_valid = |value: f64| value.is_finite() && value >= 0.0;
    number(text, is_valid, "it is finite, and 0 or more")
}

fn top_p(text: &str) -> Result<f64, String> {
    let is_valid = |value| value > 0.0 && value <= 1.0;
    number(text, is_valid, "it is more than 0 and at most 1")
}

/// A number of what there must be some of.
pub fn positive() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..)
}

fn number(text: &str, is_valid: impl Fn(f64) -> bool, range: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().map_err(|why| why.to_string())?;
    is_valid(value).then_some(value).ok_or(range.into())
}

/// What ranks compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Processor {
    /// The CPU.
    Host,
    /// A GPU each, where there are as many.
    #[cfg(feature = "cuda")]
    Cuda,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Element {
    F32,
    F16,
    Bf16,
}

impl Element {
    fn dtype(self) -> DType {
        match self {
            Element::F32 => DType::F32,
            Element::F16 => DType::F16,
            Element::Bf16 => DType::BF16,
        }
    }
}

impl Arguments {
    /// Does what the command says.
    ///
    /// # Errors
    /// Whatever fails.
    pub fn execute(self) -> Result<()> {
        match self.command {
            None => demonstrate(self.ranks),
            Some(Command::Run(run)) => {
                let interrupts = Interrupts::catch()?;
                match run.ranks {
                    0 => run.alone(&interrupts).map(drop),
                    ranks => job::run(ranks, &rank_arguments("rank", None), &interrupts),
                }
            }
            Some(Command::Rank(run)) => {
                let comm = job::join()?;
                run.rank(&comm).map_err(|error| job::cause(&comm, error))
            }
            Some(Command::Bench(bench)) => job::run(
                bench.ranks,
                &rank_arguments("bench-rank", None),
                &Interrupts::catch()?,
            ),
            Some(Command::BenchRank(bench)) => {
                let comm = job::join()?;
                measure(&bench, &comm).map_err(|error| job::cause(&comm, error))
            }
            Some(Command::Make { folder, family }) => {
                fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
                let config = match family {
                    Family::Llama => random::small_llama(),
                    Family::Qwen2 => random::small_qwen2(),
                    Family::Qwen3 => random::small_qwen3(),
                };
                random::write(&folder, &config, 1)
            }
        }
    }
}

/// The arguments of a rank, whose command this is: these, or those that this program was started with.
fn rank_arguments(command: &str, given: Option<Vec<OsString>>) -> Vec<OsString> {
    let rest = given.unwrap_or_else(|| std::env::args_os().skip(2).collect());
    [OsString::from(command)].into_iter().chain(rest).collect()
}

/// A rank of `bench`, with the ways that only its device has.
fn measure(bench: &Bench, comm: &Arc<Communicator>) -> Result<()> {
    match bench.device {
        Processor::Host => bench.rank(comm, &Place::host()?, Vec::new()),
        #[cfg(feature = "cuda")]
        Processor::Cuda => {
            let place = Place::gpu(comm.local_rank())?;
            // Ranks that share a GPU have no NCCL: then it is left out, on all alike.
            let nccl = crate::parallel::nccl::Nccl::new(&place, comm);
            if let (0, Err(why)) = (comm.rank(), &nccl) {
                println!("without NCCL: {why}");
            }
            let others = nccl
                .iter()
                .map(|nccl| ("candle with NCCL", nccl as &dyn Parallel));
            bench.rank(comm, &place, others.collect())?;
            nccl.map_or(Ok(()), crate::parallel::nccl::Nccl::close)
        }
    }
}

/// The same small model on one rank and on several.
fn demonstrate(ranks: usize) -> Result<()> {
    let interrupts = Interrupts::catch()?;
    let folder = tempfile::tempdir().map_err(Error::file(std::env::temp_dir()))?;
    random::write(folder.path(), &random::small_llama(), 1)?;
    let run = |temperature: f64, json: Option<PathBuf>| Run {
        checkpoint: folder.path().to_owned(),
        ranks,
        prompts: [
            "a",
            "we weave rows",
            "one two three four five six seven",
            "so",
        ]
        .map(String::from)
        .into(),
        tokens: 48,
        rows: 512,
        device: Processor::Host,
        dtype: Element::F32,
        temperature,
        top_p: 0.9,
        eager: false,
        seed: 7,
        json,
    };
    for (how, temperature) in [("greedy", 0.0), ("sampled", 0.8)] {
        println!("== {how}");
        let alone = run(temperature, None).alone(&interrupts)?;
        let tokens = folder.path().join(how).with_extension("json");
        let arguments = run(temperature, Some(tokens.clone())).arguments();
        job::run(ranks, &rank_arguments("rank", Some(arguments)), &interrupts)?;
        let text = fs::read_to_string(&tokens).map_err(Error::file(&tokens))?;
        let parallel: Vec<Vec<u32>> = serde_json::from_str(&text).map_err(Error::file(&tokens))?;
        for (request, (one, several)) in alone.tokens.iter().zip(&parallel).enumerate() {
            if let Some(at) =
                (0..one.len().max(several.len())).find(|at| one.get(*at) != several.get(*at))
            {
                let what = format!(
                    "{how}: request {request} differs at token {at} between candle and {ranks} ranks"
                );
                return Err(Error::Differs(what));
            }
        }
    }
    println!("the same tokens");
    Ok(())
}

impl Run {
    fn arguments(&self) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec!["--checkpoint".into(), self.checkpoint.clone().into()];
        let element = self
            .dtype
            .to_possible_value()
            .expect("no element type is hidden");
        let mut add =
            |name: &str, value: String| all.extend([format!("--{name}").into(), value.into()]);
        self.prompts
            .iter()
            .for_each(|prompt| add("prompt", prompt.clone()));
        add("ranks", self.ranks.to_string());
        add("tokens", self.tokens.to_string());
        add("rows", self.rows.to_string());
        add("dtype", element.get_name().to_owned());
        add("temperature", self.temperature.to_string());
        add("top-p", self.top_p.to_string());
        add("seed", self.seed.to_string());
        if self.eager {
            all.push("--eager".into());
        }
        if let Some(json) = &self.json {
            all.extend(["--json".into(), json.clone().into()]);
        }
        all
    }

    /// One rank, by candle alone. Ctrl-C ends it at any time.
    fn alone(&self, interrupts: &Interrupts) -> Result<Generated> {
        if self.device != Processor::Host {
            let why = "--ranks 0 computes on the host";
            Arguments::command()
                .error(ErrorKind::ArgumentConflict, why)
                .exit();
        }
        let run = self.clone();
        let work = thread::spawn(move || run.plain());
        while !work.is_finished() {
            interrupts.check()?;
            thread::sleep(job::GLANCE);
        }
        work.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn plain(&self) -> Result<Generated> {
        let (tokenizer, requests) = self.requests()?;
        let (config, weights) = self.weights((0, 1), &Device::Cpu)?;
        let (positions, _) = config.longest_sequence();
        let model = Model::new(config, weights, &Plain, positions)?;
        let decoding = self.decoding(&model);
        let generated = shown("candle, 1 rank", &tokenizer, &requests, |show| {
            generate(&model, &requests, self.rows, decoding, show)
        })?;
        self.write(&generated)?;
        Ok(generated)
    }

    /// Writes the tokens where `--json` says.
    fn write(&self, generated: &Generated) -> Result<()> {
        let Some(path) = &self.json else {
            return Ok(());
        };
        let text = serde_json::to_string(&generated.tokens).map_err(Error::file(path))?;
        fs::write(path, text).map_err(Error::file(path))
    }

    /// This rank of a job.
    fn rank(&self, comm: &Arc<Communicator>) -> Result<()> {
        match self.device {
            Processor::Host => self.rank_on(comm, &Place::host()?),
            #[cfg(feature = "cuda")]
            Processor::Cuda => self.rank_on(comm, &Place::gpu(comm.local_rank())?),
        }
    }

    fn rank_on<B>(&self, comm: &Arc<Communicator>, place: &Place<B>) -> Result<()>
    where
        B: ExecuteBackend + CollectiveKernels,
    {
        let _watch = Watch::new(comm, &place.backend);
        let (tokenizer, requests) = self.requests()?;
        let exchange = comm.shared_exchange();
        let batches = Batches::of_rows(self.rows);
        let (config, weights) = self.weights((comm.rank(), comm.world()), &place.candle)?;
        let parallel = Warpweave::new(place, &exchange, &config, self.dtype.dtype(), batches)?;
        let (positions, _) = config.longest_sequence();
        let model = Model::new(config, weights, &parallel, positions)?;
        let decoding = self.decoding(&model);
        let generated = match comm.rank() {
            0 => {
                let title = format!("Warpweave, {} ranks", comm.world());
                shown(&title, &tokenizer, &requests, |show| {
                    generate(&model, &requests, self.rows, decoding, show)
                })?
            }
            _ => generate(&model, &requests, self.rows, decoding, &mut |_, _| Ok(()))?,
        };
        comm.agree("tokens", &generated.tokens)?;
        if comm.rank() == 0 {
            self.write(&generated)?;
        }
        parallel.close(exchange.as_ref())?;
        Ok(comm.barrier_at("done")?)
    }

    fn decoding(&self, model: &Model<'_>) -> Decoding {
        match self.eager {
            true => Decoding::ByRequest,
            false => Decoding::of(model),
        }
    }

    /// What config.json says, and this rank's weights.
    fn weights(&self, place: (usize, usize), device: &Device) -> Result<(Config, Weights)> {
        let config = Config::read(&self.checkpoint)?;
        let checkpoint = Checkpoint::open(&self.checkpoint, config.dtype()?)?;
        let weights = Weights::read(&checkpoint, &config, place, self.dtype.dtype(), device)?;
        Ok((config, weights))
    }

    fn requests(&self) -> Result<(Tokenizer, Vec<Request>)> {
        let tokenizer = tokenizer(&self.checkpoint)?;
        let mut requests = Vec::new();
        for (prompt, index) in self.prompts.iter().zip(0..) {
            let failed = |why: tokenizers::Error| Error::Tokenizer(why.to_string());
            let encoded = tokenizer.encode(prompt.as_str(), true).map_err(failed)?;
            let sampling = Sampling {
                temperature: self.temperature,
                top_p: self.top_p,
                seed: self.seed.wrapping_add(index),
            };
            requests.push(Request {
                prompt: encoded.get_ids().to_vec(),
                most: self.tokens,
                sampling,
            });
        }
        Ok((tokenizer, requests))
    }
}

/// Prompts are taken as they are: what tokenizer.json says of truncation and padding is for training.
fn tokenizer(folder: &Path) -> Result<Tokenizer> {
    let path = folder.join("tokenizer.json");
    let mut tokenizer = Tokenizer::from_file(&path).map_err(Error::file(&path))?;
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(None)
        .map_err(Error::file(&path))?;
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `run` of a checkpoint, for two prompts.
    fn run(checkpoint: &Path) -> Run {
        let arguments = [
            "",
            "run",
            "--prompt",
            "we weave rows",
            "--prompt",
            "a",
            "--checkpoint",
        ];
        let arguments = arguments
            .map(OsString::from)
            .into_iter()
            .chain([checkpoint.into()]);
        match Arguments::try_parse_from(arguments).unwrap().command {
            Some(Command::Run(run)) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sampling_out_of_range_is_refused() {
        let parsed = |name: &str, value: &str| {
            let run = ["", "run", "--checkpoint", "x", "--prompt", "a"];
            let option = format!("--{name}={value}");
            Arguments::try_parse_from(run.into_iter().chain([option.as_str()])).is_ok()
        };
        for (name, valid, invalid) in [
            ("temperature", ["0", "1.5"], ["-1", "NaN", "inf"]),
            ("top-p", ["0.1", "1"], ["0", "NaN", "1.1"]),
        ] {
            assert!(valid.iter().all(|value| parsed(name, value)), "{name}");
            assert!(!invalid.iter().any(|value| parsed(name, value)), "{name}");
        }
    }

    #[test]
    fn numbers_of_nothing_are_refused() {
        let parsed = |arguments: &[&str]| Arguments::try_parse_from(arguments).is_ok();
        assert!(parsed(&["", "--ranks", "1"]) && !parsed(&["", "--ranks", "0"]));
        for name in ["ranks", "steps", "rounds", "prefill", "decode"] {
            let option = |value: u32| format!("--{name}={value}");
            assert!(parsed(&["", "bench", &option(1)]) && !parsed(&["", "bench", &option(0)]));
        }
        // One rank by candle alone.
        assert!(parsed(&[
            "",
            "run",
            "--checkpoint=x",
            "--prompt=a",
            "--ranks=0"
        ]));
    }

    #[test]
    fn prompts_are_neither_truncated_nor_padded() {
        let folder = tempfile::tempdir().unwrap();
        random::write(folder.path(), &random::small_llama(), 1).unwrap();
        let prompts = || -> Vec<_> {
            let (_, requests) = run(folder.path()).requests().unwrap();
            requests.into_iter().map(|request| request.prompt).collect()
        };
        let plain = prompts();
        let path = folder.path().join("tokenizer.json");
        let mut value: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        value["truncation"] = serde_json::json!({
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
        });
        value["padding"] = serde_json::json!({
            "strategy": {"Fixed": 8}, "direction": "Left", "pad_to_multiple_of": null,
            "pad_id": 1, "pad_type_id": 0, "pad_token": "<|end_of_text|>",
        });
        fs::write(&path, value.to_string()).unwrap();
        assert_eq!(prompts(), plain);

        fs::write(&path, "{").unwrap();
        let error = run(folder.path()).requests().unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }
}
