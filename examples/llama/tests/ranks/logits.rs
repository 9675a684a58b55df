//! The logits of several ranks against those of one, at every position.
//!
//! # The bound
//! Between the embedding and a logit a run rounds to the element type [`roundings`] times. Each moves a row
//! by at most u in relative norm, u = 2⁻⁹ for bf16 and 2⁻²⁴ for f32; and a sum of K elements in f32 by about
//! √K · 2⁻²⁴. These errors are independent, so they add in squares, over the roundings and over the two runs.
//! What one of them has grown to at the logits is the condition κ of this model, which a perturbation of the
//! embedding measures. So the two runs differ by about κ · √(2 · roundings) · (u + √K · 2⁻²⁴) in relative
//! norm. The roundings of a row have a standard deviation of u / √3 and less: the bound is more than √3 of
//! these. [`a_lost_partial_exceeds_the_bound`] shows that it is not too wide.

use candle_core::{DType, Device, Tensor};
use warpweave_example_llama::attention::Segment;
use warpweave_example_llama::checkpoint::random::{small_llama, small_qwen2, small_qwen3};
use warpweave_example_llama::config::Config;
use warpweave_example_llama::decode::Step;
use warpweave_example_llama::model::{Batch, Model, Rows};
use warpweave_example_llama::parallel::Plain;
use warpweave_example_llama::place::Place;

use super::{ROWS, Reduced, on_ranks, on_ranks_at, plain, weights, written};

/// Residual, norm, q and k and v, their rotation, weights and sum of the attention, partials and their sum;
/// residual, norm, gate and up, silu and its GEMM's input, partials and their sum. Then norm and logits.
fn roundings(config: &Config) -> usize {
    15 * config.num_hidden_layers + 2
}

pub fn bound(config: &Config, dtype: DType, condition: f64) -> f64 {
    let single = 2f64.powi(-24);
    let unit = match dtype {
        DType::F32 => single,
        _ => 2f64.powi(-9),
    };
    let k = config.intermediate_size.max(config.hidden_size) as f64;
    condition * (2.0 * roundings(config) as f64).sqrt() * (unit + k.sqrt() * single)
}

/// A batch with so many tokens of each request after so many others: `(past, rows)`.
fn batch(parts: impl IntoIterator<Item = (usize, usize)>) -> Batch {
    let mut batch = Batch::default();
    for (request, (past, rows)) in parts.into_iter().enumerate() {
        let start = batch.tokens.len();
        batch.segments.push(Segment {
            request,
            start,
            rows,
            past,
        });
        let token = |at: usize| ((at * 37 + request * 11) % 320) as u32;
        batch.tokens.extend((past..past + rows).map(token));
    }
    batch
}

/// Three sequences of other lengths, then two more tokens of each.
pub fn all_logits(model: &Model<'_>) -> Vec<Vec<f32>> {
    let lengths = [9, 40, 1];
    let cache = model.cache(lengths.len(), 42).unwrap();
    let mut rows = Vec::new();
    for (step, count) in [0, 1, 2].into_iter().zip([None, Some(1), Some(1)]) {
        let batch = batch(lengths.map(|length| match count {
            None => (0, length),
            Some(count) => (length + step - 1, count),
        }));
        let logits = model.forward(&batch, &cache, Rows::All).unwrap();
        rows.extend(logits.to_vec2::<f32>().unwrap());
    }
    rows
}

/// The largest difference of a row, in relative norm.
pub fn distance(one: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    assert_eq!(one.len(), other.len());
    let norm = |row: &mut dyn Iterator<Item = f64>| row.map(|x| x * x).sum::<f64>().sqrt();
    let rows = one.iter().zip(other).map(|(one, other)| {
        let differences = &mut one.iter().zip(other).map(|(a, b)| f64::from(a - b));
        norm(differences) / norm(&mut one.iter().map(|x| f64::from(*x)))
    });
    rows.fold(0.0, |largest, distance| {
        if distance > largest || distance.is_nan() {
            distance
        } else {
            largest
        }
    })
}

