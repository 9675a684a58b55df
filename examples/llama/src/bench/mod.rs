//! Measures the same model by Warpweave, by Warpweave with nothing to communicate, by Warpweave with layers
//! that are not batch-invariant, and on GPUs by candle with NCCL, in interleaved rounds: prefill of some
//! lengths, and decode at some batch sizes, captured in CUDA graphs on GPUs.

mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{D, DType};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use warpweave_comm::{CollectiveKernels, Communicator};
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_overlap::layers::Reproducible;

use crate::attention::Segment;
use crate::checkpoint::random;
use crate::command::positive;
use crate::config::Config;
use crate::decode::{Decode, ENQUEUED};
use crate::error::{Error, Result};
use crate::job::Watch;
use crate::model::{Batch, Model, Rows};
use crate::parallel::{Batches, Parallel, Silent, Warpweave};
use crate::place::Place;
use crate::weights::Weights;

/// What is measured.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// Number of ranks
    #[arg(long, default_value_t = 4, value_parser = positive())]
    pub ranks: usize,
    /// What ranks compute on
    #[arg(long, default_value = "host")]
    pub device: crate::command::Processor,
    /// The model, with random weights that are made on the device
    #[arg(long, default_value = "small")]
    shape: Shape,
    /// Its layers, if not as many as it has
    #[arg(long)]
    layers: Option<usize>,
    /// Lengths of prompts
    #[arg(long, value_delimiter = ',', default_value = "16,64", value_parser = positive())]
    prefill: Vec<usize>,
    /// Batch sizes of decode
    #[arg(long, value_delimiter = ',', default_value = "1,4", value_parser = positive())]
    decode: Vec<usize>,
    /// Tokens that every request has before it decodes
    #[arg(long, default_value_t = 32)]
    context: usize,
    /// Decode steps of a round
    #[arg(long, default_value_t = 8, value_parser = positive())]
    steps: usize,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 3, value_parser = positive())]
    rounds: usize,
    /// Measure first what computes each layer fastest, and keep it for later jobs on this machine
    #[arg(long)]
    tune: bool,
    /// Figures of others, as peers/torch_llama.py writes them
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Folder for figures.json, tables.md and plots
    #[arg(long)]
    report: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shape {
    Small,
    #[value(name = "8b")]
    Llama8b,
}

/// What is measured of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// A prompt, up to its first token.
    Prefill,
    /// A step of a batch.
    Decode,
}

/// A time: the median over the rounds of the slowest rank's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// Who does it.
    pub way: String,
    /// What.
    pub phase: Phase,
    /// Tokens of the prompt, or requests of the batch.
    pub size: usize,
    /// Of the prompt, or of a step.
    pub seconds: f64,
}

/// Everything that a run has measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Of rank 0.
    pub device: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Bytes of weights of a rank.
    pub weights: usize,
    /// Bytes of what its layers share and have of their own.
    pub arena: usize,
    /// In the order of measurement.
    pub figures: Vec<Figure>,
}

/// Of a decode: those that are not captured, and the capture.
const FIRST_STEPS: usize = ENQUEUED + 1;

const WARPWEAVE: &str = "Warpweave";
const SILENT: &str = "Warpweave without communication";
const FASTEST: &str = "Warpweave, not batch-invariant";

