//! Architectures, one file each: configuration from metadata, the recorded graph, checkpoint names.
//!
//! ***Purpose.** Turns a file's metadata into a typed, validated [`Config`], and that into a recorded [`Graph`]. Code
//! shared by architectures is driven by fields of the configuration; an architecture's own file lists its keys and
//! tensor names and has one entry in a table.
//!
//! **What it does not know.** Devices, placements, kernels, tokens.
//!
//! **Read first.** [`Config`], [`Architecture`], and `decoder.rs` for the forward pass.
//!
//! ```
//! use bilayer_models::{Outline, all, record};
//! use bilayer_quant::Type;
//!
//! // A model without a file, from the smallest metadata the architecture accepts.
//! let architecture = all()[0];
//! let config = (architecture.config)(&(architecture.tiny)())?;
//! let outline = Outline::new(Type::Q4_0, &[]);
//! let graph = record(&config, &outline)?;
//! assert_eq!(graph.layers() as usize, config.layers.len());
//! assert!(outline.tensors().iter().any(|(name, _)| name == "blk.0.attn_q.weight"));
//! # Ok::<(), bilayer_models::Error>(())
//! ```

mod alibi;
mod bert;
mod catalog;
mod checkpoint;
mod cohere2;
mod command_r;
mod config;
mod cut;
mod decoder;
mod deepseek2;
mod encoder;
mod ernie4_5;
mod ernie4_5_moe;
mod error;
mod eurobert;
mod exaone4;
mod experts;
mod falcon;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod granitehybrid;
mod hunyuan_dense;
mod hunyuan_moe;
mod jina_bert_v2;
mod keys;
mod latent;
mod layer;
mod lfm2;
mod lfm2moe;
pub mod limits;
mod llama;
mod llama4;
mod mamba2;
mod minimax_m2;
mod mistral3;
mod modern_bert;
mod muse_glimmer;
mod names;
mod nemotron_h;
mod nemotron_h_moe;
mod nomic_bert;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod rope;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;
mod t5encoder;
mod tiny;

use std::collections::HashSet;

use bilayer_gguf::{File, Metadata};
use bilayer_graph::{Catalog, Graph, Recorder, Value};

use crate::keys::Keys;

pub use catalog::{Adapted, Directory, Listing, Outline};
pub use checkpoint::{
    Absent, Checkpoint, Draft, Field, Made, Settings, add_mtp_blocks, draft, of_checkpoint,
};
pub use config::{
    AttentionGate, Config, FeedForward, FfnInput, Norm, NormAt, Output, QkNorm, Stems,
};
pub use cut::{cut, numbered, renumbered};
pub use decoder::direction;
pub use encoder::{Encoder, HEAD as SCORE_MATRIX, Head, Pooling, RANK};
pub use error::Error;
pub use experts::{Experts, Shared};
pub use falcon::has_falcon_mixes;
pub use latent::{Latent, split_keys_and_values};
pub use layer::{DeltaNet, Layer, Mamba2, Mixer};
pub use names::{
    Change, Name, OfKeyHeads, Tiled, Translated, interleaved_source, layer_of, mtp_name,
    of_another_tower, part_source, regrouped_source, tiled_source, translate, ungrouped_source,
};
pub use rope::{Llama3, Rotary, Scaling};

/// Everything the program knows about an architecture.
#[derive(Debug)]
pub struct Architecture {
    /// `general.architecture` of its files, and the prefix of its keys.
    pub name: &'static str,
    /// Reads and checks the metadata.
    pub config: fn(&Metadata) -> Result<Config, Error>,
    /// Records the whole model; the result is the logits or, for encoders, embeddings or scores.
    pub record: fn(&Config, &mut Recorder<'_>) -> Result<Value, bilayer_graph::Error>,
    /// The smallest metadata it accepts, from which tests make a random model.
    pub tiny: fn() -> Metadata,
    /// Tensor names in GGUF and in checkpoints, in groups.
    pub names: &'static [&'static [Name]],
    /// Suffixes of tensor names that files may contain and the model does not read.
    pub ignored: &'static [&'static str],
    /// How its checkpoints are converted to GGUF.
    pub checkpoint: Checkpoint,
}

