//! The model on ranks that are threads, compared with candle alone.

mod checkpoint;
#[cfg(feature = "cuda")]
mod gpu;
mod logits;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};
use tempfile::TempDir;
use warpweave_comm::{CollectiveKernels, Communicator};
use warpweave_example_llama::Result;
use warpweave_example_llama::checkpoint::{Checkpoint, random};
use warpweave_example_llama::config::Config;
use warpweave_example_llama::model::Model;
use warpweave_example_llama::parallel::{Batches, Plain, Silent, Warpweave};
use warpweave_example_llama::place::Place;
use warpweave_example_llama::weights::Weights;
use warpweave_overlap::execute::ExecuteBackend;
use warpweave_symm_mem::{BackendKind, Exchange};

/// The most rows of a step.
const ROWS: usize = 256;

/// Batches of more rows than this are reduced by their GEMMs, or sharded: prompts are, single tokens are not.
const FUSED_ROWS: usize = 16;

fn written(config: &Config) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    random::write(folder.path(), config, 1).unwrap();
    folder
}

fn weights(folder: &Path, place: (usize, usize), dtype: DType) -> Result<(Config, Weights)> {
    weights_on(&Device::Cpu, folder, place, dtype)
}

fn weights_on(
    device: &Device,
    folder: &Path,
    place: (usize, usize),
    dtype: DType,
) -> Result<(Config, Weights)> {
    let config = Config::read(folder)?;
    let checkpoint = Checkpoint::open(folder, config.dtype()?)?;
    let weights = Weights::read(&checkpoint, &config, place, dtype, device)?;
    Ok((config, weights))
}

/// By candle alone, in f32.
fn plain(folder: &Path) -> Model<'static> {
    let (config, weights) = weights(folder, (0, 1), DType::F32).unwrap();
    Model::new(config, weights, &Plain, ROWS).unwrap()
}

/// What `work` gives on each of `world` ranks of the host.
fn on_ranks<T: Send>(
    world: usize,
    folder: &Path,
    dtype: DType,
    work: impl Fn(&Model<'_>) -> T + Sync,
) -> Vec<T> {
    let host = |_| Place::host().unwrap();
    let job = (world, Reduced::of(world));
    on_ranks_at(job, host, folder, dtype, |_, model| work(model))
}

/// How row-parallel layers are reduced: `fused_rows` or fewer in one launch, and `sharded_rows` or more for
/// shards.
#[derive(Clone, Copy)]
struct Reduced {
    fused_rows: usize,
    sharded_rows: usize,
}

impl Reduced {
    /// Among two ranks for all rows, else for shards, where one launch does not.
    fn of(world: usize) -> Self {
        Reduced {
            fused_rows: FUSED_ROWS,
            sharded_rows: if world == 2 { usize::MAX } else { 0 },
        }
    }
}

/// What `work` gives on each of `world` ranks, at the places of their own.
fn on_ranks_at<B: ExecuteBackend + CollectiveKernels, T: Send>(
    (world, reduced): (usize, Reduced),
    place: impl Fn(usize) -> Place<B> + Sync,
    folder: &Path,
    dtype: DType,
    work: impl Fn(&Place<B>, &Model<'_>) -> T + Sync,
) -> Vec<T> {
    let rank = |comm: Communicator| {
        let exchange: Arc<dyn Exchange> = comm.shared_exchange();
        let place = place(comm.rank());
        let part = (comm.rank(), comm.world());
        let (config, weights) = weights_on(&place.candle, folder, part, dtype).unwrap();
        let row = config.hidden_size * dtype.size_in_bytes();
        let batches = Batches {
            fused_bytes: reduced.fused_rows * row,
            sharded_rows: reduced.sharded_rows,
            ..Batches::of_rows(ROWS)
        };
        let parallel = Warpweave::new(&place, &exchange, &config, dtype, batches).unwrap();
        if B::KIND == BackendKind::Cuda {
            // candle loads its kernels at their first launch. Loading waits for the kernels of the context,
            // and where ranks share a GPU, one of those may wait for the rank that loads.
            let (config, weights) = (config.clone(), weights.clone());
            let silent = Silent(&parallel);
            work(&place, &Model::new(config, weights, &silent, ROWS).unwrap());
            comm.barrier().unwrap();
        }
        let model = Model::new(config, weights, &parallel, ROWS).unwrap();
        let result = work(&place, &model);
        parallel.close(exchange.as_ref()).unwrap();
        comm.barrier().unwrap();
        result
    };
    let ranks = Communicator::threads(world).unwrap();
    std::thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|comm| scope.spawn(move || rank(comm)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}