/// How much a relative change of the embedding changes the logits.
pub fn condition(config: &Config, folder: &std::path::Path, base: &[Vec<f32>]) -> f64 {
    const CHANGE: f64 = 1e-3;
    let (_, mut weights) = weights(folder, (0, 1), DType::F32).unwrap();
    let shape = weights.embedding.shape().clone();
    let signs = (0..shape.elem_count()).map(|at| {
        if at * 2_654_435_761 % 7 < 3 {
            -1f32
        } else {
            1.0
        }
    });
    let signs =
        Tensor::from_vec(signs.collect::<Vec<_>>(), shape, weights.embedding.device()).unwrap();
    let change = ((signs * &weights.embedding).unwrap() * CHANGE).unwrap();
    weights.embedding = (&weights.embedding + change).unwrap();
    let model = Model::new(config.clone(), weights, &Plain, ROWS).unwrap();
    // The part of an error that comes from the input of a layer is not all of it: at least what it was.
    (distance(base, &all_logits(&model)) / CHANGE).max(1.0)
}

fn compare(config: Config, world: usize, dtype: DType) {
    let folder = written(&config);
    let one = all_logits(&plain(folder.path()));
    let condition = condition(&config, folder.path(), &one);
    let bound = bound(&config, dtype, condition);
    let ranks = on_ranks(world, folder.path(), dtype, all_logits);
    for (rank, logits) in ranks.iter().enumerate() {
        assert!(
            *logits == ranks[0],
            "rank {rank} has other bits than rank 0"
        );
    }
    let distance = distance(&one, &ranks[0]);
    println!(
        "{} {dtype:?} on {world}: {distance:.2e} of {bound:.2e}, κ = {condition:.1}",
        config.model_type
    );
    assert!(distance <= bound, "{distance:.2e} > {bound:.2e}");
}

#[test]
fn llama_in_f32() {
    for world in [1, 2, 4] {
        compare(small_llama(), world, DType::F32);
    }
}

#[test]
fn llama_in_bf16() {
    for world in [1, 2, 4] {
        compare(small_llama(), world, DType::BF16);
    }
}

#[test]
fn a_vocabulary_need_not_divide() {
    for (world, dtype) in [(1, DType::F32), (4, DType::F32), (2, DType::BF16)] {
        let config = Config {
            vocab_size: 322,
            ..small_llama()
        };
        compare(config, world, dtype);
    }
}

/// Around the bounds between the ways to reduce, of batches of one row too.
#[test]
fn logits_do_not_depend_on_how_layers_are_reduced() {
    let folder = written(&small_llama());
    let logits = |model: &Model<'_>| {
        let of_rows = |rows| {
            let cache = model.cache(1, rows).unwrap();
            let logits = model.forward(&batch([(0, rows)]), &cache, Rows::All);
            logits.unwrap().to_vec2::<f32>().unwrap()
        };
        [1, 2, 63, 64].map(of_rows)
    };
    let by = |reduced| {
        let host = |_| Place::host().unwrap();
        let work = |_: &_, model: &Model<'_>| logits(model);
        on_ranks_at((4, reduced), host, folder.path(), DType::BF16, work)
    };
    let wanted = by(Reduced::of(4));
    for sharded_rows in [0, 1, 64, usize::MAX] {
        let reduced = Reduced {
            fused_rows: 0,
            sharded_rows,
        };
        assert!(by(reduced) == wanted, "sharded from {sharded_rows} rows on");
    }
}

#[test]
fn qwen2_has_biases_and_tied_embeddings() {
    compare(small_qwen2(), 4, DType::F32);
    compare(small_qwen2(), 2, DType::BF16);
}

#[test]
fn qwen3_has_norms_of_heads() {
    compare(small_qwen3(), 4, DType::F32);
    compare(small_qwen3(), 2, DType::BF16);
}