/// All architectures. Tests run more cases for the first one.
static ARCHITECTURES: [&Architecture; 50] = [
    &llama::ARCHITECTURE,
    &cohere2::ARCHITECTURE,
    &command_r::ARCHITECTURE,
    &deepseek2::ARCHITECTURE,
    &ernie4_5::ARCHITECTURE,
    &ernie4_5_moe::ARCHITECTURE,
    &exaone4::ARCHITECTURE,
    &falcon::ARCHITECTURE,
    &gemma::ARCHITECTURE,
    &gemma2::ARCHITECTURE,
    &gemma3::ARCHITECTURE,
    &gemma4::ARCHITECTURE,
    &glm4::ARCHITECTURE,
    &glm4moe::ARCHITECTURE,
    &gpt2::ARCHITECTURE,
    &gpt_oss::ARCHITECTURE,
    &gptneox::ARCHITECTURE,
    &granite::ARCHITECTURE,
    &granitehybrid::ARCHITECTURE,
    &hunyuan_dense::ARCHITECTURE,
    &hunyuan_moe::ARCHITECTURE,
    &lfm2::ARCHITECTURE,
    &lfm2moe::ARCHITECTURE,
    &llama4::ARCHITECTURE,
    &mamba2::ARCHITECTURE,
    &minimax_m2::ARCHITECTURE,
    &mistral3::ARCHITECTURE,
    &muse_glimmer::ARCHITECTURE,
    &nemotron_h::ARCHITECTURE,
    &nemotron_h_moe::ARCHITECTURE,
    &olmo2::ARCHITECTURE,
    &phi3::ARCHITECTURE,
    &qwen2::ARCHITECTURE,
    &qwen2moe::ARCHITECTURE,
    &qwen3::ARCHITECTURE,
    &qwen3moe::ARCHITECTURE,
    &qwen3next::ARCHITECTURE,
    &qwen35::ARCHITECTURE,
    &qwen35moe::ARCHITECTURE,
    &seed_oss::ARCHITECTURE,
    &smollm3::ARCHITECTURE,
    &stablelm::ARCHITECTURE,
    &starcoder2::ARCHITECTURE,
    &bert::ARCHITECTURE,
    &eurobert::ARCHITECTURE,
    &gemma_embedding::ARCHITECTURE,
    &jina_bert_v2::ARCHITECTURE,
    &modern_bert::ARCHITECTURE,
    &nomic_bert::ARCHITECTURE,
    &t5encoder::ARCHITECTURE,
];

/// Prefixes of the tensors that files of multimodal models, such as ollama's, hold beside the text model: of images, of
/// sound, of projections between these and the text model, and of multi-token prediction in another form than blocks.
const BESIDE: [&str; 5] = ["v.", "a.", "mm.", "model.vision_tower.", "mtp."];

/// The head of a decoder besides the embedding.
const OUTPUT: [&str; 2] = ["output.weight", "output.bias"];

/// Every architecture.
pub fn all() -> &'static [&'static Architecture] {
    &ARCHITECTURES
}

/// Finds an architecture by name.
///
/// # Errors
/// [`Error::UnknownArchitecture`], which lists the known ones.
pub fn find(name: &str) -> Result<&'static Architecture, Error> {
    let found = ARCHITECTURES.iter().find(|architecture| architecture.name == name);
    found.copied().ok_or_else(|| Error::UnknownArchitecture { name: name.to_owned() })
}

/// The validated configuration of a file.
///
/// # Errors
/// The architecture is unknown, or a key is absent, has the wrong type or is out of bounds.
pub fn config(metadata: &Metadata) -> Result<Config, Error> {
    let mut config = (find(metadata.str("general.architecture")?)?.config)(metadata)?;
    let keys = Keys { metadata, architecture: config.architecture };
    if config.encoder.is_none() {
        config.encoder = Encoder::of_decoder(&keys, &config.layers)?;
    }
    Ok(config)
}

/// The graph of a model with the tensors of `catalog`.
///
/// # Errors
/// A tensor is missing or has another shape or type than the configuration implies.
pub fn record(config: &Config, catalog: &dyn Catalog) -> Result<Graph, Error> {
    let mut recorder = Recorder::new(catalog);
    let logits = (find(config.architecture)?.record)(config, &mut recorder)?;
    Ok(recorder.finish(logits))
}

/// Configuration and graph of a file; every tensor in the file must be used.
///
/// # Errors
/// Those of [`config`] and [`record`]; [`Error::UnusedTensor`] if the file contains tensors that the graph does
/// not read.
pub fn read(file: &File) -> Result<(Config, Graph), Error> {
    read_adapted(&Adapted { file, loras: &[] })
}

/// [`read`] with adapters.
///
/// # Errors
/// Those of [`read`].
pub fn read_adapted(adapted: &Adapted<'_>) -> Result<(Config, Graph), Error> {
    let names = adapted.file.tensors().iter().map(|tensor| tensor.name());
    read_parts(adapted.file.metadata(), adapted, names)
}

