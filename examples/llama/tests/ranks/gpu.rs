//! The same on a GPU, which ranks share where there is one: `cargo test -p warpweave-example-llama --features
//! cuda,nvcc,cutlass --test ranks -- --ignored --test-threads 1`.

use candle_core::{DType, Tensor};
use warpweave_example_llama::bench::captured::Decode;
use warpweave_example_llama::checkpoint::random::small_llama;
use warpweave_example_llama::config::Config;
use warpweave_example_llama::model::Model;
use warpweave_example_llama::place::Place;
use warpweave_symm_mem::Cuda;

use super::logits::{all_logits, bound, condition, distance};
use super::{Reduced, on_ranks_at, plain, written};

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

/// The steps of a graph against the same steps enqueued one by one.
#[test]
#[ignore = "needs a GPU"]
fn gpu_captured_steps_choose_the_tokens_of_enqueued_ones() {
    const STEPS: usize = 6;
    let folder = written(&model());
    for world in [1, 2] {
        let job = (world, Reduced::of(world));
        on_ranks_at(job, place, folder.path(), DType::BF16, |place, model| {
            let decode = Decode::new(place, model, 4, 32, 5).unwrap();
            // The two steps before the capture have moved on: begin from what they chose.
            let first = decode.tokens().unwrap();
            decode.run(STEPS).unwrap();
            assert_eq!(
                decode.tokens().unwrap(),
                enqueued(place, model, &first, STEPS)
            );
        });
    }
}

/// What `steps` steps choose after `first`, from position 5 on.
fn enqueued(place: &Place<Cuda>, model: &Model<'_>, first: &[u32], steps: usize) -> Vec<u32> {
    let slots = model.slots(first.len(), 32).unwrap();
    let mut tokens = Tensor::new(first, &place.candle).unwrap();
    for step in 0..steps {
        let positions = Tensor::new(vec![5 + step as u32; first.len()], &place.candle).unwrap();
        let x = model.transform(&tokens, &positions, &slots.step()).unwrap();
        tokens = model.most_probable(&x).unwrap();
    }
    model.finish().unwrap();
    tokens.to_vec1().unwrap()
}
