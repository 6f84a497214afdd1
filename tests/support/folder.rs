//! Checkpoint folders for tests: a tiny Llama with a tokenizer of a few tokens, and ways to damage it.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_models::{Change, Outline, Settings, draft, of_checkpoint};
use bilayer_quant::Type;
use safetensors::{Dtype, View};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::model::Random;

/// A folder and its weights, BF16 in one file unless split.
pub struct Folder {
    folder: TempDir,
    tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Two layers of width 32 with four query heads and two key-value heads; eight tokens.
fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 40, "max_position_embeddings": 64, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "vocab_size": 8, "tie_word_embeddings": false,
    })
}

fn tokenizer() -> Value {
    json!({
        "added_tokens": [{"id": 4, "content": "<|end|>", "special": true},
            {"id": 5, "content": "<|turn|>", "special": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3}, "merges": [["a", "b"]]},
    })
}

impl Folder {
    /// Random weights, the same each time.
    pub fn tiny() -> Folder {
        let mut folder = Folder { folder: TempDir::new().unwrap(), tensors: BTreeMap::new() };
        folder.write("config.json", &config().to_string());
        folder.write("tokenizer.json", &tokenizer().to_string());
        let names = json!({"bos_token": "<|end|>", "eos_token": "<|end|>"});
        folder.write("tokenizer_config.json", &names.to_string());
        let mut shapes: Vec<(String, Vec<usize>)> = vec![
            ("model.embed_tokens.weight".into(), vec![8, 32]),
            ("model.norm.weight".into(), vec![32]),
            ("lm_head.weight".into(), vec![8, 32]),
        ];
        for layer in 0..2 {
            let stems: [(&str, &[usize]); 9] = [
                ("input_layernorm", &[32]),
                ("post_attention_layernorm", &[32]),
                ("self_attn.q_proj", &[32, 32]),
                ("self_attn.k_proj", &[16, 32]),
                ("self_attn.v_proj", &[16, 32]),
                ("self_attn.o_proj", &[32, 32]),
                ("mlp.gate_proj", &[40, 32]),
                ("mlp.up_proj", &[40, 32]),
                ("mlp.down_proj", &[32, 40]),
            ];
            let named = stems.map(|(stem, shape)| {
                (format!("model.layers.{layer}.{stem}.weight"), shape.to_vec())
            });
            shapes.extend(named);
        }
        let mut random = Random(1);
        for (name, shape) in shapes {
            let len = shape.iter().product::<usize>();
            let bytes = (0..len).flat_map(|_| bf16(random.next())).collect();
            folder.tensors.insert(name, Tensor { dtype: Dtype::BF16, shape, bytes });
        }
        folder.save();
        folder
    }

    /// Random weights in the shapes that `config` implies, named by the architecture's table, with the optional tensors in
    /// `optional`.
    pub fn of(config: &Value, optional: &[&str]) -> Folder {
        let mut folder = Folder { folder: TempDir::new().unwrap(), tensors: BTreeMap::new() };
        folder.write("config.json", &config.to_string());
        let architecture = of_checkpoint(Settings(config)).unwrap();
        let (metadata, _) = draft(architecture, Settings(config)).unwrap();
        let outline = Outline::new(Type::F32, optional);
        bilayer_models::record(&bilayer_models::config(&metadata).unwrap(), &outline).unwrap();
        let mut random = Random(2);
        for (name, entry) in outline.tensors() {
            let mut shape: Vec<usize> = entry.shape.iter().map(|&size| size as usize).collect();
            let (stem, suffix) = name.rsplit_once('.').unwrap();
            let (layer, general) = match stem.strip_prefix("blk.").and_then(|s| s.split_once('.')) {
                Some((layer, rest)) => (layer, format!("blk.{{}}.{rest}")),
                None => ("", stem.to_owned()),
            };
            let mut known = architecture.names.iter().copied().flatten();
            let whole = format!("{general}.{suffix}");
            let by = known.find(|by| by.gguf == general || by.gguf == whole);
            let by = by.unwrap_or_else(|| panic!("{name}"));
            let stem = by.checkpoint.replacen("{}", layer, 1);
            if by.gguf == whole {
                // A tensor shared by several names is created for the first.
                if let Change::EachTransposed { step, .. } = by.change {
                    shape = match shape[..] {
                        [experts, rows, cols] => vec![experts, cols, step * rows],
                        [experts, rows] => vec![experts, step * rows],
                        _ => shape,
                    };
                }
                let bytes = (0..shape.iter().product::<usize>()).flat_map(|_| bf16(random.next()));
                let bytes = bytes.collect();
                folder.tensors.entry(stem).or_insert(Tensor { dtype: Dtype::BF16, shape, bytes });
                continue;
            }
            let experts = if by.change == Change::Stacked { shape.remove(0) } else { 1 };
            for expert in 0..experts {
                let name = format!("{}.{suffix}", stem.replacen("{}", &expert.to_string(), 1));
                let len = shape.iter().product::<usize>();
                let bytes = (0..len).flat_map(|_| bf16(random.next())).collect();
                folder
                    .tensors
                    .insert(name, Tensor { dtype: Dtype::BF16, shape: shape.clone(), bytes });
            }
        }
        folder.save();
        folder
    }

