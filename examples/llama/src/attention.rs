//! Attention over a KV cache, request by request, in candle's operations: the bits of a request do not depend
//! on which others share the batch. `fused` has it in a launch or two, where that can be had.
//!
//! Prompts of any lengths and single tokens may share a batch. [`decode`](crate::decode) has the attention of
//! steps that are captured.

use candle_core::{DType, Device, Error, Result, Tensor};

use crate::fused;
use crate::rope::Rotations;

/// What a rank keeps of the past: keys and values of its heads, for as many tokens of each request. Attention
/// writes to it in place.
#[derive(Debug)]
pub struct Cache {
    /// By layer: `[2, requests, key heads, capacity, head]`, keys then values.
    layers: Vec<Tensor>,
    /// 0, 1 and so on, u32, `[capacity]`. Made once: a captured step uploads nothing.
    at: Tensor,
}

/// The rows of one request in a batch: `rows` new tokens after `past` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Whose cache.
    pub request: usize,
    /// First row in the batch.
    pub start: usize,
    /// New tokens.
    pub rows: usize,
    /// Tokens in the cache before.
    pub past: usize,
}

impl Cache {
    /// For so many layers, requests, key heads, tokens of a request, and elements of a head.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        layers: usize,
        requests: usize,
        (key_heads, capacity, head): (usize, usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = (2, requests, key_heads, capacity, head);
        let layers = (0..layers).map(|_| Tensor::zeros(shape, dtype, device));
        Ok(Cache {
            layers: layers.collect::<Result<_>>()?,
            at: Tensor::arange(0, capacity as u32, device)?,
        })
    }

    /// Keys and values of a layer, `[2, requests, key heads, capacity, head]`.
    pub fn layer(&self, layer: usize) -> &Tensor {
        &self.layers[layer]
    }

    /// Positions of tokens, u32, `[capacity]`.
    pub(crate) fn at(&self) -> &Tensor {
        &self.at
    }
}

/// How a batch attends.
pub trait Attend {
    /// Keeps keys and values of the new tokens of `layer`, and attends: `qkv` is `[rows, heads, head]` with
    /// the heads of queries, of keys and of values, which `turns` rotates. The result is `[rows, query heads
    /// · head]`.
    ///
    /// # Errors
    /// Errors of the device.
    fn attend(&self, layer: usize, qkv: &Tensor, turns: &Rotations<'_>) -> Result<Tensor>;
}

/// Each segment of a batch over the cache of its own request.
#[derive(Debug)]
pub struct Ragged<'a> {
    /// Of all requests.
    pub cache: &'a Cache,
    /// They cover all rows.
    pub segments: &'a [Segment],
}

impl Attend for Ragged<'_> {
    fn attend(&self, layer: usize, qkv: &Tensor, turns: &Rotations<'_>) -> Result<Tensor> {
        let attended = self.segments.iter().map(|segment| {
            let rows = qkv.narrow(0, segment.start, segment.rows)?;
            let cache = self.cache.layer(layer).narrow(1, segment.request, 1)?;
            let tokens = segment.past + segment.rows;
            let room = cache.dim(3)?.min(turns.tables()[0].dim(0)?);
            if tokens > room {
                let why = format!(
                    "{tokens} tokens of request {} where {room} have room",
                    segment.request
                );
                return Err(Error::msg(why));
            }
            match fused::attention(&rows, &cache, turns, segment.start)? {
                Some(attended) => Ok(attended),
                None => {
                    let rotated = turns.rotate(&rows, segment.start)?;
                    attend_segment(&cache, segment.past, &rotated)
                }
            }
        });
        Tensor::cat(&attended.collect::<Result<Vec<_>>>()?, 0)
    }
}

/// Rows of a prompt whose scores are in memory at once.
const CHUNK: usize = 512;

/// The new tokens `qkv` of a request, over its part of a layer's cache, `[2, 1, key heads, capacity, head]`.
fn attend_segment(cache: &Tensor, past: usize, qkv: &Tensor) -> Result<Tensor> {
    let ((all, heads, _), key_heads) = (qkv.dims3()?, cache.dim(2)?);
    let query_heads = heads - 2 * key_heads;
    let kept = |which| {
        let first = query_heads + which * key_heads;
        let new = qkv.narrow(1, first, key_heads)?.transpose(0, 1)?;
        let kept = cache.get(which)?.get(0)?;
        kept.slice_set(&new.contiguous()?, 1, past)?;
        Ok(kept)
    };
    let [keys, values]: [Result<Tensor>; 2] = [kept(0), kept(1)];
    let (keys, values) = (keys?, values?);
    let q = qkv.narrow(1, 0, query_heads)?;
    let chunks = (0..all).step_by(CHUNK).map(|start| {
        let rows = CHUNK.min(all - start);
        let seen = |kept: &Tensor| kept.narrow(1, 0, past + start + rows)?.contiguous();
        // One token sees everything.
        let mask = (rows > 1).then(|| {
            let at = Tensor::arange(0, rows as u32, q.device())?;
            hidden(&at, &at, q.dtype())
        });
        attend_rows(
            &q.narrow(0, start, rows)?,
            &seen(&keys)?,
            &seen(&values)?,
            mask.transpose()?.as_ref(),
        )
    });
    Tensor::cat(&chunks.collect::<Result<Vec<_>>>()?, 0)
}

