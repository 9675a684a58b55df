//! Which rank has what of the weights.
//!
//! | weight | a rank's part |
//! |---|---|
//! | q, k, v; gate and up | its heads; its part of the width: rows, one matrix of them all |
//! | o; down | the columns that multiply those |
//! | output layer | its part of the vocabulary: rows |
//! | embedding, norms | all of it |

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use candle_core::{DType, Device, Tensor};
use warpweave_overlap::plan::GATE_COLUMNS;

use crate::checkpoint::{Checkpoint, Part};
use crate::config::Config;
use crate::error::{Error, Result};

/// The weights of a rank.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[vocabulary, hidden]`.
    pub embedding: Tensor,
    /// In the order of the forward pass.
    pub layers: Vec<Layer>,
    /// `[hidden]`: the last norm.
    pub norm: Tensor,
    /// `[vocabulary / world, hidden]`: the output layer, with [rows of zeros](Config::head_rows) at its end.
    pub head: Tensor,
}

/// The weights of a transformer layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// `[hidden]`: before the attention.
    pub input_norm: Tensor,
    /// `[(query heads + 2 · key heads) / world · head, hidden]`: q, k and v.
    pub qkv: Tensor,
    /// As many elements as `qkv` has rows.
    pub qkv_bias: Option<Tensor>,
    /// `[head]` each: norms of the heads of q and k.
    pub qk_norm: Option<(Tensor, Tensor)>,
    /// `[hidden, query heads / world · head]`.
    pub o: Tensor,
    /// `[hidden]`: before the MLP.
    pub mlp_norm: Tensor,
    /// `[2 · intermediate / world, hidden]`: [alternately](GATE_COLUMNS) eight rows of gate and eight of up.
    pub gate_up: Tensor,
    /// `[hidden, intermediate / world]`.
    pub down: Tensor,
}

fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

/// Reads a rank's weights.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    rank: usize,
    world: usize,
    dtype: DType,
    device: &'a Device,
    /// What nobody has read, by name.
    unread: RefCell<BTreeSet<&'a str>>,
}

impl Weights {
    /// Random weights of a rank of `world`, made on `device`. Sizes must divide.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn random(config: &Config, world: usize, dtype: DType, device: &Device) -> Result<Self> {
        let matrix = |rows: usize, columns: usize| {
            let deviation = (columns as f32).powf(-0.5);
            Tensor::randn(0f32, deviation, (rows, columns), device)?.to_dtype(dtype)
        };
        let ones = |length: usize| Tensor::ones(length, dtype, device);
        let (hidden, head) = (config.hidden_size, config.head_dim());
        let (q, k) = (
            config.num_attention_heads * head / world,
            config.kv_heads() * head / world,
        );
        let width = config.intermediate_size / world;
        let bias = || Tensor::zeros(q + 2 * k, dtype, device);
        let layer = |_| {
            Ok(Layer {
                input_norm: ones(hidden)?,
                qkv: matrix(q + 2 * k, hidden)?,
                qkv_bias: config.has_qkv_bias().then(bias).transpose()?,
                qk_norm: if config.has_qk_norm() {
                    Some((ones(head)?, ones(head)?))
                } else {
                    None
                },
                o: matrix(hidden, q)?,
                mlp_norm: ones(hidden)?,
                gate_up: matrix(2 * width, hidden)?,
                down: matrix(hidden, width)?,
            })
        };
        let layers = (0..config.num_hidden_layers).map(layer);
        Ok(Weights {
            embedding: matrix(config.vocab_size, hidden)?,
            layers: layers.collect::<candle_core::Result<_>>()?,
            norm: ones(hidden)?,
            head: matrix(config.head_rows(world), hidden)?,
        })
    }

    /// Bytes of them on this rank.
    pub fn bytes(&self) -> usize {
        let of_layer = |layer: &Layer| {
            let Layer {
                input_norm,
                qkv,
                qkv_bias,
                qk_norm,
                o,
                mlp_norm,
                gate_up,
                down,
            } = layer;
            let always = [input_norm, qkv, o, mlp_norm, gate_up, down].into_iter();
            let norms = qk_norm.iter().flat_map(|(q, k)| [q, k]);
            always
                .chain(qkv_bias)
                .chain(norms)
                .map(bytes)
                .sum::<usize>()
        };
        let ends = [&self.embedding, &self.norm, &self.head].map(bytes);
        self.layers.iter().map(of_layer).chain(ends).sum()
    }
    /// Reads the part of `rank` of `world`, to `device`, in `dtype`.
    ///
    /// # Errors
    /// A tensor that does not divide over the ranks or that this model has no use for, and what
    /// [`Checkpoint::read`] reports.
    pub fn read(
        checkpoint: &Checkpoint,
        config: &Config,
        (rank, world): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let reader = Reader {
            checkpoint,
            rank,
            world,
            dtype,
            device,
            unread: RefCell::new(checkpoint.names().collect()),
        };
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        let layers = (0..config.num_hidden_layers).map(|index| reader.layer(config, index));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        const EMBEDDING: &str = "model.embed_tokens.weight";
        let tied = config.tie_word_embeddings || !checkpoint.contains("lm_head.weight");
        let head = if tied { EMBEDDING } else { "lm_head.weight" };
        let weights = Weights {
            embedding: reader.read(EMBEDDING, &[vocabulary, hidden], &Part::All)?,
            layers,
            norm: reader.read("model.norm.weight", &[hidden], &Part::All)?,
            head: reader.head(head, &[vocabulary, hidden], config.head_rows(world))?,
        };
        // A tied output layer may be stored nonetheless, and old checkpoints store the rotary frequencies.
        let is_known =
            |name: &str| tied && name == "lm_head.weight" || name.ends_with(".rotary_emb.inv_freq");
        let unread = reader.unread.into_inner();
        match unread.into_iter().find(|name| !is_known(name)) {
            None => Ok(weights),
            Some(name) => Err(Error::tensor(name, "this model has no such weight here")),
        }
    }
}