    /// A tensor's weights.
    pub fn values(&self, name: &str) -> Vec<f32> {
        let bytes = self.tensors[name].bytes.as_chunks().0;
        bytes.iter().map(|&bytes| half::bf16::from_le_bytes(bytes).to_f32()).collect()
    }

    /// The files of another folder.
    pub fn copy(from: &Path) -> Folder {
        let folder = Folder { folder: TempDir::new().unwrap(), tensors: BTreeMap::new() };
        for entry in std::fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        folder
    }

    /// The tiny model with an embedding of `vocab` rows of `width` zeros, which take no disk space.
    pub fn hollow(vocab: u64, width: u64) -> Folder {
        let mut folder = Folder::tiny();
        folder.split(1);
        let ends = ["model.embed_tokens.weight", "model.norm.weight"];
        let mut header = serde_json::Map::new();
        let mut at = 0;
        let mut sized = |name: String, shape: Vec<u64>| {
            let bytes = 4 * shape.iter().product::<u64>();
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [at, at + bytes]});
            header.insert(name, entry);
            at += bytes;
        };
        sized(ends[0].into(), vec![vocab, width]);
        sized(ends[1].into(), vec![width]);
        for name in folder.tensors.keys().filter(|name| name.contains("layers.")) {
            let shape = match name.rsplit('.').nth(1).unwrap() {
                "input_layernorm" | "post_attention_layernorm" => vec![width],
                "k_proj" | "v_proj" => vec![width / 2, width],
                "gate_proj" | "up_proj" => vec![64, width],
                "down_proj" => vec![width, 64],
                _ => vec![width, width],
            };
            sized(name.clone(), shape);
        }
        let header = Value::Object(header).to_string();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        let path = folder.path().join("model-00001-of-00001.safetensors");
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(bytes.len() as u64 + at).unwrap();
        folder.change("model.safetensors.index.json", |index| {
            index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
        });
        folder.change("config.json", |config| {
            let changes = [
                ("vocab_size", json!(vocab)),
                ("hidden_size", json!(width)),
                ("intermediate_size", json!(64)),
                ("tie_word_embeddings", json!(true)),
            ];
            changes.into_iter().for_each(|(field, value)| config[field] = value);
        });
        folder
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The names of its files, in order.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path().join(name)).unwrap();
    }

    /// Makes it a reranker of Sentence Transformers, by the logits of these tokens.
    pub fn score_by(&self, yes: u32, no: Option<u32>, template: &str) {
        let module = |kind: &str, path: &str| json!({"type": format!("st.{kind}"), "path": path});
        let modules = json!([module("Transformer", ""), module("LogitScore", "1_LogitScore")]);
        self.write("modules.json", &modules.to_string());
        std::fs::create_dir_all(self.path().join("1_LogitScore")).unwrap();
        let tokens = json!({"true_token_id": yes, "false_token_id": no});
        self.write("1_LogitScore/config.json", &tokens.to_string());
        self.write("chat_template.jinja", template);
    }

    /// Changes or creates a JSON file.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read_to_string(self.path().join(name)).unwrap_or("{}".into());
        let mut value = serde_json::from_str(&text).unwrap();
        change(&mut value);
        self.write(name, &value.to_string());
    }

    /// Replaces a tensor by one of bytes.
    pub fn replace(&mut self, old: &str, new: &str, shape: &[usize], bytes: Vec<u8>) {
        self.tensors.remove(old);
        let shape = shape.to_vec();
        self.tensors.insert(new.into(), Tensor { dtype: Dtype::U8, shape, bytes });
        self.save();
    }

    /// Replaces tensors by one of their rows.
    pub fn merge(&mut self, parts: &[String], name: &str) {
        let parts: Vec<Tensor> =
            parts.iter().map(|part| self.tensors.remove(part).unwrap()).collect();
        let mut whole = parts[0].clone();
        for part in &parts[1..] {
            whole.shape[0] += part.shape[0];
            whole.bytes.extend_from_slice(&part.bytes);
        }
        self.tensors.insert(name.into(), whole);
        self.save();
    }

    /// Removes a tensor.
    pub fn without(&mut self, name: &str) {
        self.tensors.remove(name).unwrap();
        self.save();
    }

    /// Adds a tensor of one value.
    pub fn add(&mut self, name: &str, shape: &[usize], value: f32) {
        let bytes = bf16(value).repeat(shape.iter().product());
        self.tensors
            .insert(name.into(), Tensor { dtype: Dtype::BF16, shape: shape.to_vec(), bytes });
        self.save();
    }

    /// Sets a weight.
    pub fn set(&mut self, name: &str, index: usize, value: f32) {
        let bytes = &mut self.tensors.get_mut(name).unwrap().bytes;
        bytes[2 * index..][..2].copy_from_slice(&bf16(value));
        self.save();
    }

    /// Puts the tensors into `count` shards with an index.
    pub fn split(&mut self, count: usize) {
        self.remove("model.safetensors");
        let mut places = serde_json::Map::new();
        let each = self.tensors.len().div_ceil(count);
        let tensors: Vec<_> = self.tensors.iter().collect();
        for (i, part) in tensors.chunks(each).enumerate() {
            let name = format!("model-{:05}-of-{count:05}.safetensors", i + 1);
            let views = part.iter().map(|(name, tensor)| (name.as_str(), (*tensor).clone()));
            std::fs::write(self.path().join(&name), safetensors::serialize(views, None).unwrap())
                .unwrap();
            places.extend(part.iter().map(|(tensor, _)| ((*tensor).clone(), json!(name))));
        }
        let index = json!({"metadata": {}, "weight_map": places});
        self.write("model.safetensors.index.json", &index.to_string());
    }

    /// Overwrites the beginning of the weights' file.
    pub fn head(&self, bytes: &[u8]) {
        let path = self.path().join("model.safetensors");
        let mut file = std::fs::read(&path).unwrap();
        file[..bytes.len()].copy_from_slice(bytes);
        std::fs::write(path, file).unwrap();
    }

    /// Truncates the weights' file.
    pub fn cut(&self, bytes: usize) {
        let path = self.path().join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        std::fs::write(path, &file[..file.len() - bytes]).unwrap();
    }

    /// Changes the header of the weights' file.
    pub fn header(&self, change: impl FnOnce(&mut Value)) {
        let path = self.path().join("model.safetensors");
        let file = std::fs::read(&path).unwrap();
        let len = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&file[8..8 + len]).unwrap();
        change(&mut header);
        let header = header.to_string();
        let start = (header.len() as u64).to_le_bytes();
        std::fs::write(path, [&start, header.as_bytes(), &file[8 + len..]].concat()).unwrap();
    }

    fn save(&self) {
        let views = self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.clone()));
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(self.path().join("model.safetensors"), bytes).unwrap();
    }
}

fn bf16(value: f32) -> [u8; 2] {
    half::bf16::from_f32(value).to_le_bytes()
}
