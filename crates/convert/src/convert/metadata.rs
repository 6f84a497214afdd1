//! Metadata shared by all files: name, licence and origin, sizes, vocabulary, templates.

use std::borrow::Cow;

use bilayer_gguf::{Metadata, Strings};
use bilayer_models::Config;
use bilayer_text::Vocabulary;
use serde_json::Value;

use super::tensors::Tensors;
use crate::Error;
use crate::checkpoint::{Card, Checkpoint, Module};
use crate::mix::Mix;

/// Name and origin of the model. Keys: `gguf.md` of ggml.
pub(super) fn general(checkpoint: &Checkpoint, name: Option<&str>) -> Result<Metadata, Error> {
    let card = Card::read(checkpoint)?;
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "");
    metadata.set("general.type", "model");
    let repository = repository(checkpoint);
    let own = repository.as_deref().map(|(_, name)| name.as_str());
    let name = name.map(str::to_owned).or_else(|| card.one("model_name").map(str::to_owned));
    metadata.set("general.name", name.unwrap_or_else(|| title(own.unwrap_or(&folder(checkpoint)))));
    if let Some((organization, name)) = repository.as_deref() {
        metadata.set("general.organization", organization.as_str());
        let url = format!("https://huggingface.co/{organization}/{name}");
        metadata.set("general.source.url", url);
    }
    let keys = [
        ("license", "license"),
        ("license.name", "license_name"),
        ("license.link", "license_link"),
    ];
    for (key, field) in keys {
        if let Some(value) = card.one(field) {
            metadata.set(&format!("general.{key}"), value);
        }
    }
    let bases = card.all("base_model");
    if !bases.is_empty() {
        metadata.set("general.base_model.count", bases.len() as u32);
    }
    for (i, base) in bases.iter().enumerate() {
        let key = |name: &str| format!("general.base_model.{i}.{name}");
        match base.split_once('/') {
            Some((organization, name)) => {
                metadata.set(&key("name"), title(name));
                metadata.set(&key("organization"), organization);
                metadata.set(&key("repo_url"), format!("https://huggingface.co/{base}"));
            }
            None => metadata.set(&key("name"), title(base)),
        }
    }
    let tags = card.all("tags").iter().chain(card.all("pipeline_tag"));
    let tags: Strings = tags.map(String::as_str).collect();
    let languages: Strings = card.all("language").iter().map(String::as_str).collect();
    for (key, list) in [("tags", tags), ("languages", languages)] {
        if !list.is_empty() {
            metadata.set(&format!("general.{key}"), list);
        }
    }
    Ok(metadata)
}