/// The last tokens, q `[rows, query heads, head]`, over keys and values `[key heads, total, head]`. `mask` is
/// what they see of each other, `[rows, rows]`; they see all that came before.
fn attend_rows(
    q: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, query_heads, head) = q.dims3()?;
    let (key_heads, total, _) = keys.dims3()?;
    let groups = query_heads / key_heads;
    // The query heads that share a key head are rows of one GEMM.
    let q = q
        .reshape((rows, key_heads, groups, head))?
        .permute((1, 2, 0, 3))?;
    let q = q.reshape((key_heads, groups * rows, head))?;
    let scores = q.matmul(&keys.t()?)?;
    if let Some(mask) = mask {
        // Adding a mask to all scores would take longer than the GEMMs.
        let last = scores.narrow(2, total - rows, rows)?.contiguous()?;
        let last = last
            .reshape((key_heads, groups, rows, rows))?
            .broadcast_add(mask)?
            .reshape((key_heads, groups * rows, rows))?;
        scores.slice_set(&last, 2, total - rows)?;
    }
    let attended = softmax(&scores)?
        .matmul(values)?
        .reshape((key_heads, groups, rows, head))?;
    attended
        .permute((2, 0, 1, 3))?
        .reshape((rows, query_heads * head))
}

/// Of the last dimension. candle adds in f32 on GPUs, and on a CPU in the type of the scores: there they are
/// widened.
pub(crate) fn softmax(scores: &Tensor) -> Result<Tensor> {
    match scores.device().is_cpu() {
        true => candle_nn::ops::softmax_last_dim(&scores.to_dtype(DType::F32)?)?
            .to_dtype(scores.dtype()),
        false => candle_nn::ops::softmax_last_dim(scores),
    }
}

