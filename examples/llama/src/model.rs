//! The transformer.

use candle_core::{D, DType, Device, Tensor};

use crate::attention::{Cache, Segment, attend};
use crate::config::Config;
use crate::error::Result;
use crate::parallel::{Norm, Parallel};
use crate::rope::Rope;
use crate::weights::{Layer, Weights};

/// A model on a rank.
#[derive(Debug)]
pub struct Model<P> {
    config: Config,
    weights: Weights,
    rope: Rope,
    parallel: P,
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

impl<P: Parallel> Model<P> {
    /// The model with a rank's weights, for sequences of `positions` tokens at most.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(config: Config, weights: Weights, parallel: P, positions: usize) -> Result<Self> {
        let embedding = &weights.embedding;
        let rope = Rope::new(&config, positions, embedding.dtype(), embedding.device())?;
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

    /// What it was made with.
    pub fn into_parallel(self) -> P {
        self.parallel
    }

    /// A cache for requests of these capacities.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn cache(&self, capacities: &[usize]) -> Result<Cache> {
        let heads = (
            self.config.kv_heads() / self.parallel.world(),
            self.config.head_dim(),
        );
        let layers = self.weights.layers.len();
        Ok(Cache::new(
            capacities,
            layers,
            heads,
            self.dtype(),
            self.device(),
        )?)
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
    pub fn forward(&self, batch: &Batch, cache: &mut Cache, rows: Rows) -> Result<Tensor> {
        let device = self.device();
        let positions = batch
            .segments
            .iter()
            .flat_map(|s| s.past as u32..(s.past + s.rows) as u32);
        let positions = Tensor::new(positions.collect::<Vec<_>>(), device)?;
        let tokens = Tensor::new(batch.tokens.as_slice(), device)?;

        let mut residual = self.weights.embedding.index_select(&tokens, 0)?;
        let mut x = self
            .parallel
            .norm(&residual, &self.norm(&self.weights.layers[0].input_norm))?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let heads = self.attention(layer, &x, index, &positions, &batch.segments, cache)?;
            let norm = self.norm(&layer.mlp_norm);
            (residual, x) = self
                .parallel
                .row_add_norm(&heads, &layer.o, &residual, &norm)?;
            let inner = self.mlp(layer, &x)?;
            let next = self.weights.layers.get(index + 1);
            let norm = self.norm(next.map_or(&self.weights.norm, |next| &next.input_norm));
            (residual, x) = self
                .parallel
                .row_add_norm(&inner, &layer.down, &residual, &norm)?;
        }
        if rows == Rows::Last {
            let last = batch.segments.iter().map(|s| (s.start + s.rows - 1) as u32);
            x = x.index_select(&Tensor::new(last.collect::<Vec<_>>(), device)?, 0)?;
        }
        let logits = self.parallel.column(&x, &self.weights.head, None)?;
        let logits = self.parallel.all_gather(&logits)?.to_dtype(DType::F32)?;
        self.parallel.finish()?;
        Ok(logits)
    }

    fn norm<'a>(&self, weight: &'a Tensor) -> Norm<'a> {
        Norm {
            weight,
            epsilon: self.config.rms_norm_eps,
        }
    }

    /// The heads of this rank, before their projection.
    fn attention(
        &self,
        layer: &Layer,
        x: &Tensor,
        index: usize,
        positions: &Tensor,
        segments: &[Segment],
        cache: &mut Cache,
    ) -> Result<Tensor> {
        let (rows, head) = (x.dim(0)?, self.config.head_dim());
        let world = self.parallel.world();
        let (q_heads, k_heads) = (
            self.config.num_attention_heads / world,
            self.config.kv_heads() / world,
        );
        let qkv = self
            .parallel
            .column(x, &layer.qkv, layer.qkv_bias.as_ref())?;
        let qkv = qkv.reshape((rows, q_heads + 2 * k_heads, head))?;
        let (mut q, mut k) = (qkv.narrow(1, 0, q_heads)?, qkv.narrow(1, q_heads, k_heads)?);
        let v = qkv.narrow(1, q_heads + k_heads, k_heads)?;
        if let Some((q_norm, k_norm)) = &layer.qk_norm {
            let epsilon = self.config.rms_norm_eps;
            q = candle_nn::ops::rms_norm(&q.contiguous()?, q_norm, epsilon)?;
            k = candle_nn::ops::rms_norm(&k.contiguous()?, k_norm, epsilon)?;
        }
        let (q, k) = (
            self.rope.rotate(&q, positions)?,
            self.rope.rotate(&k, positions)?,
        );
        let attended = segments.iter().map(|segment| {
            let of = |x: &Tensor| x.narrow(0, segment.start, segment.rows);
            attend(cache, index, *segment, [&of(&q)?, &of(&k)?, &of(&v)?])
        });
        Ok(Tensor::cat(
            &attended.collect::<candle_core::Result<Vec<_>>>()?,
            0,
        )?)
    }

    /// SwiGLU: this rank's part of the inner width.
    fn mlp(&self, layer: &Layer, x: &Tensor) -> Result<Tensor> {
        let gate_up = self.parallel.column(x, &layer.gate_up, None)?;
        let width = gate_up.dim(D::Minus1)? / 2;
        let (gate, up) = (
            gate_up.narrow(1, 0, width)?,
            gate_up.narrow(1, width, width)?,
        );
        Ok((gate.silu()? * up)?)
    }
}
