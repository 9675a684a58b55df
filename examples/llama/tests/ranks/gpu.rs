//! The same on a GPU, which ranks share where there is one: `cargo test -p warpweave-example-llama --features
//! cuda,nvcc,cutlass --test ranks -- --ignored --test-threads 1`.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use warpweave_comm::Communicator;
use warpweave_example_llama::checkpoint::random::small_llama;
use warpweave_example_llama::config::Config;
use warpweave_example_llama::decode::{Decode, Step};
use warpweave_example_llama::generate::Decoding;
use warpweave_example_llama::model::Model;
use warpweave_example_llama::parallel::{Batches, Warpweave};
use warpweave_example_llama::place::Place;
use warpweave_example_llama::sampler::{Sampler, Sampling};
use warpweave_symm_mem::{Cuda, Exchange};

use super::logits::{all_logits, bound, condition, distance};
use super::tokens::{requests, tokens_by};
use super::{ROWS, Reduced, on_ranks_at, plain, weights_on, written};

/// Wide enough for the tiles of a GEMM on GPUs.
fn model() -> Config {
    Config {
        hidden_size: 512,
        intermediate_size: 1024,
        head_dim: Some(64),
        vocab_size: 512,
        ..small_llama()
    }
}

fn place(rank: usize) -> Place<Cuda> {
    Place::gpu(rank).unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_logits_are_those_of_candle_on_the_host() {
    let config = model();
    let folder = written(&config);
    let one = all_logits(&plain(folder.path()));
    let bound = bound(
        &config,
        DType::BF16,
        condition(&config, folder.path(), &one),
    );
    for world in [1, 2, 4] {
        let job = (world, Reduced::of(world));
        let ranks = on_ranks_at(job, place, folder.path(), DType::BF16, |_, model| {
            all_logits(model)
        });
        assert!(
            ranks.iter().all(|logits| *logits == ranks[0]),
            "ranks have other bits"
        );
        let distance = distance(&one, &ranks[0]);
        println!("{world} ranks: {distance:.2e} of {bound:.2e}");
        assert!(
            distance <= bound,
            "{world} ranks: {distance:.2e} > {bound:.2e}"
        );
    }
}

const GREEDY: Sampling = Sampling {
    temperature: 0.0,
    top_p: 1.0,
    seed: 1,
};

/// The steps of a graph against the same steps enqueued one by one.
#[test]
#[ignore = "needs a GPU"]
fn gpu_captured_steps_choose_the_tokens_of_enqueued_ones() {
    const STEPS: usize = 6;
    let (first, positions) = ([3, 1, 4, 1], [5; 4]);
    let folder = written(&model());
    for world in [1, 2] {
        let job = (world, Reduced::of(world));
        on_ranks_at(job, place, folder.path(), DType::BF16, |place, model| {
            let cache = model.cache(first.len(), 32).unwrap();
            let mut decode = Decode::new(model, &cache, true).unwrap();
            // The second time all are captured.
            for _ in 0..2 {
                decode.set(&first, &positions).unwrap();
                for _ in 0..STEPS {
                    decode.step().unwrap();
                }
            }
            model.finish().unwrap();
            let found = decode.logits().unwrap().unwrap();
            let expected = enqueued(place, model, (&first, &positions), STEPS);
            assert_eq!((decode.tokens().unwrap(), found), expected);
        });
    }
}

/// What `steps` steps choose after some tokens at some positions, and the last logits.
fn enqueued(
    place: &Place<Cuda>,
    model: &Model<'_>,
    (first, at): (&[u32], &[u32]),
    steps: usize,
) -> (Vec<u32>, Vec<Vec<f32>>) {
    let cache = model.cache(first.len(), 32).unwrap();
    let (mut tokens, mut logits) = (first.to_vec(), Vec::new());
    for step in 0..steps {
        let positions: Vec<_> = at.iter().map(|at| at + step as u32).collect();
        let [next, positions] =
            [&tokens, &positions].map(|x| Tensor::new(x.as_slice(), &place.candle).unwrap());
        let step = Step::new(&cache);
        let x = model.transform(&next, &positions, &step).unwrap();
        let all = model.logits(&x).unwrap().to_dtype(DType::F32).unwrap();
        logits = all.to_vec2().unwrap();
        let greedy = |logits: &Vec<f32>| Sampler::new(GREEDY).choose(logits).unwrap();
        tokens = logits.iter().map(greedy).collect();
    }
    model.finish().unwrap();
    (tokens, logits)
}

/// Greedy and sampled, some of which wait until others have ended a step.
#[test]
#[ignore = "needs a GPU"]
fn gpu_tokens_do_not_depend_on_graphs_or_the_batch() {
    let folder = written(&model());
    for world in [1, 2] {
        let job = (world, Reduced::of(world));
        on_ranks_at(job, place, folder.path(), DType::BF16, |_, model| {
            let requests = requests();
            assert_eq!(
                Decoding::of(model) == Decoding::Together,
                cfg!(feature = "nvcc")
            );
            let by = |decoding, rows| tokens_by(decoding, model, &requests, rows);
            let expected = by(Decoding::ByRequest, ROWS);
            assert_eq!(by(Decoding::of(model), ROWS), expected);
            assert_eq!(by(Decoding::of(model), 40), expected);
            let alone = |one| tokens_by(Decoding::of(model), model, one, ROWS).remove(0);
            let alone: Vec<_> = requests.chunks(1).map(alone).collect();
            assert_eq!(alone, expected);
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_logits_that_are_not_finite_end_the_job() {
    let folder = written(&model());
    let place = place(0);
    let comm = Communicator::threads(1).unwrap().remove(0);
    let exchange: Arc<dyn Exchange> = comm.shared_exchange();
    let (config, mut weights) =
        weights_on(&place.candle, folder.path(), (0, 1), DType::BF16).unwrap();
    let batches = Batches::of_rows(ROWS);
    let parallel = Warpweave::new(&place, &exchange, &config, DType::BF16, batches).unwrap();
    weights.norm = (weights.norm * f64::NAN).unwrap();
    let model = Model::new(config, weights, &parallel, ROWS).unwrap();
    let cache = model.cache(1, 8).unwrap();
    let mut decode = Decode::new(&model, &cache, false).unwrap();
    decode.set(&[3], &[5]).unwrap();
    decode.step().unwrap();
    model.finish().unwrap();
    assert_eq!(
        decode.tokens().unwrap(),
        [u32::MAX],
        "no token of NaN logits"
    );
    parallel.close(exchange.as_ref()).unwrap();
}