/// As if one of four ranks' partials of one layer's attention had not come.
#[test]
fn a_lost_partial_exceeds_the_bound() {
    let config = small_llama();
    let folder = written(&config);
    let one = all_logits(&plain(folder.path()));
    let condition = condition(&config, folder.path(), &one);
    let (_, mut weights) = weights(folder.path(), (0, 1), DType::F32).unwrap();
    let o = &mut weights.layers[2].o;
    let columns = o.dim(1).unwrap();
    let lost = o.narrow(1, 0, columns / 4).unwrap().zeros_like().unwrap();
    *o = Tensor::cat(
        &[&lost, &o.narrow(1, columns / 4, columns / 4 * 3).unwrap()],
        1,
    )
    .unwrap();
    let model = Model::new(config.clone(), weights, &Plain, ROWS).unwrap();
    let distance = distance(&one, &all_logits(&model));
    let bound = bound(&config, DType::BF16, condition);
    println!("{distance:.2e}, bound of bf16 {bound:.2e}");
    assert!(distance > bound);
}

/// Where rows are sharded, too.
#[test]
fn the_last_rows_are_among_all() {
    let config = small_llama();
    let folder = written(&config);
    for (world, lengths) in [
        (2, vec![9, 40, 1]),
        (4, vec![9, 40, 1]),
        // Shards differ by a row, and some are empty.
        (4, vec![7, 2]),
        (4, vec![1, 2]),
    ] {
        on_ranks(world, folder.path(), DType::F32, |model| {
            let batch = batch(lengths.iter().map(|&length| (0, length)));
            let logits = |rows| {
                let cache = model.cache(lengths.len(), 40).unwrap();
                let logits = model.forward(&batch, &cache, rows).unwrap();
                logits.to_vec2::<f32>().unwrap()
            };
            let all = logits(Rows::All);
            let ends = batch.segments.iter().map(|s| s.start + s.rows - 1);
            let wanted: Vec<_> = ends.map(|row| all[row].clone()).collect();
            assert_eq!(logits(Rows::Last), wanted);
        });
    }
}

/// A step of all requests, as graphs capture it, against the ragged batch, after prompts of other lengths.
#[test]
fn requests_decode_together_as_in_a_ragged_batch() {
    let config = small_llama();
    let folder = written(&config);
    let lengths = [9, 40, 1];
    let distances = on_ranks(2, folder.path(), DType::F32, |model| {
        let cache = model.cache(lengths.len(), 64).unwrap();
        let prompts = batch(lengths.map(|length| (0, length)));
        model.forward(&prompts, &cache, Rows::Last).unwrap();
        let mut largest = 0f64;
        for step in 0..3 {
            let segment = |request: usize| Segment {
                request,
                start: request,
                rows: 1,
                past: lengths[request] + step,
            };
            let segments = (0..lengths.len()).map(segment).collect();
            let tokens = vec![step as u32 + 3; lengths.len()];
            let positions: Vec<_> = lengths
                .iter()
                .map(|length| (length + step) as u32)
                .collect();
            let batch = Batch { tokens, segments };
            let ragged = model.forward(&batch, &cache, Rows::All).unwrap();
            let [tokens, positions] =
                [batch.tokens, positions].map(|x| Tensor::new(x, &Device::Cpu).unwrap());
            let step = Step::new(&cache);
            let x = model.transform(&tokens, &positions, &step).unwrap();
            let logits = model.logits(&x).unwrap();
            let [ragged, logits] = [ragged, logits].map(|x| x.to_vec2::<f32>().unwrap());
            largest = largest.max(distance(&ragged, &logits));
        }
        largest
    });
    let one = all_logits(&plain(folder.path()));
    let bound = bound(&config, DType::F32, condition(&config, folder.path(), &one));
    assert!(
        distances.iter().all(|distance| *distance <= bound),
        "{distances:?} > {bound:.2e}"
    );
}