/// [`read`] for a file that may not be written yet, from its metadata and its tensors' names.
///
/// # Errors
/// Those of [`read`].
pub fn read_parts<'n>(
    metadata: &Metadata,
    catalog: &dyn Catalog,
    mut names: impl Iterator<Item = &'n str>,
) -> Result<(Config, Graph), Error> {
    let mut config = config(metadata)?;
    if let Some(encoder) = &mut config.encoder {
        encoder.adapt(catalog);
    }
    // ollama's files may list more tokens than the embedding has rows.
    let table = catalog.find("token_embd.weight");
    if let Some([.., rows, _]) = table.as_ref().map(|table| &table.shape[..]) {
        config.vocab = config.vocab.min(*rows as usize).max(1);
    }
    let graph = record(&config, catalog)?;
    let architecture = find(config.architecture)?;
    // An adapter's matrices are recorded with those that they adapt, which may be used for something else than products.
    let used: HashSet<&str> = graph
        .nodes
        .iter()
        .flat_map(|node| node.op.weights())
        .map(|id| graph.weight(id).name.as_str())
        .collect();
    let ignored = |name: &str| architecture.ignored.iter().any(|end| name.ends_with(end));
    // Blocks for multi-token prediction follow the model's layers; only a session that drafts with them reads them.
    let blocks = metadata.opt_usize(&format!("{}.block_count", config.architecture))?;
    let drafting = config.layers.len()..blocks.unwrap_or(0);
    let has_no_use = |name: &str| {
        let Some((number, stem)) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'))
        else {
            return false;
        };
        let number = number.parse::<usize>().unwrap_or(usize::MAX);
        // Checkpoints may hold keys and values for layers that read those of another.
        let shares = config.layers.get(number).is_some_and(|layer| layer.kv_of.is_some());
        let of_keys = stem.starts_with("attn_k") || stem.starts_with("attn_v.");
        drafting.contains(&number) || shares && of_keys
    };
    // What was measured of the inputs of NVFP4 matrices.
    let of_input = |name: &str| {
        let stem = name.strip_suffix(".input_scale");
        stem.is_some_and(|stem| used.contains(format!("{stem}.weight").as_str()))
    };
    // The head of a decoder whose rows are embeddings.
    let is_head = |name: &str| config.encoder.is_some() && OUTPUT.contains(&name);
    let is_beside = |name: &str| BESIDE.iter().any(|start| name.starts_with(start));
    let left_out =
        |name: &str| ignored(name) || has_no_use(name) || of_input(name) || is_beside(name);
    let left_out = |name: &str| left_out(name) || is_head(name);
    let unused = |name: &&str| !used.contains(name) && !left_out(name);
    match names.find(unused) {
        None => Ok((config, graph)),
        Some(name) => {
            Err(Error::UnusedTensor { name: name.to_owned(), architecture: architecture.name })
        }
    }
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::{File, Metadata, NewTensor, Strings, to_bytes};
    use bilayer_quant::Type;

    use super::{Error, Outline, all, config, find, read, record};

    /// A file of zeros with every tensor the first architecture needs, minus `without`, plus `with`.
    fn file(without: &str, with: &[&str]) -> File {
        let with: Vec<_> = with.iter().map(|&name| (name, 8)).collect();
        file_of(&(all()[0].tiny)(), |_| {}, without, &with)
    }

    /// A file of zeros with every tensor that `metadata` need, minus `without`, plus vectors `with` of these lengths, and a change
    /// of the metadata.
    fn file_of(
        metadata: &Metadata,
        change: impl FnOnce(&mut Metadata),
        without: &str,
        with: &[(&str, u64)],
    ) -> File {
        let mut metadata = metadata.clone();
        let outline = Outline::new(Type::F16, &[]);
        record(&config(&metadata).unwrap(), &outline).unwrap();
        let mut tensors = outline.tensors();
        tensors.retain(|(name, _)| name != without);
        let extra = with.iter().map(|(name, len)| NewTensor::zeros(name, Type::F32, &[*len]));
        let needed = tensors.iter().map(|(name, e)| NewTensor::zeros(name, e.ty, &e.shape));
        change(&mut metadata);
        let bytes = to_bytes(&metadata, needed.chain(extra)).unwrap();
        File::from_bytes("test", bytes).unwrap()
    }

    #[test]
    fn a_whole_file_is_read_and_a_harmless_tensor_ignored() {
        let (config, graph) = read(&file("", &["blk.0.attn_rot_embd.weight"])).unwrap();
        assert_eq!(config.layers.len() as u32, graph.layers());
    }

    #[test]
    fn missing_and_unused_tensors_are_named() {
        let error = read(&file("blk.1.ffn_up.weight", &[])).unwrap_err().to_string();
        assert!(error.contains("`blk.1.ffn_up.weight` is missing"), "{error}");
        let error = read(&file("", &["blk.1.attn_q_norm.weight"])).unwrap_err();
        let named = matches!(&error, Error::UnusedTensor { name, .. } if name == "blk.1.attn_q_norm.weight");
        assert!(named, "{error}");
    }

    #[test]
    fn tensors_beside_the_text_model_are_left_out() {
        let beside =
            ["v.blk.0.attn_q.weight", "a.x", "mm.0.bias", "model.vision_tower.y", "mtp.fc.weight"];
        assert!(read(&file("", &beside)).is_ok());
        let error = read(&file("", &["visual.x"])).unwrap_err();
        assert!(matches!(error, Error::UnusedTensor { .. }), "{error}");
    }

    /// llama.cpp's conversions of NVFP4 checkpoints have two tensors of one element beside each matrix.
    #[test]
    fn a_factor_beside_a_matrix_is_on_its_products() {
        let with =
            [("blk.0.attn_q.scale", 1), ("blk.0.attn_q.input_scale", 1), ("token_embd.scale", 1)];
        let (_, graph) = read(&file_of(&(all()[0].tiny)(), |_| {}, "", &with)).unwrap();
        let scaled = graph.nodes.iter().filter(|node| node.label().ends_with("weight_scale"));
        let by = scaled.flat_map(|node| node.op.weights()).map(|id| &graph.weight(id).name);
        let expected = ["token_embd.scale", "blk.0.attn_q.scale", "token_embd.scale"];
        assert_eq!(by.collect::<Vec<_>>(), expected);
        for name in ["blk.0.attn_k_norm.scale", "blk.9.attn_q.input_scale"] {
            let error = read(&file_of(&(all()[0].tiny)(), |_| {}, "", &[(name, 1)])).unwrap_err();
            assert!(matches!(error, Error::UnusedTensor { .. }), "{error}");
        }
        let error = read(&file("", &["blk.0.attn_q.scale"])).unwrap_err();
        assert!(matches!(error, Error::UnusedTensor { .. }), "{error}");
    }

    #[test]
    fn tokens_beyond_the_embedding_are_left_out() {
        let vocab = |tokens: usize| {
            let tokens: Strings = (0..tokens).map(|token| token.to_string()).collect();
            let change = |metadata: &mut Metadata| {
                metadata.set("tokenizer.ggml.tokens", tokens);
            };
            read(&file_of(&(all()[0].tiny)(), change, "", &[])).map(|(config, _)| config.vocab)
        };
        assert_eq!([vocab(129).unwrap(), vocab(128).unwrap()], [128; 2]);
        assert_eq!(vocab(127).unwrap_err().tensor(), Some("token_embd.weight"));
    }

    /// DistilBERT's files have one type of token and no embedding of it.
    #[test]
    fn an_encoder_of_one_type_of_token_needs_no_embedding_of_it() {
        let read = |types: u32| {
            let mut metadata = (find("bert").unwrap().tiny)();
            metadata.set("tokenizer.ggml.token_type_count", types);
            read(&file_of(&metadata, |_| {}, "token_types.weight", &[]))
        };
        let (config, graph) = read(1).unwrap();
        assert_eq!(config.encoder.unwrap().token_types, None);
        assert!(graph.nodes.iter().all(|node| node.label() != "embd_typed"));
        let error = read(2).unwrap_err().to_string();
        assert!(error.contains("`token_types.weight` is missing"), "{error}");
    }

    #[test]
    fn a_decoder_whose_tokens_see_later_ones_is_refused() {
        for architecture in all() {
            let mut metadata = (architecture.tiny)();
            let key = format!("{}.attention.causal", architecture.name);
            metadata.set(&key, false);
            match config(&metadata) {
                Ok(config) => assert!(config.encoder.is_some(), "{}", architecture.name),
                Err(error) => assert!(error.to_string().contains(&key), "{error}"),
            }
        }
        let mut causal = (all()[0].tiny)();
        causal.set(&format!("{}.attention.causal", all()[0].name), true);
        assert!(config(&causal).is_ok());
    }

    #[test]
    fn an_unknown_architecture_is_named_and_the_known_are_listed() {
        let error = find("mamba").unwrap_err().to_string();
        assert!(error.contains("`mamba`"), "{error}");
        for architecture in all() {
            assert!(error.contains(architecture.name), "{error}");
        }
    }
}
