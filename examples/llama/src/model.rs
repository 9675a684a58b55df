//! The transformer.

use candle_core::{DType, Device, Tensor};

use crate::attention::{Attend, Cache, Ragged, Segment};
use crate::config::Config;
use crate::error::Result;
use crate::fused;
use crate::parallel::{Launch, Norm, Parallel};
use crate::rope::Rope;
use crate::weights::{Layer, Weights};

/// A model on a rank.
#[derive(Debug)]
pub struct Model<'a> {
    config: Config,
    weights: Weights,
    rope: Rope,
    parallel: &'a dyn Parallel,
}

/// The new tokens of some requests, contiguous, and whose they are.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token by row.
    pub tokens: Vec<u32>,
    /// Which rows are whose; they cover all rows.
    pub segments: Vec<Segment>,
}

/// Of which rows logits are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The last of each segment.
    Last,
    /// All.
    All,
}

impl<'a> Model<'a> {
    /// The model with a rank's weights, for sequences of `positions` tokens at most.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        config: Config,
        weights: Weights,
        parallel: &'a dyn Parallel,
        positions: usize,
    ) -> Result<Self> {
        let embedding = &weights.embedding;
        let heads = heads_of_rank(&config, parallel.world());
        let (dtype, device) = (embedding.dtype(), embedding.device());
        let rope = Rope::new(&config, positions, heads, dtype, device)?;
        Ok(Model {
            config,
            weights,
            rope,
            parallel,
        })
    }

    /// What config.json says.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A cache for so many requests of up to `capacity` tokens.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn cache(&self, requests: usize, capacity: usize) -> Result<Cache> {
        let shape = (self.heads_of_rank().1, capacity, self.config.head_dim());
        let layers = self.weights.layers.len();
        let cache = Cache::new(layers, requests, shape, self.dtype(), self.device());
        Ok(cache?)
    }

    /// Whether [`Decode`](crate::decode::Decode) captures its steps, and they have the bits of
    /// [`Model::forward`].
    pub fn decodes_in_graphs(&self) -> bool {
        let (q_heads, k_heads) = self.heads_of_rank();
        let heads = (q_heads / k_heads, self.config.head_dim());
        fused::decodes(heads, self.config.vocab_size, &self.weights.embedding)
    }

    fn dtype(&self) -> DType {
        self.weights.embedding.dtype()
    }

    fn device(&self) -> &Device {
        self.weights.embedding.device()
    }

    /// Logits, f32, `[rows, vocabulary]`; the new tokens are in `cache` afterwards. All ranks call it alike,
    /// and get the same bits.
    ///
    /// # Errors
    /// A rank that did not come in time, by its number; errors of the device.
    pub fn forward(&self, batch: &Batch, cache: &Cache, rows: Rows) -> Result<Tensor> {
        let segments = &batch.segments;
        let positions = segments
            .iter()
            .flat_map(|s| s.past as u32..(s.past + s.rows) as u32);
        let positions = Tensor::new(positions.collect::<Vec<_>>(), self.device())?;
        let tokens = Tensor::new(batch.tokens.as_slice(), self.device())?;
        let count = batch.tokens.len();
        let x = self.own_rows(&tokens, &positions, &Ragged { cache, segments })?;
        let x = match rows {
            Rows::All => self.parallel.all_rows(&x, count)?,
            Rows::Last => {
                let last = segments.iter().map(|s| (s.start + s.rows - 1) as u32);
                self.parallel.select(&x, count, &last.collect::<Vec<_>>())?
            }
        };
        let logits = self.logits(&x)?.to_dtype(DType::F32)?;
        self.parallel.finish()?;
        Ok(logits)
    }

    /// The normalized output of the layers for `tokens` at `positions`, u32 both. On a GPU it only enqueues.
    ///
    /// # Errors
    /// As [`Model::forward`], as far as is known then.
    pub fn transform(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        attention: &dyn Attend,
    ) -> Result<Tensor> {
        let x = self.own_rows(tokens, positions, attention)?;
        self.parallel.all_rows(&x, tokens.dim(0)?)
    }

    /// The same, of all rows or of this rank's shard.
    fn own_rows(
        &self,
        tokens: &Tensor,
        positions: &Tensor,
        attention: &dyn Attend,
    ) -> Result<Tensor> {
        let (turns, rows) = (self.rope.at(positions), tokens.dim(0)?);
        let mut residual = self.weights.embedding.index_select(tokens, 0)?;
        let mut x = self
            .parallel
            .norm(&residual, &self.norm(&self.weights.layers[0].input_norm))?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let qkv = self.heads(layer, &x, rows)?;
            let heads = attention.attend(index, &qkv, &turns)?;
            let norm = self.norm(&layer.mlp_norm);
            (residual, x) = self
                .parallel
                .row_add_norm(&heads, &layer.o, &residual, &norm)?;
            let inner = self.parallel.swiglu(&x, &layer.gate_up, rows)?;
            let next = self.weights.layers.get(index + 1);
            let norm = self.norm(next.map_or(&self.weights.norm, |next| &next.input_norm));
            (residual, x) = self
                .parallel
                .row_add_norm(&inner, &layer.down, &residual, &norm)?;
        }
        Ok(x)
    }

    /// Logits, `[rows, vocabulary]`, in the type of the weights, of what [`Model::transform`] gives.
    ///
    /// # Errors
    /// As [`Model::transform`].
    pub fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let scores = self
            .parallel
            .column(x, &self.weights.head, None, x.dim(0)?)?;
        let scores = self.parallel.all_gather(&scores)?;
        // Without the rows of zeros that follow the vocabulary.
        Ok(scores.narrow(1, 0, self.config.vocab_size)?.contiguous()?)
    }

    /// Waits until the work so far has ended, and reports what went wrong in it.
    ///
    /// # Errors
    /// A rank that did not come in time, by its number; errors of the device.
    pub fn finish(&self) -> Result<()> {
        self.parallel.finish()
    }

    /// As [`Parallel::capture`].
    ///
    /// # Safety
    /// The same.
    ///
    /// # Errors
    /// Those of `step`; errors of the device.
    pub unsafe fn capture(&self, step: &dyn Fn() -> Result<()>) -> Result<Option<Launch>> {
        // SAFETY: the caller's obligation.
        unsafe { self.parallel.capture(step) }
    }

    fn norm<'w>(&self, weight: &'w Tensor) -> Norm<'w> {
        Norm {
            weight,
            epsilon: self.config.rms_norm_eps,
        }
    }

    /// q, k and v of this rank's heads: `[rows, heads, head]`.
    fn heads(&self, layer: &Layer, x: &Tensor, rows: usize) -> Result<Tensor> {
        let head = self.config.head_dim();
        let (q_heads, k_heads) = self.heads_of_rank();
        let qkv = self
            .parallel
            .column(x, &layer.qkv, layer.qkv_bias.as_ref(), rows)?;
        let mut qkv = qkv.reshape((rows, q_heads + 2 * k_heads, head))?;
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            let normalized = |first, count, weight| {
                let heads = qkv.narrow(1, first, count)?.contiguous()?;
                candle_nn::ops::rms_norm(&heads, weight, self.config.rms_norm_eps)
            };
            let (q, k) = (
                normalized(0, q_heads, q_norm)?,
                normalized(q_heads, k_heads, k_norm)?,
            );
            qkv = Tensor::cat(&[&q, &k, &qkv.narrow(1, q_heads + k_heads, k_heads)?], 1)?;
        }
        Ok(qkv)
    }

    /// Heads of the queries, and of keys and values.
    fn heads_of_rank(&self) -> (usize, usize) {
        heads_of_rank(&self.config, self.parallel.world())
    }
}

/// Heads of the queries, and of keys and values, of each of so many ranks.
fn heads_of_rank(config: &Config, world: usize) -> (usize, usize) {
    (
        config.num_attention_heads / world,
        config.kv_heads() / world,
    )
}
