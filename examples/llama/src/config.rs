//! What config.json says of a model: Llama 2 and 3, Qwen2, Qwen3, and whatever else has their form.

use std::path::Path;

use candle_core::DType;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The fields of config.json that the forward pass needs, under their names there.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Config {
    /// `llama`, `mistral`, `qwen2` or `qwen3`.
    pub model_type: String,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of transformer layers.
    pub num_hidden_layers: usize,
    /// Number of heads of the queries.
    pub num_attention_heads: usize,
    /// Number of heads of keys and values; that of the queries where it is absent.
    pub num_key_value_heads: Option<usize>,
    /// Width of a head; `hidden_size / num_attention_heads` where it is absent.
    pub head_dim: Option<usize>,
    /// Added to the mean of squares in RMSNorm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    #[serde(default = "ten_thousand")]
    pub rope_theta: f64,
    /// How the frequencies are stretched for long contexts.
    pub rope_scaling: Option<RopeScaling>,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// Whether the output layer's weight is the embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have a bias; Qwen2 always has.
    #[serde(default)]
    pub attention_bias: bool,
    /// Element type of the checkpoint.
    #[serde(alias = "dtype")]
    pub torch_dtype: String,
    /// What ends a sequence.
    #[serde(default)]
    pub eos_token_id: Ends,
}

/// Stretching of rotary frequencies.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// All frequencies divided alike.
    Linear {
        /// By this.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided, high ones kept, those between interpolated.
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are of low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are of high frequencies.
        high_freq_factor: f64,
        /// The context that the model was trained with first.
        original_max_position_embeddings: usize,
    },
}

/// Tokens that end a sequence: none, one or several.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Ends {
    /// None are known.
    #[default]
    None,
    /// One.
    One(u32),
    /// Several.
    Several(Vec<u32>),
}

impl Ends {
    /// Whether `token` is one.
    pub fn contains(&self, token: u32) -> bool {
        match self {
            Ends::None => false,
            Ends::One(end) => *end == token,
            Ends::Several(ends) => ends.contains(&token),
        }
    }
}

fn ten_thousand() -> f64 {
    10_000.0
}

impl Config {
    /// Reads config.json of the checkpoint in `folder`.
    ///
    /// # Errors
    /// The file is missing or malformed, or the model is of a kind with other layers.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
        let config: Config = serde_json::from_str(&text).map_err(Error::file(&path))?;
        config.dtype()?;
        match config.model_type.as_str() {
            "llama" | "mistral" | "qwen2" | "qwen3" => Ok(config),
            other => Err(Error::Config(format!(
                "`{other}` is none of llama, mistral, qwen2, qwen3"
            ))),
        }
    }

    /// Heads of keys and values.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Whether q, k and v have a bias.
    pub fn has_qkv_bias(&self) -> bool {
        self.attention_bias || self.model_type == "qwen2"
    }

    /// Whether each head of q and k is normalized.
    pub fn has_qk_norm(&self) -> bool {
        self.model_type == "qwen3"
    }

    /// Element type of the checkpoint.
    ///
    /// # Errors
    /// A type that is none of f32, f16 and bf16.
    pub fn dtype(&self) -> Result<DType> {
        match self.torch_dtype.as_str() {
            "float32" => Ok(DType::F32),
            "float16" => Ok(DType::F16),
            "bfloat16" => Ok(DType::BF16),
            other => Err(Error::Config(format!(
                "torch_dtype `{other}` is none of float32, float16, bfloat16"
            ))),
        }
    }
}
