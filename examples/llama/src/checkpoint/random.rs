//! A small model with random weights, in the files of a real one: config.json, two safetensors with their
//! index, tokenizer.json.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::{INDEX, Index};
use crate::config::{Config, Ends, RopeScaling};
use crate::error::{Error, Result};

/// A Llama 3 of four layers and 320 tokens, in bf16.
pub fn small_llama() -> Config {
    Config {
        model_type: "llama".into(),
        vocab_size: 320,
        hidden_size: 128,
        intermediate_size: 352,
        num_hidden_layers: 4,
        num_attention_heads: 8,
        num_key_value_heads: Some(4),
        head_dim: Some(16),
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        rope_scaling: Some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 512,
        }),
        partial_rotary_factor: None,
        max_position_embeddings: 4096,
        sliding_window: None,
        use_sliding_window: false,
        hidden_act: None,
        tie_word_embeddings: false,
        attention_bias: false,
        torch_dtype: "bfloat16".into(),
        eos_token_id: Ends::Several(vec![1]),
    }
}

/// The shape of Llama 3.1 8B.
pub fn llama_8b() -> Config {
    Config {
        vocab_size: 128_256,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        ..small_llama()
    }
}

/// As [`small_llama`], with the biases and tied embeddings of a small Qwen2.
pub fn small_qwen2() -> Config {
    Config {
        model_type: "qwen2".into(),
        tie_word_embeddings: true,
        rope_scaling: None,
        ..small_llama()
    }
}

/// As [`small_llama`], with the norms of heads of a Qwen3.
pub fn small_qwen3() -> Config {
    Config {
        model_type: "qwen3".into(),
        rope_scaling: None,
        ..small_llama()
    }
}

/// Writes a checkpoint to `folder`, whose weights `seed` gives.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, config: &Config, seed: u64) -> Result<()> {
    let save = |name: &str, value: &serde_json::Value| {
        let path = folder.join(name);
        fs::write(&path, format!("{value:#}\n")).map_err(Error::file(&path))
    };
    save(
        "config.json",
        &serde_json::to_value(config).map_err(|why| Error::Config(why.to_string()))?,
    )?;
    save("tokenizer.json", &tokenizer(config.vocab_size))?;

    let tensors = tensors(config);
    let first = tensors.len() / 2;
    let mut random = StdRng::seed_from_u64(seed);
    let mut index = Index::default();
    for (shard, tensors) in [&tensors[..first], &tensors[first..]]
        .into_iter()
        .enumerate()
    {
        let file = format!("model-{:05}-of-00002.safetensors", shard + 1);
        let mut stored = HashMap::new();
        for (name, shape) in tensors {
            stored.insert(
                name.clone(),
                tensor(name, shape, config.dtype()?, &mut random)?,
            );
            index.weight_map.insert(name.clone(), file.clone());
        }
        candle_core::safetensors::save(&stored, folder.join(file))?;
    }
    save(
        INDEX,
        &json!({ "metadata": {}, "weight_map": index.weight_map }),
    )
}

/// Names and shapes of all tensors.
fn tensors(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (hidden, width, head) = (
        config.hidden_size,
        config.intermediate_size,
        config.head_dim(),
    );
    let (q, k) = (config.num_attention_heads * head, config.kv_heads() * head);
    let mut all = vec![(
        "model.embed_tokens.weight".to_owned(),
        vec![config.vocab_size, hidden],
    )];
    for layer in 0..config.num_hidden_layers {
        let mut add = |name: &str, shape: &[usize]| {
            all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
        };
        add("input_layernorm.weight", &[hidden]);
        for (which, rows) in [("q", q), ("k", k), ("v", k)] {
            add(&format!("self_attn.{which}_proj.weight"), &[rows, hidden]);
            if config.has_qkv_bias() {
                add(&format!("self_attn.{which}_proj.bias"), &[rows]);
            }
        }
        if config.has_qk_norm() {
            add("self_attn.q_norm.weight", &[head]);
            add("self_attn.k_norm.weight", &[head]);
        }
        add("self_attn.o_proj.weight", &[hidden, q]);
        add("post_attention_layernorm.weight", &[hidden]);
        add("mlp.gate_proj.weight", &[width, hidden]);
        add("mlp.up_proj.weight", &[width, hidden]);
        add("mlp.down_proj.weight", &[hidden, width]);
    }
    all.push(("model.norm.weight".to_owned(), vec![hidden]));
    if !config.tie_word_embeddings {
        all.push(("lm_head.weight".to_owned(), vec![config.vocab_size, hidden]));
    }
    all
}

/// Uniform numbers, such that a layer keeps the variance of its input; norms are near 1.
fn tensor(name: &str, shape: &[usize], dtype: DType, random: &mut StdRng) -> Result<Tensor> {
    let (middle, spread) = match shape {
        [_] if name.contains("norm") => (1.0, 0.2),
        [_] => (0.0, 0.2),
        _ if name.contains("embed") => (0.0, 1.0),
        _ => (0.0, (3.0 / shape[1] as f32).sqrt()),
    };
    let count = shape.iter().product();
    let values = (0..count).map(|_| middle + spread * random.random_range(-1f32..1.0));
    let values = Tensor::from_vec(values.collect::<Vec<_>>(), shape, &Device::Cpu)?;
    Ok(values.to_dtype(dtype)?)
}

/// A byte-level BPE, as those of Llama 3 and Qwen are: the printable characters, and syllables merged of
/// them.
fn tokenizer(vocabulary: usize) -> serde_json::Value {
    const SPACE: &str = "Ġ";
    let mut tokens = vec!["<|begin_of_text|>".to_owned(), "<|end_of_text|>".to_owned()];
    let mut merges = Vec::new();
    tokens.push(SPACE.to_owned());
    tokens.extend(('!'..='~').map(String::from));
    for consonant in "bcdfghjklmnpqrstvwxyz".chars() {
        for vowel in "aeiou".chars() {
            let syllable = format!("{consonant}{vowel}");
            merges.push(json!([consonant, vowel]));
            merges.push(json!([SPACE, &syllable]));
            tokens.push(syllable.clone());
            tokens.push(format!("{SPACE}{syllable}"));
        }
    }
    let reserved = (tokens.len()..vocabulary).map(|token| format!("<|reserved_{token}|>"));
    let reserved: Vec<_> = reserved.collect();
    let special = |id: usize, content: &str| {
        json!({
            "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let ids: BTreeMap<_, _> = tokens.iter().zip(0..).skip(2).collect();
    let specials = tokens.iter().take(2).enumerate();
    let specials = specials.chain((tokens.len()..).zip(&reserved));
    let specials: Vec<_> = specials.map(|(id, content)| special(id, content)).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0",
        "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": specials,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false,
            "vocab": ids,
            "merges": merges,
        },
    })
}
