//! What config.json says of a model: Llama 2 and 3, Qwen2, Qwen3, and whatever else has their form.

use std::io::ErrorKind;
use std::path::Path;

use candle_core::DType;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
    /// The part of a head that is rotated; all of it where it is absent, and nothing else is known.
    pub partial_rotary_factor: Option<f64>,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// How many tokens one attends to; of `mistral` 4096 where it is absent, and all where it is null.
    pub sliding_window: Option<usize>,
    /// Whether Qwen has that window.
    #[serde(default)]
    pub use_sliding_window: bool,
    /// The activation of the MLP's gate.
    pub hidden_act: Option<String>,
    /// Whether the output layer's weight is the embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have a bias; Qwen2 always has.
    #[serde(default)]
    pub attention_bias: bool,
    /// Element type of the checkpoint.
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
        self.tokens().contains(&token)
    }

    fn tokens(&self) -> &[u32] {
        match self {
            Ends::None => &[],
            Ends::One(end) => std::slice::from_ref(end),
            Ends::Several(ends) => ends,
        }
    }
}

fn ten_thousand() -> f64 {
    10_000.0
}

/// The fields of generation_config.json that count.
#[derive(Default, Deserialize)]
struct Generation {
    #[serde(default)]
    eos_token_id: Ends,
}

impl Generation {
    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("generation_config.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(Error::file(&path)),
            Err(why) if why.kind() == ErrorKind::NotFound => Ok(Generation::default()),
            Err(why) => Err(Error::file(&path)(why)),
        }
    }
}

/// Gives the settings of rotary embeddings the names that [`Config`] has for them: transformers 5 writes all
/// into `rope_parameters`, and `rope_type` was once `type`.
fn flatten_rope(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(nested)) = fields.remove("rope_parameters") {
        for name in ["rope_theta", "partial_rotary_factor"] {
            fields.extend(
                nested
                    .get(name)
                    .map(|value| (name.to_owned(), value.clone())),
            );
        }
        fields.insert("rope_scaling".to_owned(), nested.into());
    }
    if let Some(Value::Object(scaling)) = fields.get_mut("rope_scaling")
        && let Some(kind) = scaling.remove("type")
    {
        scaling.entry("rope_type").or_insert(kind);
    }
}

/// Gives the element type the name that [`Config`] has for it: transformers 5 writes `dtype`, at times next
/// to the former.
fn name_dtype(fields: &mut Map<String, Value>) {
    if let Some(dtype) = fields.remove("dtype").filter(|dtype| !dtype.is_null()) {
        fields.insert("torch_dtype".to_owned(), dtype);
    }
}

/// Writes the window that transformers' `MistralConfig` has where config.json names none; a model without one
/// says null.
fn give_mistral_its_window(fields: &mut Map<String, Value>) {
    if fields
        .get("model_type")
        .is_some_and(|kind| kind == "mistral")
    {
        fields.entry("sliding_window").or_insert(4096.into());
    }
}