impl Bench {
    /// What one rank does. Rank 0 prints the tables and writes the report.
    ///
    /// # Errors
    /// Whatever fails.
    pub fn rank<B>(
        &self,
        comm: &Arc<Communicator>,
        place: &Place<B>,
        others: Others<'_>,
    ) -> Result<()>
    where
        B: ExecuteBackend + CollectiveKernels,
    {
        let _watch = Watch::new(comm, &place.backend);
        let exchange = comm.shared_exchange();
        let config = self.config();
        // GPUs have no batch-invariant GEMM of f32.
        let dtype = if place.candle.is_cpu() {
            DType::F32
        } else {
            DType::BF16
        };
        let weights = Weights::random(&config, comm.world(), dtype, &place.candle)?;
        let rows = self
            .prefill
            .iter()
            .chain(&self.decode)
            .copied()
            .max()
            .unwrap_or(1);
        let batches = Batches::of_rows(rows);
        let any_bits = Batches {
            reproducible: Reproducible::No,
            ..batches
        };
        let by = |batches| Warpweave::new(place, &exchange, &config, dtype, batches);
        let (mut parallel, mut fastest) = (by(batches)?, by(any_bits)?);
        if self.tune {
            parallel.tune(dtype)?;
            fastest.tune(dtype)?;
        }
        let silent = Silent(&parallel);
        let mut ways: Vec<(&str, &dyn Parallel)> = vec![
            (WARPWEAVE, &parallel),
            (SILENT, &silent),
            (FASTEST, &fastest),
        ];
        ways.extend(others);
        let capacity = self.context + self.steps.max(FIRST_STEPS);
        let positions = rows.max(capacity);
        let model = |parallel| Model::new(config.clone(), weights.clone(), parallel, positions);
        let models = ways
            .iter()
            .map(|(name, parallel)| Ok((*name, model(*parallel)?)));
        let models = models.collect::<Result<Vec<_>>>()?;

        let mut figures = Vec::new();
        for tokens in &self.prefill {
            let mut runs: Vec<_> = models
                .iter()
                .map(|(name, model)| (*name, || prefill(model, *tokens)))
                .collect();
            figures.extend(self.rounds(comm, Phase::Prefill, *tokens, &mut runs)?);
        }
        for batch in &self.decode {
            let cache = |(_, model): &(&str, Model<'_>)| model.cache(*batch, capacity);
            let caches = models.iter().map(cache).collect::<Result<Vec<_>>>()?;
            let decodes = models.iter().zip(&caches).map(|((name, model), cache)| {
                let mut decode = Decode::new(model, cache, false)?;
                decoded(model, &mut decode, *batch, self.context, FIRST_STEPS)?;
                Ok((*name, model, decode))
            });
            let mut decodes = decodes.collect::<Result<Vec<_>>>()?;
            let mut runs: Vec<_> = decodes
                .iter_mut()
                .map(|(name, model, decode)| {
                    let run = || decoded(model, decode, *batch, self.context, self.steps);
                    (*name, run)
                })
                .collect();
            figures.extend(self.rounds(comm, Phase::Decode, *batch, &mut runs)?);
        }
        if let Some(path) = &self.peer {
            let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
            let peers: Vec<Figure> = serde_json::from_str(&text).map_err(Error::file(path))?;
            figures.extend(peers);
        }
        let figures = Figures {
            device: place.backend.device().name.clone(),
            ranks: comm.world(),
            layers: config.num_hidden_layers,
            weights: weights.bytes(),
            arena: parallel.arena_bytes(),
            figures,
        };
        if comm.rank() == 0 {
            println!("{}", report::tables(&figures));
            if let Some(folder) = &self.report {
                report::write(folder, &figures)?;
            }
        }
        drop(models);
        parallel.close(exchange.as_ref())?;
        fastest.close(exchange.as_ref())?;
        Ok(comm.barrier_at("done")?)
    }

    fn config(&self) -> Config {
        let config = match self.shape {
            Shape::Small => random::small_llama(),
            Shape::Llama8b => random::llama_8b(),
        };
        Config {
            num_hidden_layers: self.layers.unwrap_or(config.num_hidden_layers),
            ..config
        }
    }

    /// Runs each way once, then all of them in rounds. All ranks begin a run together, and the slowest
    /// counts.
    fn rounds<R: FnMut() -> Result<Duration>>(
        &self,
        comm: &Communicator,
        phase: Phase,
        size: usize,
        runs: &mut [(&str, R)],
    ) -> Result<Vec<Figure>> {
        let mut times = vec![Vec::new(); runs.len()];
        for round in 0..=self.rounds {
            for ((_, run), times) in runs.iter_mut().zip(&mut times) {
                comm.barrier_at("round")?;
                let seconds = run()?.as_secs_f64();
                let all = comm.all_gather_bytes("seconds", &seconds.to_le_bytes())?;
                let all = all
                    .iter()
                    .filter_map(|bytes| Some(f64::from_le_bytes(*bytes.first_chunk()?)));
                if round > 0 {
                    times.push(all.fold(0.0, f64::max));
                }
            }
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        let figures = runs.iter().zip(&mut times).map(|((way, _), times)| Figure {
            way: (*way).to_owned(),
            phase,
            size,
            seconds: median(times),
        });
        Ok(figures.collect())
    }
}

/// Ways that only some backends have, by name.
pub type Others<'a> = Vec<(&'static str, &'a dyn Parallel)>;

/// The time to the first token of a prompt.
fn prefill(model: &Model<'_>, tokens: usize) -> Result<Duration> {
    let cache = model.cache(1, tokens)?;
    let vocabulary = model.config().vocab_size;
    let batch = Batch {
        tokens: (0..tokens)
            .map(|at| (at * 37 % vocabulary) as u32)
            .collect(),
        segments: vec![Segment {
            request: 0,
            start: 0,
            rows: tokens,
            past: 0,
        }],
    };
    let began = Instant::now();
    let logits = model.forward(&batch, &cache, Rows::Last)?;
    logits.argmax(D::Minus1)?.to_vec1::<u32>()?;
    Ok(began.elapsed())
}

/// The time of a step, of so many after `context` tokens. Their keys and values are zeros: the time does not
/// depend on them.
fn decoded(
    model: &Model<'_>,
    decode: &mut Decode<'_>,
    batch: usize,
    context: usize,
    steps: usize,
) -> Result<Duration> {
    let tokens: Vec<u32> = (0..batch as u32).collect();
    decode.set(&tokens, &vec![context as u32; batch])?;
    model.finish()?;
    let began = Instant::now();
    for _ in 0..steps {
        decode.step()?;
    }
    model.finish()?;
    Ok(began.elapsed() / steps as u32)
}
