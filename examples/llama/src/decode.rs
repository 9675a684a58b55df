//! Decode steps: a token of every request of a cache, at fixed addresses. On a GPU a step is captured in a
//! graph: positions are read on the device, so one graph serves all steps.
//!
//! What makes candle's operations capturable:
//! - They enqueue on one stream, without events of cudarc's, which
//!   [`Place::gpu`](crate::place::Place) turns off.
//! - They allocate from the stream-ordered pool, which a capture turns into memory nodes. Everything that a
//!   step allocates it also frees, so the graph can be launched again and again. The kernels of the layers
//!   have their results in memory of their own (`scratch.rs`).
//! - Shapes and strides of operands that are not contiguous are uploaded. `enable_cuda_graph_htod_cache`
//!   keeps what the steps before the capture uploaded.
//! - Nothing is downloaded: tokens and positions stay on the device, at addresses that do not change.

use std::cell::OnceCell;

#[cfg(feature = "cuda")]
use candle_core::Device;
use candle_core::{DType, Tensor};

use crate::attention::{Attend, Cache, hidden, softmax};
use crate::error::Result;
use crate::fused;
use crate::model::Model;
use crate::parallel::Launch;
use crate::rope::{Rotations, once};

/// Steps before the capture. They load kernels, prepare layers and upload shapes.
pub const ENQUEUED: usize = 2;

/// The requests of a cache, which decode together: each step feeds its most probable tokens to the next. A
/// request that has ended, or has not begun, is computed with the others, in its own part of the cache.
#[derive(Debug)]
pub struct Decode<'a> {
    /// A step. Dropped before what it uses.
    graph: Option<Launch>,
    enqueued: usize,
    model: &'a Model<'a>,
    cache: &'a Cache,
    /// u32, `[requests]` each.
    tokens: Tensor,
    positions: Tensor,
    one: Tensor,
    /// Of the last step, `[requests, vocabulary]`, where they are asked for.
    logits: Option<Tensor>,
}

impl<'a> Decode<'a> {
    /// All requests of `cache`. [`Decode::logits`] needs `with_logits`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(model: &'a Model<'a>, cache: &'a Cache, with_logits: bool) -> Result<Self> {
        let layer = cache.layer(0);
        let (requests, device) = (layer.dim(1)?, layer.device());
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device);
        let logits = || zeros(&[requests, model.config().vocab_size], layer.dtype());
        Ok(Decode {
            graph: None,
            enqueued: 0,
            model,
            cache,
            tokens: zeros(&[requests], DType::U32)?,
            positions: zeros(&[requests], DType::U32)?,
            one: Tensor::ones(requests, DType::U32, device)?,
            logits: with_logits.then(logits).transpose()?,
        })
    }

    /// What the next step takes: the last token of each request, and its position.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn set(&self, tokens: &[u32], positions: &[u32]) -> Result<()> {
        for (tensor, values) in [(&self.tokens, tokens), (&self.positions, positions)] {
            tensor.slice_set(&Tensor::new(values, tensor.device())?, 0, 0)?;
        }
        Ok(())
    }

    /// A step. On a GPU it is enqueued. All ranks make the same.
    ///
    /// # Errors
    /// A rank that did not come, as far as is known then; errors of the device.
    pub fn step(&mut self) -> Result<()> {
        // What operations upload stays on the device.
        #[cfg(feature = "cuda")]
        let _uploads = match self.tokens.device() {
            Device::Cuda(device) => Some(device.enable_cuda_graph_htod_cache()),
            _ => None,
        };
        if self.enqueued == ENQUEUED && self.graph.is_none() {
            self.model.finish()?;
            // SAFETY: the graph uses the cache, the weights and the layers, which this value borrows, tensors
            // of this value, which drops the graph first, and what the cache of uploads keeps until the
            // thread ends.
            self.graph = unsafe { self.model.capture(&|| self.enqueue())? };
        }
        match &self.graph {
            Some(launch) => launch.again(),
            None => {
                self.enqueued += 1;
                self.enqueue()
            }
        }
    }

    fn enqueue(&self) -> Result<()> {
        let step = Step::new(self.cache);
        let x = self.model.transform(&self.tokens, &self.positions, &step)?;
        let logits = self.model.logits(&x)?;
        if let Some(kept) = &self.logits {
            kept.slice_set(&logits, 0, 0)?;
        }
        let next = fused::choose(&logits)?;
        self.tokens.slice_set(&next, 0, 0)?;
        let positions = (&self.positions + &self.one)?;
        Ok(self.positions.slice_set(&positions, 0, 0)?)
    }

    /// The most probable tokens after the last step, which has ended.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        Ok(self.tokens.to_vec1()?)
    }

    /// The logits of all requests after the last step, which has ended; none if they were not asked for.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn logits(&self) -> Result<Option<Vec<Vec<f32>>>> {
        let wide = |logits: &Tensor| logits.to_dtype(DType::F32)?.to_vec2();
        Ok(self.logits.as_ref().map(wide).transpose()?)
    }
}