impl Config {
    /// Reads config.json of the checkpoint in `folder`, and what else ends a sequence by its
    /// generation_config.json, if it has one.
    ///
    /// # Errors
    /// config.json is missing, one of the files is malformed, or the model is of a kind with other layers.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(Error::file(&path))?;
        let mut fields = serde_json::from_str(&text).map_err(Error::file(&path))?;
        flatten_rope(&mut fields);
        name_dtype(&mut fields);
        give_mistral_its_window(&mut fields);
        let mut config: Config =
            serde_json::from_value(fields.into()).map_err(Error::file(&path))?;
        config.dtype()?;
        config.check_sizes()?;
        let more = Generation::read(folder)?.eos_token_id;
        let ends = [config.eos_token_id.tokens(), more.tokens()].concat();
        config.eos_token_id = Ends::Several(ends);
        if let Some(part) = config.partial_rotary_factor.filter(|part| *part != 1.0) {
            let why = format!("`partial_rotary_factor` is {part}: heads are rotated whole here");
            return Err(Error::Config(why));
        }
        let activation = config.hidden_act.as_deref().unwrap_or("silu");
        if !["silu", "swish"].contains(&activation) {
            let why = format!("`hidden_act` is `{activation}`: gates are activated by silu here");
            return Err(Error::Config(why));
        }
        match config.model_type.as_str() {
            "llama" | "mistral" | "qwen2" | "qwen3" => Ok(config),
            other => Err(Error::Config(format!(
                "`{other}` is none of llama, mistral, qwen2, qwen3"
            ))),
        }
    }

    /// Nothing is of size 0, and each head of keys and values has as many of queries.
    fn check_sizes(&self) -> Result<()> {
        let wrong = |why: String| Err(Error::Config(why));
        for (field, size) in [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.kv_heads()),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            if size == 0 {
                return wrong(format!("`{field}` is 0"));
            }
        }
        let (heads, kv_heads, width) = (self.num_attention_heads, self.kv_heads(), self.head_dim());
        if width == 0 || width % 2 != 0 {
            return wrong(format!(
                "`head_dim` is {width}: halves of heads are rotated"
            ));
        }
        if heads % kv_heads != 0 {
            return wrong(format!(
                "`num_key_value_heads` is {kv_heads}, which does not divide `num_attention_heads`, {heads}"
            ));
        }
        Ok(())
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

    /// The longest sequence that is served, and which field says so. Attention has no window: a model that
    /// was trained with one has only sequences that fit into it.
    pub fn longest_sequence(&self) -> (usize, &'static str) {
        let is_windowed = match self.model_type.as_str() {
            "mistral" => true,
            "qwen2" | "qwen3" => self.use_sliding_window,
            _ => false,
        };
        let window = self.sliding_window.filter(|_| is_windowed);
        let window = window.map(|window| (window, "sliding_window"));
        let positions = (self.max_position_embeddings, "max_position_embeddings");
        window.map_or(positions, |window| window.min(positions))
    }

    /// Rows of the output layer on each of `world` ranks, with rows of zeros after the vocabulary: GEMMs on
    /// GPUs take multiples of 8.
    pub fn head_rows(&self, world: usize) -> usize {
        self.vocab_size.div_ceil(8 * world) * 8
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

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::checkpoint::random::small_llama;

    /// What is read of a small model's config.json that `change` has changed.
    fn read(change: impl FnOnce(&mut Map<String, Value>)) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let mut value = serde_json::to_value(small_llama()).unwrap();
        change(value.as_object_mut().unwrap());
        fs::write(folder.path().join("config.json"), value.to_string()).unwrap();
        Config::read(folder.path())
    }

    fn same(one: &Config, other: &Config) -> bool {
        serde_json::to_value(one).unwrap() == serde_json::to_value(other).unwrap()
    }

    #[test]
    fn rope_is_read_as_transformers_5_writes_it() {
        let nest = |fields: &mut Map<String, Value>| {
            let mut nested = fields.remove("rope_scaling").unwrap();
            nested["rope_theta"] = fields.remove("rope_theta").unwrap();
            nested["partial_rotary_factor"] = json!(1.0);
            fields.insert("rope_parameters".into(), nested);
        };
        let whole = Config {
            partial_rotary_factor: Some(1.0),
            ..small_llama()
        };
        assert!(same(&read(nest).unwrap(), &whole));
        // Next to settings of the form before, it counts.
        let both = |fields: &mut Map<String, Value>| {
            nest(fields);
            fields.insert("rope_theta".into(), json!(1.0));
            fields.insert("rope_scaling".into(), Value::Null);
        };
        assert!(same(&read(both).unwrap(), &whole));
    }

    #[test]
    fn rope_type_was_once_type() {
        let linear = Config {
            rope_scaling: Some(RopeScaling::Linear { factor: 4.0 }),
            ..small_llama()
        };
        for scaling in [
            json!({"type": "linear", "factor": 4.0}),
            json!({"type": "linear", "rope_type": "linear", "factor": 4.0}),
        ] {
            let config = read(|fields| {
                fields.insert("rope_scaling".into(), scaling);
            });
            assert!(same(&config.unwrap(), &linear));
        }
    }

    #[test]
    fn other_ropes_are_refused_by_name() {
        let refused = |name: &str, value: Value| {
            let config = read(|fields| {
                fields.insert(name.into(), value);
            });
            config.unwrap_err().to_string()
        };
        let yarn = json!({"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0});
        assert!(refused("rope_parameters", yarn).contains("`yarn`"));
        let part = json!({"rope_type": "default", "partial_rotary_factor": 0.5});
        assert!(refused("rope_parameters", part).contains("`partial_rotary_factor` is 0.5"));
        assert!(refused("partial_rotary_factor", json!(0.5)).contains("is 0.5"));
    }

    #[test]
    fn dtype_is_read_next_to_its_former_name() {
        let with = |dtype: Value| {
            let config = read(|fields| {
                fields.insert("dtype".into(), dtype);
            });
            config.unwrap().torch_dtype
        };
        assert_eq!(with(json!("float16")), "float16");
        assert_eq!(with(Value::Null), small_llama().torch_dtype);
    }

    #[test]
    fn sizes_that_no_model_has_are_refused_by_name() {
        let refused = |name: &str, value: usize| {
            let config = read(|fields| {
                fields.insert(name.into(), value.into());
            });
            config.unwrap_err().to_string()
        };
        for name in [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
        ] {
            let why = refused(name, 0);
            assert!(why.contains(&format!("`{name}` is 0")), "{why}");
        }
        let heads = small_llama().num_attention_heads;
        let why = refused("num_key_value_heads", heads - 1);
        assert!(why.contains("`num_key_value_heads` is 7"), "{why}");
    }

    #[test]
    fn another_activation_is_refused_by_name() {
        let with = |activation: &str| {
            read(|fields| {
                fields.insert("hidden_act".into(), activation.into());
            })
        };
        with("silu").unwrap();
        let refused = with("gelu").unwrap_err().to_string();
        assert!(refused.contains("`hidden_act` is `gelu`"), "{refused}");
    }

    #[test]
    fn mistral_has_a_window_unless_it_says_that_it_has_none() {
        let longest = |model_type: &str, window: Option<Value>| {
            let config = read(|fields| {
                fields.insert("model_type".into(), model_type.into());
                fields.insert("max_position_embeddings".into(), json!(32768));
                fields.remove("sliding_window");
                fields.extend(window.map(|window| ("sliding_window".into(), window)));
            });
            config.unwrap().longest_sequence()
        };
        let window = |tokens| (tokens, "sliding_window");
        let all = (32768, "max_position_embeddings");
        assert_eq!(longest("mistral", None), window(4096));
        assert_eq!(longest("mistral", Some(json!(1024))), window(1024));
        assert_eq!(longest("mistral", Some(Value::Null)), all);
        assert_eq!(longest("llama", None), all);
    }

    #[test]
    fn windows_of_attention_bound_sequences() {
        let longest = |model_type: &str, use_sliding_window, sliding_window| {
            let config = Config {
                model_type: model_type.into(),
                sliding_window,
                use_sliding_window,
                ..small_llama()
            };
            config.longest_sequence().0
        };
        assert_eq!(longest("mistral", false, Some(16)), 16);
        assert_eq!(longest("mistral", false, None), 4096);
        assert_eq!(longest("qwen2", true, Some(16)), 16);
        assert_eq!(longest("qwen3", false, Some(16)), 4096);
        assert_eq!(longest("mistral", false, Some(10_000)), 4096);
    }
}
