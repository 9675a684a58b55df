//! Checkpoints that cannot be loaded: the error names the tensor.

use std::fs::{self, OpenOptions};
use std::path::Path;

use candle_core::{DType, Device, Tensor, safetensors};
use warpweave_example_llama::Error;
use warpweave_example_llama::checkpoint::INDEX;
use warpweave_example_llama::checkpoint::random::{small_llama, small_qwen2};
use warpweave_example_llama::config::Config;

use super::{weights, written};

/// The tensor that loading fails at, and why.
fn refused(folder: &Path, place: (usize, usize)) -> (String, String) {
    match weights(folder, place, DType::F32) {
        Err(Error::Tensor { name, why }) => (name, why),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("loaded"),
    }
}

#[test]
fn a_tensor_that_does_not_divide_is_named() {
    let folder = written(&small_llama());
    let (name, why) = refused(folder.path(), (0, 8));
    assert_eq!(name, "model.layers.0.self_attn.k_proj.weight");
    assert_eq!(why, "its 4 heads of 16 rows do not divide over 8 ranks");

    let folder = written(&Config {
        intermediate_size: 350,
        ..small_llama()
    });
    let (name, why) = refused(folder.path(), (1, 4));
    assert_eq!(name, "model.layers.0.mlp.gate_proj.weight");
    assert_eq!(why, "its 350 rows do not divide over 4 ranks");

    let folder = written(&Config {
        intermediate_size: 80,
        ..small_llama()
    });
    let (_, why) = refused(folder.path(), (1, 4));
    assert_eq!(why, "its 10 groups of 8 rows do not divide over 4 ranks");
}

#[test]
fn a_truncated_tensor_is_named() {
    let folder = written(&small_llama());
    let second = folder.path().join("model-00002-of-00002.safetensors");
    let length = fs::metadata(&second).unwrap().len();
    OpenOptions::new()
        .write(true)
        .open(&second)
        .unwrap()
        .set_len(length - 1)
        .unwrap();
    let (name, why) = refused(folder.path(), (0, 4));
    let header = header(&second);
    assert!(why.ends_with("truncated"), "{why}");
    let ends = &header[&name]["data_offsets"][1];
    let last = header
        .values()
        .filter_map(|info| info["data_offsets"][1].as_u64())
        .max();
    assert_eq!(ends.as_u64(), last, "{name} is not the last of the file");
}

#[test]
fn a_tensor_of_another_type_or_shape_is_named() {
    // The files are of bf16.
    let folder = written(&small_llama());
    let said = |config: Config| {
        let text = serde_json::to_string(&config).unwrap();
        fs::write(folder.path().join("config.json"), text).unwrap();
        refused(folder.path(), (0, 2))
    };
    let (name, why) = said(Config {
        torch_dtype: "float16".into(),
        ..small_llama()
    });
    assert_eq!(name, "model.layers.0.input_layernorm.weight");
    assert_eq!(why, "is of BF16, and the checkpoint of F16");
    let (name, why) = said(Config {
        num_hidden_layers: 5,
        ..small_llama()
    });
    assert_eq!(name, "model.layers.4.input_layernorm.weight");
    assert!(why.starts_with("not in the checkpoint"), "{why}");
    let (name, why) = said(Config {
        vocab_size: 384,
        ..small_llama()
    });
    assert_eq!(name, "model.embed_tokens.weight");
    assert_eq!(why, "is [320, 128] and should be [384, 128]");
}

/// Adds a tensor of zeros to the first file and to the index.
fn add(folder: &Path, name: &str, length: usize) {
    let file = "model-00001-of-00002.safetensors";
    let mut tensors = safetensors::load(folder.join(file), &Device::Cpu).unwrap();
    let zeros = Tensor::zeros(length, DType::BF16, &Device::Cpu).unwrap();
    tensors.insert(name.to_owned(), zeros);
    safetensors::save(&tensors, folder.join(file)).unwrap();
    let text = fs::read_to_string(folder.join(INDEX)).unwrap();
    let mut index: serde_json::Value = serde_json::from_str(&text).unwrap();
    index["weight_map"][name] = file.into();
    fs::write(folder.join(INDEX), index.to_string()).unwrap();
}

#[test]
fn a_tensor_that_nothing_reads_is_named() {
    let folder = written(&Config {
        attention_bias: true,
        ..small_llama()
    });
    add(
        folder.path(),
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        8,
    );
    weights(folder.path(), (0, 1), DType::F32).unwrap();
    add(folder.path(), "model.layers.0.self_attn.o_proj.bias", 128);
    let (name, why) = refused(folder.path(), (0, 1));
    assert_eq!(name, "model.layers.0.self_attn.o_proj.bias");
    assert_eq!(why, "this model has no such weight here");

    let folder = written(&small_llama());
    add(folder.path(), "model.layers.3.mlp.up_proj.bias", 352);
    let (name, _) = refused(folder.path(), (1, 2));
    assert_eq!(name, "model.layers.3.mlp.up_proj.bias");

    // That of a tied output layer is known.
    let folder = written(&small_qwen2());
    add(folder.path(), "lm_head.weight", 1);
    weights(folder.path(), (0, 1), DType::F32).unwrap();
}

fn header(path: &Path) -> serde_json::Map<String, serde_json::Value> {
    let bytes = fs::read(path).unwrap();
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&bytes[8..8 + size]).unwrap()
}
