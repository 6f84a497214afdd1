//! Complete tiny models with a vocabulary of letters, for tests with text.

#![allow(dead_code, reason = "each test file uses its part")]

use bilayer_gguf::{Metadata, Strings};
use bilayer_graph::SharedBytes;
use bilayer_quant::Type;

use super::model::random_bytes;

/// Token types of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;

/// The first architecture's smallest model, with random weights of type `ty`, as a GGUF file.
pub fn tiny(ty: Type, seed: u64) -> SharedBytes {
    tiny_with(ty, seed, &|_, _| ())
}

/// The smallest model of an architecture.
pub fn tiny_of(architecture: &str) -> SharedBytes {
    tiny_of_sizes(architecture, &[])
}

/// The smallest model of an architecture but for some sizes.
pub fn tiny_of_sizes(architecture: &str, sizes: &[(&str, u32)]) -> SharedBytes {
    let mut metadata = (bilayer_models::find(architecture).unwrap().tiny)();
    for &(key, size) in sizes {
        metadata.set(&format!("{architecture}.{key}"), size);
    }
    made(metadata, Type::F32, 7, &|_, _| ())
}

/// The first architecture's smallest model but for its heads, which have 32 elements.
pub fn tiny_with_long_heads(ty: Type, seed: u64) -> SharedBytes {
    let architecture = bilayer_models::all()[0];
    let mut metadata = (architecture.tiny)();
    for key in ["key_length", "value_length"] {
        metadata.set(&format!("{}.attention.{key}", architecture.name), 32u32);
    }
    made(metadata, ty, seed, &|_, _| ())
}

/// The first architecture's smallest model; `change` may edit each tensor's values by name.
pub fn tiny_with(ty: Type, seed: u64, change: &dyn Fn(&str, &mut [f32])) -> SharedBytes {
    made((bilayer_models::all()[0].tiny)(), ty, seed, change)
}

fn made(
    mut metadata: Metadata,
    ty: Type,
    seed: u64,
    change: &dyn Fn(&str, &mut [f32]),
) -> SharedBytes {
    let vocab = bilayer_models::config(&metadata).unwrap().vocab;
    add(&mut metadata, vocab);
    random_bytes(&metadata, ty, &[], seed, change)
}

/// The smallest encoder with a classification head of given labels, and a WordPiece vocabulary of single letters.
pub fn scorer(architecture: &str, labels: &[&str]) -> SharedBytes {
    let mut metadata = (bilayer_models::find(architecture).unwrap().tiny)();
    let vocab = bilayer_models::config(&metadata).unwrap().vocab;
    let labels: Strings = labels.iter().copied().collect();
    metadata.set(&format!("{architecture}.classifier.output_labels"), labels);
    let special = ["[UNK]", "[CLS]", "[SEP]"].map(str::to_owned);
    let letters = ('!'..).map(|letter| format!("\u{2581}{letter}"));
    let tokens: Strings = special.into_iter().chain(letters).take(vocab).collect();
    let types: Vec<i32> = (0..vocab).map(|id| if id < 3 { CONTROL } else { NORMAL }).collect();
    let [name, prompt] = ["query", "d e "].map(|text| [text].into_iter().collect::<Strings>());
    metadata.set(&format!("{architecture}.prompt.names"), name);
    metadata.set(&format!("{architecture}.prompt.texts"), prompt);
    metadata.set("general.name", "scorer");
    metadata.set("tokenizer.ggml.model", "bert");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", types);
    for (key, id) in [("unknown", 0u32), ("cls", 1), ("seperator", 2)] {
        metadata.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let head = ["cls.weight", "cls.bias", "cls.output.bias"];
    random_bytes(&metadata, Type::F32, &head, 3, &|_, _| ())
}

/// The first architecture's smallest model as a reranker: a head for the labels `yes` and `no` of a pair in a template.
pub fn reranker(template: &str) -> SharedBytes {
    let architecture = bilayer_models::all()[0];
    let mut metadata = (architecture.tiny)();
    let labels: Strings = ["yes", "no"].into_iter().collect();
    metadata.set(&format!("{}.pooling_type", architecture.name), 4u32);
    metadata.set(&format!("{}.classifier.output_labels", architecture.name), labels);
    metadata.set("tokenizer.chat_template.rerank", template);
    made(metadata, Type::F32, 11, &|_, _| ())
}

/// Adds a vocabulary of single characters: `<unk>`, `<s>`, `</s>`, the space, then from `!` on.
fn add(metadata: &mut Metadata, vocab: usize) {
    let special = ["<unk>", "<s>", "</s>", "\u{2581}"].map(str::to_owned);
    let letters = ('!'..).map(String::from);
    let tokens: Strings = special.into_iter().chain(letters).take(vocab).collect();
    let types: Vec<i32> = (0..vocab)
        .map(|id| match id {
            0 => UNKNOWN,
            1 | 2 => CONTROL,
            _ => NORMAL,
        })
        .collect();
    metadata.set("general.name", "tiny");
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.scores", vec![0.0f32; vocab]);
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.bos_token_id", 1u32);
    metadata.set("tokenizer.ggml.eos_token_id", 2u32);
    metadata.set("tokenizer.ggml.unknown_token_id", 0u32);
}

/// The direction of a control vector for a layer: `width` values.
pub fn direction(layer: usize, width: usize) -> Vec<f32> {
    (0..width).map(|i| ((i * 29 + layer * 7) % 17) as f32 * 0.05 - 0.4).collect()
}

/// A control vector with [`direction`]s for some layers.
pub fn control_vector(width: usize, layers: &[usize]) -> SharedBytes {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "controlvector");
    let tensors: Vec<_> = layers
        .iter()
        .map(|&layer| {
            let bytes: Vec<u8> =
                direction(layer, width).into_iter().flat_map(f32::to_le_bytes).collect();
            let (name, shape) = (format!("direction.{layer}"), [width as u64]);
            bilayer_gguf::NewTensor::bytes(&name, Type::F32, &shape, bytes)
        })
        .collect();
    bilayer_gguf::to_bytes(&metadata, tensors).unwrap()
}

/// An adapter of random values for the queries and values of the first layer of a model.
pub fn adapter(model: &std::path::Path, rank: u64) -> SharedBytes {
    adapter_of(model, &["blk.0.attn_q.weight", "blk.0.attn_v.weight"], rank)
}

/// An adapter of random values for matrices of a model.
pub fn adapter_of(model: &std::path::Path, names: &[&str], rank: u64) -> SharedBytes {
    let model = bilayer_gguf::File::open(model).unwrap();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", model.metadata().str("general.architecture").unwrap());
    metadata.set("general.type", "adapter");
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", 2.0f32);
    let mut tensors = Vec::new();
    for name in names {
        let shape = model.tensor(name).unwrap().layout().shape();
        let (rows, cols) = (shape[0], shape[1]);
        for (part, shape) in [("a", [rank, cols]), ("b", [rows, rank])] {
            let values = (0..shape[0] * shape[1]).map(|i| ((i * 37 % 19) as f32 - 9.0) * 0.02);
            let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
            tensors.push((format!("{name}.lora_{part}"), shape, bytes));
        }
    }
    let tensors = tensors.iter().map(|(name, shape, bytes)| {
        bilayer_gguf::NewTensor::bytes(name, Type::F32, shape, bytes.clone())
    });
    bilayer_gguf::to_bytes(&metadata, tensors).unwrap()
}