/// The last component of the folder's absolute path.
fn folder(checkpoint: &Checkpoint) -> String {
    let folder = checkpoint.folder();
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Organization and name, if the folder is in Hugging Face's cache:
/// `models--ORGANIZATION--NAME/snapshots/COMMIT`.
fn repository(checkpoint: &Checkpoint) -> Option<Box<(String, String)>> {
    let folder = std::path::absolute(checkpoint.folder()).ok()?;
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let name = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    let (organization, name) = name.split_once("--")?;
    Some(Box::new((organization.to_owned(), name.to_owned())))
}

/// A readable name: words separated by spaces and capitalized.
fn title(name: &str) -> String {
    let words = name.split(['-', '_', ' ']).filter(|word| !word.is_empty());
    let capital = |word: &str| {
        let mut characters = word.chars();
        let first = characters.next().into_iter().flat_map(char::to_uppercase);
        first.chain(characters).collect::<String>()
    };
    words.map(capital).collect::<Vec<_>>().join(" ")
}

/// The publisher's sampling settings.
pub(super) fn sampling(generation: &Value, metadata: &mut Metadata) {
    if let Some(k) = generation["top_k"].as_u64().and_then(|k| i32::try_from(k).ok()) {
        metadata.set("general.sampling.top_k", k);
    }
    let numbers = [
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("temp", "temperature"),
        ("penalty_repeat", "repetition_penalty"),
    ];
    for (key, field) in numbers {
        if let Some(number) = generation[field].as_f64() {
            metadata.set(&format!("general.sampling.{key}"), number as f32);
        }
    }
}

/// `tokenizer.ggml.*`.
pub(super) fn vocabulary(vocabulary: Vocabulary<'_>, metadata: &mut Metadata) {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    metadata.set(&key("model"), vocabulary.model.as_str());
    if let Some(pre) = &vocabulary.pre {
        metadata.set(&key("pre"), pre.as_str());
    }
    let strings = |list: &[Cow<'_, str>]| list.iter().collect::<Strings>();
    metadata.set(&key("tokens"), strings(&vocabulary.tokens));
    if !vocabulary.scores.is_empty() {
        metadata.set(&key("scores"), vocabulary.scores);
    }
    metadata.set(&key("token_type"), vocabulary.types);
    if !vocabulary.merges.is_empty() {
        metadata.set(&key("merges"), strings(&vocabulary.merges));
    }
    if !vocabulary.charsmap.is_empty() {
        metadata.set(&key("precompiled_charsmap"), vocabulary.charsmap.into_owned());
    }
    let ids = [
        ("bos_token_id", vocabulary.bos),
        ("eos_token_id", vocabulary.eos),
        ("eot_token_id", vocabulary.eot),
        ("eom_token_id", vocabulary.eom),
        ("unknown_token_id", vocabulary.unk),
        ("seperator_token_id", vocabulary.sep),
        ("padding_token_id", vocabulary.pad),
        ("cls_token_id", vocabulary.cls),
        ("mask_token_id", vocabulary.mask),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            metadata.set(&key(name), id);
        }
    }
    let flags = [
        ("add_bos_token", vocabulary.add_bos),
        ("add_eos_token", vocabulary.add_eos),
        ("add_sep_token", vocabulary.add_sep),
        ("add_space_prefix", vocabulary.add_space_prefix),
        ("remove_extra_whitespaces", vocabulary.remove_extra_whitespaces),
        ("normalizer.lowercase", vocabulary.lowercase),
        ("normalizer.strip_accents", vocabulary.strip_accents),
    ];
    for (name, flag) in flags {
        if let Some(flag) = flag {
            metadata.set(&key(name), flag);
        }
    }
}

/// `tokenizer.chat_template`, and named templates.
pub(super) fn templates(templates: Vec<(Option<String>, String)>, metadata: &mut Metadata) {
    const KEY: &str = "tokenizer.chat_template";
    let names: Strings = templates.iter().filter_map(|(name, _)| name.as_deref()).collect();
    if !names.is_empty() {
        metadata.set("tokenizer.chat_templates", names);
    }
    for (name, source) in templates {
        let key = name.map_or(KEY.to_owned(), |name| format!("{KEY}.{name}"));
        metadata.set(&key, source);
    }
}

/// Pooling, scaling, prompts and longest text, if the folder is a Sentence Transformers model.
pub(super) fn sentence_transformer(
    checkpoint: &Checkpoint,
    architecture: &str,
    metadata: &mut Metadata,
) -> Result<(), Error> {
    let modules = checkpoint.json("modules.json")?.unwrap_or_default();
    let is_pooling =
        |module: &&Value| module["type"].as_str().is_some_and(|kind| kind.ends_with(".Pooling"));
    let Some(module) = modules.as_array().and_then(|list| list.iter().find(is_pooling)) else {
        return Ok(());
    };
    let file = format!("{}/config.json", module["path"].as_str().unwrap_or_default());
    let config = checkpoint.json(&file)?.ok_or_else(|| checkpoint.wrong(&file, "is missing"))?;
    // llama.cpp's numbers.
    let modes = [
        ("pooling_mode_mean_tokens", 1u32),
        ("pooling_mode_cls_token", 2),
        ("pooling_mode_lasttoken", 3),
    ];
    let fields = config.as_object().into_iter().flatten();
    let is_on =
        |(name, value): &(&String, &Value)| name.starts_with("pooling_mode_") && **value == true;
    let asked: Vec<&String> = fields.filter(is_on).map(|(name, _)| name).collect();
    match *asked {
        [name] if let Some((_, number)) = modes.iter().find(|(mode, _)| mode == name) => {
            metadata.set(&format!("{architecture}.pooling_type"), *number);
        }
        [_, _, ..] => {
            return Err(checkpoint
                .wrong(&file, "joins vectors of several poolings, which is not supported"));
        }
        _ => return Err(checkpoint.wrong(&file, "asks for a pooling that is not supported")),
    }
    let is_scaling =
        |module: &Value| module["type"].as_str().is_some_and(|kind| kind.ends_with(".Normalize"));
    let scales = modules.as_array().is_some_and(|list| list.iter().any(is_scaling));
    metadata.set(&format!("{architecture}.normalize_embeddings"), scales);
    for Module { folder, stem } in checkpoint.dense_modules()? {
        let file = format!("{folder}/config.json");
        let config =
            checkpoint.json(&file)?.ok_or_else(|| checkpoint.wrong(&file, "is missing"))?;
        let is_identity =
            config["activation_function"].as_str().is_none_or(|name| name.ends_with(".Identity"));
        if !is_identity {
            return Err(
                checkpoint.wrong(&file, "has an `activation_function`, which is not supported")
            );
        }
        for (field, key) in [("in_features", "feat_in"), ("out_features", "feat_out")] {
            let size = config[field].as_u64().and_then(|size| u32::try_from(size).ok());
            let reason = format!("`{field}` is no number of elements");
            let size = size.ok_or_else(|| checkpoint.wrong(&file, &reason))?;
            metadata.set(&format!("{architecture}.{stem}_{key}"), size);
        }
    }
    let texts = checkpoint.json("config_sentence_transformers.json")?.unwrap_or_default();
    let prompts = texts["prompts"].as_object().into_iter().flatten();
    let prompts = prompts.filter_map(|(name, text)| Some((name.as_str(), text.as_str()?)));
    let (names, prompts): (Vec<&str>, Vec<&str>) = prompts.unzip();
    if !names.is_empty() {
        let list = |texts: Vec<&str>| texts.into_iter().collect::<Strings>();
        metadata.set(&format!("{architecture}.prompt.names"), list(names));
        metadata.set(&format!("{architecture}.prompt.texts"), list(prompts));
    }
    if let Some(name) = texts["default_prompt_name"].as_str() {
        metadata.set(&format!("{architecture}.prompt.default"), name);
    }
    let limits = checkpoint.json("sentence_bert_config.json")?.unwrap_or_default();
    let longest = limits["max_seq_length"].as_u64().and_then(|length| u32::try_from(length).ok());
    if let Some(longest) = longest.filter(|&length| length > 0) {
        metadata.set(&format!("{architecture}.max_seq_length"), longest);
    }
    Ok(())
}

/// Counts: weights, and the type of most weights.
pub(super) fn sizes(tensors: &Tensors, config: &Config, mix: &Mix, metadata: &mut Metadata) {
    let of = |belongs: fn(&str) -> bool| -> u64 {
        let tensors = tensors.iter().filter(|tensor| belongs(&tensor.name));
        tensors.map(|tensor| tensor.shape.iter().product::<u64>()).sum()
    };
    let is_expert: fn(&str) -> bool = |name| name.contains("_exps.");
    let experts = config.experts.as_ref().map_or(0, |experts| experts.count as u64);
    let shared = of(|name| !name.contains("_exps."));
    let label = match of(is_expert).checked_div(experts) {
        None => rounded(shared),
        // For a mixture of experts the label gives the number of experts and the size with one of them.
        Some(each) => format!("{experts}x{}", rounded(shared + each)),
    };
    metadata.set("general.size_label", label);
    if let Some(file_type) = mix.file_type {
        metadata.set("general.file_type", file_type);
    }
    metadata.set("general.quantization_version", 2u32);
}

/// A number of weights rounded to two or more digits, as by llama.cpp's converter: `260K`, `1.1B`.
fn rounded(weights: u64) -> String {
    let weights = weights as f64;
    let (scaled, suffix) = match weights {
        w if w > 1e12 => (w * 1e-12, "T"),
        w if w > 1e9 => (w * 1e-9, "B"),
        w if w > 1e6 => (w * 1e-6, "M"),
        w => (w * 1e-3, "K"),
    };
    let digits = match scaled.round() {
        whole if whole < 1.0 => 2,
        whole if whole < 10.0 => 1,
        _ => 0,
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::{rounded, title};

    #[test]
    fn labels_have_two_digits() {
        let cases = [
            (259_264, "259K"),
            (1_100_048_384, "1.1B"),
            (7_241_732_096, "7.2B"),
            (22_713_216, "23M"),
            (70_553_706_496, "71B"),
            (400, "0.40K"),
        ];
        for (weights, expected) in cases {
            assert_eq!(rounded(weights), expected);
        }
    }

    #[test]
    fn names_are_words_with_capitals() {
        assert_eq!(title("all-MiniLM_l6"), "All MiniLM L6");
        assert_eq!(title("hf"), "Hf");
    }
}