impl Reader<'_> {
    fn layer(&self, config: &Config, index: usize) -> Result<Layer> {
        let name = |what: &str| format!("model.layers.{index}.{what}");
        let (hidden, width, head) = (
            config.hidden_size,
            config.intermediate_size,
            config.head_dim(),
        );
        let projections = [
            ("q", config.num_attention_heads * head),
            ("k", config.kv_heads() * head),
            ("v", config.kv_heads() * head),
        ];
        let stack = |suffix: &str, columns: &[usize]| {
            let parts = projections.iter().map(|(which, rows)| {
                let shape = [&[*rows], columns].concat();
                self.rows(
                    &name(&format!("self_attn.{which}_proj.{suffix}")),
                    &shape,
                    head,
                )
            });
            Ok::<_, Error>(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?)
        };
        let qk_norm = || {
            let norm = |which: &str| {
                self.read(
                    &name(&format!("self_attn.{which}_norm.weight")),
                    &[head],
                    &Part::All,
                )
            };
            Ok::<_, Error>((norm("q")?, norm("k")?))
        };
        let norm = |which: &str| self.read(&name(which), &[hidden], &Part::All);
        let groups = |which: &str| {
            let name = name(&format!("mlp.{which}_proj.weight"));
            let rows = self.rows(&name, &[width, hidden], GATE_COLUMNS)?;
            Ok::<_, Error>(rows.reshape(((), GATE_COLUMNS, hidden))?)
        };
        Ok(Layer {
            input_norm: norm("input_layernorm.weight")?,
            qkv: stack("weight", &[hidden])?,
            qkv_bias: config
                .has_qkv_bias()
                .then(|| stack("bias", &[]))
                .transpose()?,
            qk_norm: config.has_qk_norm().then(qk_norm).transpose()?,
            o: self.columns(
                &name("self_attn.o_proj.weight"),
                &[hidden, projections[0].1],
                head,
            )?,
            mlp_norm: norm("post_attention_layernorm.weight")?,
            gate_up: Tensor::stack(&[groups("gate")?, groups("up")?], 1)?.flatten_to(2)?,
            down: self.columns(&name("mlp.down_proj.weight"), &[hidden, width], 1)?,
        })
    }

    /// This rank's rows, in whole units: heads, or groups of rows.
    fn rows(&self, name: &str, shape: &[usize], unit: usize) -> Result<Tensor> {
        let rows = self.shard(name, "rows", shape[0], unit)?;
        self.read(name, shape, &Part::Rows(rows))
    }

    /// The `each` rows of this rank: zeros where there are none.
    fn head(&self, name: &str, shape: &[usize], each: usize) -> Result<Tensor> {
        let [start, end] = [self.rank, self.rank + 1].map(|rank| shape[0].min(rank * each));
        let rows = self.read(name, shape, &Part::Rows(start..end))?;
        Ok(rows.pad_with_zeros(0, 0, each - rows.dim(0)?)?)
    }

    fn columns(&self, name: &str, shape: &[usize], unit: usize) -> Result<Tensor> {
        let columns = self.shard(name, "columns", shape[1], unit)?;
        self.read(name, shape, &Part::Columns(columns))
    }

    fn shard(&self, name: &str, what: &str, length: usize, unit: usize) -> Result<Range<usize>> {
        if !length.is_multiple_of(self.world * unit) {
            let units = match unit {
                _ if !length.is_multiple_of(unit) || unit == 1 => format!("{length} {what}"),
                GATE_COLUMNS => format!("{} groups of {unit} {what}", length / unit),
                _ => format!("{} heads of {unit} {what}", length / unit),
            };
            let why = format!("its {units} do not divide over {} ranks", self.world);
            return Err(Error::tensor(name, why));
        }
        let each = length / self.world;
        Ok(self.rank * each..(self.rank + 1) * each)
    }

    fn read(&self, name: &str, shape: &[usize], part: &Part) -> Result<Tensor> {
        self.unread.borrow_mut().remove(name);
        Ok(self
            .checkpoint
            .read(name, shape, part, self.device)?
            .to_dtype(self.dtype)?)
    }
}
