//! Attention over a KV cache, request by request, in candle's operations: the bits of a request do not depend
//! on which others share the batch.
//!
//! Prompts of any lengths and single tokens may share a batch. [`slots`](crate::slots) has the attention of
//! steps that are captured.

use candle_core::{DType, Device, Result, Tensor};

/// What a rank keeps of the past: keys and values of its heads.
#[derive(Debug)]
pub struct Cache {
    /// By request, then layer: keys and values, `[key heads, capacity, head]`.
    requests: Vec<Vec<[Tensor; 2]>>,
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
    /// Keys and values of a request in a layer, `[key heads, capacity, head]` each.
    pub fn of(&self, request: usize, layer: usize) -> &[Tensor; 2] {
        &self.requests[request][layer]
    }

    /// For requests of these capacities in tokens.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        capacities: &[usize],
        layers: usize,
        (key_heads, head): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let zeros = |capacity: usize| Tensor::zeros((key_heads, capacity, head), dtype, device);
        let layer = |capacity: usize| Ok([zeros(capacity)?, zeros(capacity)?]);
        let request = |capacity: &usize| (0..layers).map(|_| layer(*capacity)).collect();
        Ok(Cache {
            requests: capacities.iter().map(request).collect::<Result<_>>()?,
        })
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        let tensors = self.requests.iter().flatten().flatten();
        tensors
            .map(|tensor| tensor.elem_count() * tensor.dtype().size_in_bytes())
            .sum()
    }
}

/// How a batch attends.
pub trait Attend {
    /// Keeps k and v of the new tokens of `layer`, and attends: q is `[rows, query heads, head]`, k and v are
    /// `[rows, key heads, head]`, the result is `[rows, query heads · head]`.
    ///
    /// # Errors
    /// Errors of the device.
    fn attend(&self, layer: usize, qkv: [&Tensor; 3]) -> Result<Tensor>;
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
    fn attend(&self, layer: usize, qkv: [&Tensor; 3]) -> Result<Tensor> {
        let attended = self.segments.iter().map(|segment| {
            let [q, k, v] = qkv.map(|x| x.narrow(0, segment.start, segment.rows));
            attend_segment(
                &self.cache.requests[segment.request][layer],
                *segment,
                [&q?, &k?, &v?],
            )
        });
        Tensor::cat(&attended.collect::<Result<Vec<_>>>()?, 0)
    }
}

/// Rows of a prompt whose scores are in memory at once.
const CHUNK: usize = 512;

fn attend_segment(
    cache: &[Tensor; 2],
    segment: Segment,
    [q, k, v]: [&Tensor; 3],
) -> Result<Tensor> {
    for (cached, new) in cache.iter().zip([k, v]) {
        cached.slice_set(&new.transpose(0, 1)?.contiguous()?, 1, segment.past)?;
    }
    let chunks = (0..segment.rows).step_by(CHUNK).map(|start| {
        let rows = CHUNK.min(segment.rows - start);
        let first = segment.past + start;
        let [keys, values] =
            [0, 1].map(|which: usize| cache[which].narrow(1, 0, first + rows)?.contiguous());
        // One token sees everything.
        let mask = (rows > 1).then(|| {
            let at = Tensor::arange(0, rows as u32, q.device())?;
            hidden(&at, &at)
        });
        attend_rows(
            &q.narrow(0, start, rows)?,
            &keys?,
            &values?,
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
    let scores = (q.matmul(&keys.t()?)?.to_dtype(DType::F32)? * (head as f64).powf(-0.5))?;
    let scores = match mask {
        None => scores,
        Some(mask) => {
            // Adding a mask to all scores would take longer than the GEMMs.
            let before = total - rows;
            let last = scores.narrow(2, before, rows)?.contiguous()?;
            let last = last
                .reshape((key_heads, groups, rows, rows))?
                .broadcast_add(mask)?
                .reshape((key_heads, groups * rows, rows))?;
            match before {
                0 => last,
                _ => Tensor::cat(&[&scores.narrow(2, 0, before)?, &last], 2)?,
            }
        }
    };
    let weights = candle_nn::ops::softmax_last_dim(&scores)?.to_dtype(values.dtype())?;
    let attended = weights
        .matmul(values)?
        .reshape((key_heads, groups, rows, head))?;
    attended
        .permute((2, 0, 1, 3))?
        .reshape((rows, query_heads * head))
}

/// `[rows, total]`, f32: 0 for what the tokens at `positions` may see, −∞ for what comes after them. `at` is
/// 0, 1 and so on to the total; all are u32.
pub(crate) fn hidden(positions: &Tensor, at: &Tensor) -> Result<Tensor> {
    let (rows, total) = (positions.dim(0)?, at.dim(0)?);
    let later = at
        .reshape((1, total))?
        .broadcast_gt(&positions.reshape((rows, 1))?)?;
    let zeros = Tensor::zeros((rows, total), DType::F32, at.device())?;
    later.where_cond(&zeros.affine(0.0, f64::NEG_INFINITY)?, &zeros)
}
