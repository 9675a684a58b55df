//! Attention over a KV cache, request by request, in candle's operations: the bits of a request do not depend
//! on which others share the batch.

use candle_core::{D, DType, Device, Result, Tensor};

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

/// Attention of `segment` in `layer`: q `[rows, query heads, head]`, k and v `[rows, key heads, head]` of its
/// new tokens. Gives `[rows, query heads · head]`.
///
/// # Errors
/// Errors of the device.
pub fn attend(
    cache: &Cache,
    layer: usize,
    segment: Segment,
    [q, k, v]: [&Tensor; 3],
) -> Result<Tensor> {
    let (rows, query_heads, head) = q.dims3()?;
    let key_heads = k.dim(1)?;
    let groups = query_heads / key_heads;
    let total = segment.past + rows;
    let [keys, values] = &cache.requests[segment.request][layer];
    for (cached, new) in [(keys, k), (values, v)] {
        cached.slice_set(&new.transpose(0, 1)?.contiguous()?, 1, segment.past)?;
    }
    let [keys, values] = [keys, values].map(|cached| cached.narrow(1, 0, total)?.contiguous());
    let (keys, values) = (keys?, values?);

    // The query heads that share a key head are rows of one GEMM.
    let q = q
        .reshape((rows, key_heads, groups, head))?
        .permute((1, 2, 0, 3))?;
    let q = q.reshape((key_heads, groups * rows, head))?;
    let scores = (q.matmul(&keys.t()?)?.to_dtype(DType::F32)? * (head as f64).powf(-0.5))?;
    let scores = match rows {
        // The last token sees everything.
        1 => scores,
        _ => {
            let scores = scores.reshape((key_heads, groups, rows, total))?;
            scores.broadcast_add(&causal(rows, segment.past, q.device())?)?
        }
    };
    let scores = scores.reshape((key_heads, groups * rows, total))?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?.to_dtype(values.dtype())?;
    let attended = weights
        .matmul(&values)?
        .reshape((key_heads, groups, rows, head))?;
    attended
        .permute((2, 0, 1, 3))?
        .reshape((rows, query_heads * head))
}

/// `[rows, past + rows]`: 0 for what a row may see, −∞ for what comes after it.
fn causal(rows: usize, past: usize, device: &Device) -> Result<Tensor> {
    let seen = |row: usize, at: usize| {
        if at <= past + row {
            0f32
        } else {
            f32::NEG_INFINITY
        }
    };
    let mask = (0..rows).flat_map(|row| (0..past + rows).map(move |at| seen(row, at)));
    Tensor::from_vec(mask.collect(), (rows, past + rows), device)
}