/// `[rows, total]`: 0 for what the tokens at `positions` may see, −∞ for what comes after them. `at` is 0, 1
/// and so on to the total; all are u32.
pub(crate) fn hidden(positions: &Tensor, at: &Tensor, dtype: DType) -> Result<Tensor> {
    let (rows, total) = (positions.dim(0)?, at.dim(0)?);
    let later = at
        .reshape((1, total))?
        .broadcast_gt(&positions.reshape((rows, 1))?)?;
    let zeros = Tensor::zeros((rows, total), DType::F32, at.device())?;
    let hidden = later.where_cond(&zeros.affine(0.0, f64::NEG_INFINITY)?, &zeros)?;
    hidden.to_dtype(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::random::small_llama;
    use crate::config::Config;
    use crate::decode::Step;
    use crate::rope::Rope;

    /// What is attended, and where: heads of queries, and of keys and values.
    struct Case {
        heads: (usize, usize),
        head: usize,
        dtype: DType,
        tolerance: f64,
    }

    impl Case {
        fn new(heads: (usize, usize), head: usize, dtype: DType) -> Self {
            // Queries, keys, scores, weights and results are rounded, by up to 2⁻⁹ of values up to one each.
            let tolerance = match dtype {
                DType::F32 => 1e-5,
                _ => 5.0 * 2f64.powi(-9) * 4.0,
            };
            Case {
                heads,
                head,
                dtype,
                tolerance,
            }
        }
    }

    /// More than a chunk, and one.
    const PROMPTS: [usize; 3] = [CHUNK + 40, 7, 1];

    /// Queries, keys and values of a request's tokens before their rotation, `[token][head][element]`.
    fn token(request: usize, at: usize, case: &Case) -> Vec<Vec<f64>> {
        let (q_heads, k_heads) = case.heads;
        let element = |which: usize, i: usize| {
            let seed = ((request * 1009 + at) * 31 + which) * 131 + i;
            f64::from((seed.wrapping_mul(2_654_435_761) >> 7) as u16) / 32768.0 - 1.0
        };
        let heads = 0..q_heads + 2 * k_heads;
        heads
            .map(|which| (0..case.head).map(|i| element(which, i)).collect())
            .collect()
    }

    fn rotated(x: &[f64], at: usize, theta: f64) -> Vec<f64> {
        let half = x.len() / 2;
        let angle = |i: usize| at as f64 * theta.powf(-(i as f64) / half as f64);
        let first = (0..half).map(|i| x[i] * angle(i).cos() - x[i + half] * angle(i).sin());
        let second = (0..half).map(|i| x[i] * angle(i).sin() + x[i + half] * angle(i).cos());
        first.chain(second).collect()
    }

    /// What the definition says of the token of a request that is `at`: softmax(q · kᵀ / √head) · v.
    fn defined(request: usize, at: usize, case: &Case, theta: f64) -> Vec<f64> {
        let ((q_heads, k_heads), head) = (case.heads, case.head);
        let seen: Vec<_> = (0..=at).map(|at| token(request, at, case)).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut out = Vec::new();
        for q_head in 0..q_heads {
            let k_head = q_head / (q_heads / k_heads);
            let q = rotated(&seen[at][q_head], at, theta);
            let score = |past: usize| {
                let k = rotated(&seen[past][q_heads + k_head], past, theta);
                (dot(&q, &k) / (head as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = (0..=at).map(score).collect();
            let sum: f64 = scores.iter().sum();
            let weighed = |i: usize| {
                let value = |past: usize| seen[past][q_heads + k_heads + k_head][i];
                (0..=at).map(|past| scores[past] * value(past)).sum::<f64>()
            };
            out.extend((0..head).map(|i| weighed(i) / sum));
        }
        out
    }

    /// Prompts, then a token of each by segments, then one of all together: as the definition has them.
    fn attends_as_defined(case: &Case, device: &Device) {
        let &Case {
            heads, head, dtype, ..
        } = case;
        let config = Config {
            rope_scaling: None,
            head_dim: Some(head),
            ..small_llama()
        };
        let capacity = PROMPTS[0] + 2;
        let rope = Rope::new(&config, capacity, heads, dtype, device).unwrap();
        let shape = (heads.1, capacity, head);
        let cache = &Cache::new(1, PROMPTS.len(), shape, dtype, device).unwrap();
        for (step, count) in [(0, None), (0, Some(1)), (1, Some(1))] {
            let (mut values, mut positions, mut segments) = (Vec::new(), Vec::new(), Vec::new());
            for (request, prompt) in PROMPTS.into_iter().enumerate() {
                let past = count.map_or(0, |_| prompt + step);
                let rows = count.unwrap_or(prompt);
                segments.push(Segment {
                    request,
                    start: positions.len(),
                    rows,
                    past,
                });
                for at in past..past + rows {
                    positions.push(at as u32);
                    values.extend(token(request, at, case).concat());
                }
            }
            let shape = (positions.len(), heads.0 + 2 * heads.1, head);
            let qkv = Tensor::from_vec(values, shape, device).unwrap();
            let qkv = qkv.to_dtype(dtype).unwrap();
            let turns = rope.at(&Tensor::new(positions, device).unwrap());
            let attended = match step {
                0 => Ragged {
                    cache,
                    segments: &segments,
                }
                .attend(0, &qkv, &turns),
                _ => Step::new(cache).attend(0, &qkv, &turns),
            };
            let attended = attended.unwrap().to_dtype(DType::F64).unwrap();
            let found = attended.to_vec2::<f64>().unwrap();
            for segment in segments {
                // Of a long prompt the last rows, which see the most, and one in the middle.
                let last = segment.rows.saturating_sub(3)..segment.rows;
                for row in last.chain([segment.rows / 2]) {
                    let at = segment.past + row;
                    let expected = defined(segment.request, at, case, config.rope_theta);
                    for (found, expected) in found[segment.start + row].iter().zip(expected) {
                        assert!(
                            (found - expected).abs() <= case.tolerance,
                            "{segment:?} {row}: {found} for {expected}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn prompts_and_tokens_attend_as_defined() {
        for dtype in [DType::F32, DType::BF16] {
            attends_as_defined(&Case::new((4, 2), 16, dtype), &Device::Cpu);
        }
    }

    #[test]
    fn tokens_without_room_are_refused() {
        let (heads, device) = ((4, 2), Device::Cpu);
        let rope = Rope::new(&small_llama(), 8, heads, DType::F32, &device).unwrap();
        for (capacity, past, room) in [(4, 3, 4), (20, 7, 8)] {
            let shape = (heads.1, capacity, 16);
            let cache = Cache::new(1, 1, shape, DType::F32, &device).unwrap();
            let segments = [Segment {
                request: 0,
                start: 0,
                rows: 2,
                past,
            }];
            let qkv = Tensor::zeros((2, 8, 16), DType::F32, &device).unwrap();
            let turns = rope.at(&Tensor::new(vec![past as u32; 2], &device).unwrap());
            let ragged = Ragged {
                cache: &cache,
                segments: &segments,
            };
            let error = ragged.attend(0, &qkv, &turns).unwrap_err().to_string();
            let wanted = format!("{} tokens of request 0 where {room} have room", past + 2);
            assert!(error.contains(&wanted), "{error}");
        }
    }

    /// By the kernels: of heads that they have, for all numbers of queries a key head.
    #[cfg(feature = "cuda")]
    #[test]
    #[ignore = "needs a GPU"]
    fn gpu_attends_as_defined() {
        let device = crate::place::Place::gpu(0).unwrap().candle;
        for (heads, head) in [
            ((4, 2), 64),
            ((8, 2), 128),
            ((8, 1), 128),
            ((3, 3), 64),
            ((5, 1), 64),
        ] {
            for dtype in [DType::BF16, DType::F16] {
                attends_as_defined(&Case::new(heads, head, dtype), &device);
            }
        }
        // Those that candle's operations take.
        attends_as_defined(&Case::new((4, 2), 32, DType::BF16), &device);
    }
}