/// Attention of a step: each request's new token is at its position.
///
/// In candle's operations every token looks at the whole capacity and hides what comes after its position;
/// the kernel of `fused` stops there.
#[derive(Debug)]
pub struct Step<'a> {
    cache: &'a Cache,
    /// What candle's operations take, once they have been asked.
    masked: OnceCell<Masked>,
}

#[derive(Debug)]
struct Masked {
    /// `[2, requests · key heads, 1, head]`: where new keys and values go.
    places: Tensor,
    /// `[requests, 1, 1, capacity]`.
    mask: Tensor,
}

impl Masked {
    fn new(positions: &Tensor, cache: &Cache) -> candle_core::Result<Self> {
        let (_, requests, key_heads, capacity, head) = cache.layer(0).dims5()?;
        let places = positions
            .reshape((1, requests, 1, 1))?
            .broadcast_as((2, requests, key_heads, head))?
            .reshape((2, requests * key_heads, 1, head))?;
        let mask = hidden(positions, cache.at(), cache.layer(0).dtype())?;
        Ok(Masked {
            places: places.contiguous()?,
            mask: mask.reshape((requests, 1, 1, capacity))?,
        })
    }
}

impl<'a> Step<'a> {
    /// Of all requests of a cache.
    pub fn new(cache: &'a Cache) -> Self {
        Step {
            cache,
            masked: OnceCell::new(),
        }
    }
}

impl Attend for Step<'_> {
    fn attend(
        &self,
        layer: usize,
        qkv: &Tensor,
        turns: &Rotations<'_>,
    ) -> candle_core::Result<Tensor> {
        let cache = self.cache.layer(layer);
        if let Some(attended) = fused::attention(qkv, cache, turns, 0)? {
            return Ok(attended);
        }
        let masked = || Masked::new(turns.positions(), self.cache);
        let Masked { places, mask } = once(&self.masked, masked)?;
        let (_, requests, key_heads, capacity, head) = cache.dims5()?;
        let (batch, groups) = (requests * key_heads, qkv.dim(1)? / key_heads - 2);
        let cache = cache.reshape((2, batch, capacity, head))?;
        let qkv = turns.rotate(qkv, 0)?;
        // Keys and values go to their places in one operation.
        let new = qkv
            .reshape((requests, groups + 2, key_heads, head))?
            .narrow(1, groups, 2)?
            .transpose(0, 1)?
            .reshape((2, batch, 1, head))?;
        cache.scatter_set(places, &new.contiguous()?, 2)?;
        let (keys, values) = (cache.get(0)?, cache.get(1)?);
        let q = qkv.narrow(1, 0, groups * key_heads)?;
        let scores = q
            .reshape((batch, groups, head))?
            .matmul(&keys.t()?)?
            .reshape((requests, key_heads, groups, capacity))?
            .broadcast_add(mask)?;
        let attended = softmax(&scores)?
            .reshape((batch, groups, capacity))?
            .matmul(&values)?;
        attended.reshape((requests, groups * key_heads * head))
    }
}
