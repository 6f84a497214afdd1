//! The promise of `convert`: the same file as llama.cpp's converter makes from a checkpoint folder, in bounded memory, or
//! one line that names the fault and its place, and no partial file.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![allow(clippy::print_stdout, reason = "skipped data is shown")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use bilayer_convert::convert::Convert;
use bilayer_engine::Model;
use bilayer_engine::encode::{Encoder, Excess, Input, Norm, Pooling};
use bilayer_engine::placement::Placing;
use bilayer_engine::session::Settings;
use bilayer_gguf::{File, Metadata};
use bilayer_quant::Type;
use bilayer_text::Encode;
use serde_json::{Value, json};

mod support {
    pub mod data;
    pub mod disk;
    pub mod folder;
    pub mod model;
    pub mod program;
}

use support::data::shared;
use support::disk::{filled_meanwhile, keeps_the_old};
use support::folder::Folder;
use support::model::Random;
use support::program::{Place, ran};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train_demo/checkpoint");

fn converted(folder: &Path, outtype: Option<Type>) -> File {
    let plan = Convert { outtype, ..Convert::default() }.plan(folder).unwrap();
    File::from_bytes("converted", plan.to_bytes().unwrap()).unwrap()
}

fn values(file: &File, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.layout().elements() as usize];
    tensor.layout().ty().dequantize(&file.bytes(tensor), &mut values).unwrap();
    values
}

/// The keys in which two files differ, with both values, shortened.
fn differences(found: &Metadata, expected: &Metadata) -> BTreeMap<String, (String, String)> {
    let keys = found.iter().chain(expected.iter()).map(|(key, _)| key);
    let shown = |metadata: &Metadata, key: &str| {
        let value = metadata.get(key).map(|value| format!("{value:?}"));
        value.unwrap_or_default().chars().take(80).collect::<String>()
    };
    keys.filter(|key| found.get(key) != expected.get(key))
        .map(|key| (key.to_owned(), (shown(found, key), shown(expected, key))))
        .collect()
}

/// Keys of our file of stories260k that llama.cpp's converter does not read from `tokenizer.model`: the unknown token and
/// whether runs of spaces become one.
const MORE_THAN_LLAMA_CPP: &[&str] =
    &["tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.unknown_token_id"];

#[test]
fn stories_become_the_files_of_llama_cpps_converter() {
    let Some(folder) = shared("stories260k") else { return };
    for (ty, name) in [(Type::F32, "stories260k-f32.gguf"), (Type::F16, "stories260k-f16.gguf")] {
        let found = converted(&folder.join("hf"), Some(ty));
        let expected = File::open(&folder.join(name)).unwrap();
        let differences = differences(found.metadata(), expected.metadata());
        let keys: Vec<&str> = differences.keys().map(String::as_str).collect();
        assert_eq!(keys, MORE_THAN_LLAMA_CPP, "{name}: {differences:?}");
        assert_eq!(found.tensors().len(), expected.tensors().len());
        for tensor in expected.tensors() {
            let own = found.tensor(tensor.name()).unwrap();
            assert_eq!(own.layout().shape(), tensor.layout().shape(), "{}", tensor.name());
            assert_eq!(own.layout().ty(), tensor.layout().ty(), "{}", tensor.name());
            assert!(found.bytes(own) == expected.bytes(tensor), "{name}: {}", tensor.name());
        }
    }
}

/// The default type loses nothing, and rows that are not a multiple of the block become F16.
#[test]
fn types_follow_the_checkpoint_or_the_flag() {
    let folder = Folder::tiny();
    for (wish, matrix, narrow) in [
        (None, Type::BF16, Type::BF16),
        (Some(Type::F32), Type::F32, Type::F32),
        (Some(Type::Q8_0), Type::Q8_0, Type::F16),
    ] {
        let file = converted(folder.path(), wish);
        let ty = |name: &str| file.tensor(name).unwrap().layout().ty();
        assert_eq!(ty("blk.0.ffn_up.weight"), matrix);
        // Rows of 40.
        assert_eq!(ty("blk.0.ffn_down.weight"), narrow);
        assert_eq!(ty("blk.1.attn_norm.weight"), Type::F32);
        let exact = converted(folder.path(), Some(Type::F32));
        if wish.is_none() {
            for tensor in exact.tensors() {
                assert_eq!(values(&file, tensor.name()), values(&exact, tensor.name()));
            }
        }
    }
}

/// The demo's checkpoint gives the demo: the same vocabulary, and weights within the error of four bits.
#[test]
fn the_demos_checkpoint_becomes_the_demo() {
    let found = converted(Path::new(DEMO), Some(Type::F32));
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/assets/demo.gguf");
    let expected = File::open(Path::new(demo)).unwrap();
    let differences = differences(found.metadata(), expected.metadata());
    let differing: Vec<&str> = differences.keys().map(String::as_str).collect();
    let only_here = [
        "general.file_type",
        "general.license",
        "general.name",
        "general.size_label",
        "general.type",
        "llama.attention.key_length",
        "llama.attention.value_length",
    ];
    assert_eq!(differing, only_here, "{differences:?}");
    assert_eq!(found.tensors().len(), expected.tensors().len());
    for tensor in expected.tensors() {
        let (found, expected) = (values(&found, tensor.name()), values(&expected, tensor.name()));
        let square = |x: f32| f64::from(x) * f64::from(x);
        let off: f64 = found.iter().zip(&expected).map(|(f, e)| square(f - e)).sum();
        let whole: f64 = expected.iter().map(|&e| square(e)).sum();
        let error = (off / whole).sqrt();
        // 0.073 is Q4_K's error on these weights; permuted rows would be off by 1.4.
        assert!(error < 0.1, "{}: {error}", tensor.name());
    }
}

/// Shards or one file, old or new forms of settings, merges as lists or strings: all give the same file.
#[test]
fn the_same_model_in_another_form_is_the_same_file() {
    let bytes = |folder: &Folder| {
        let convert = Convert { name: Some("x".into()), ..Convert::default() };
        convert.plan(folder.path()).unwrap().to_bytes().unwrap()
    };
    let usual = bytes(&Folder::tiny());
    let mut folder = Folder::tiny();
    folder.split(3);
    assert!(bytes(&folder) == usual, "shards");
    let folder = Folder::tiny();
    folder.change("config.json", |config| {
        config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 5e5});
        config.as_object_mut().unwrap().remove("rope_theta");
    });
    assert!(bytes(&folder) == usual, "rope_parameters");
    folder.change("tokenizer.json", |json| json["model"]["merges"] = json!(["a b"]));
    assert!(bytes(&folder) == usual, "merges as strings");
}

/// Checkpoints of encoders for FlashAttention have other names, and queries, keys and values in one tensor.
#[test]
fn xlm_roberta_for_flash_attention_is_the_same_file() {
    let config = json!({
        "architectures": ["XLMRobertaForSequenceClassification"], "hidden_act": "gelu", "hidden_size": 32,
        "intermediate_size": 40, "max_position_embeddings": 66, "num_attention_heads": 4,
        "num_hidden_layers": 2, "layer_norm_eps": 1e-5, "vocab_size": 8, "type_vocab_size": 1,
        "pad_token_id": 1, "id2label": {"0": "LABEL_0"},
    });
    let bytes = |folder: &Folder| {
        let convert = Convert { name: Some("x".into()), no_vocab: true, ..Convert::default() };
        convert.plan(folder.path()).unwrap().to_bytes().unwrap()
    };
    let mut folder = Folder::of(&config, &[]);
    let usual = bytes(&folder);
    let says = |bytes: &[u8]| bytes.windows(22).any(|part| part == b"classifier.multi_label");
    folder.change("config.json", |json| json["problem_type"] = json!("multi_label_classification"));
    assert!(says(&bytes(&folder)) && !says(&usual));
    folder.change("config.json", |json| json["problem_type"] = Value::Null);
    for end in ["weight", "bias"] {
        let mut renamed = |from: &[&str], to: &str| {
            let from: Vec<String> = from.iter().map(|stem| format!("bert.{stem}.{end}")).collect();
            folder.merge(&from, &format!("roberta.{to}.{end}"));
        };
        renamed(&["embeddings.LayerNorm"], "emb_ln");
        for layer in 0..2 {
            let of = |stem: &str| format!("encoder.layer.{layer}.{stem}");
            let to = |stem: &str| format!("encoder.layers.{layer}.{stem}");
            let qkv = ["query", "key", "value"].map(|part| of(&format!("attention.self.{part}")));
            renamed(&qkv.each_ref().map(String::as_str), &to("mixer.Wqkv"));
            for (stem, other) in [
                ("attention.output.dense", "mixer.out_proj"),
                ("attention.output.LayerNorm", "norm1"),
                ("intermediate.dense", "mlp.fc1"),
                ("output.dense", "mlp.fc2"),
                ("output.LayerNorm", "norm2"),
            ] {
                renamed(&[&of(stem)], &to(other));
            }
        }
    }
    assert!(bytes(&folder) == usual);
}

/// Jina's rerankers may name the class of the model without a head; the head is kept.
#[test]
fn a_head_is_kept_whatever_the_class() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/jina-bert-reranker");
    let folder = Folder::copy(Path::new(path));
    folder.change("config.json", |config| config["architectures"] = json!(["JinaBertModel"]));
    let names = |folder: &Path| -> Vec<String> {
        let plan = Convert { no_vocab: true, ..Convert::default() }.plan(folder).unwrap();
        plan.tensors().map(|tensor| tensor.name.to_owned()).collect()
    };
    let found = names(folder.path());
    assert_eq!(found, names(Path::new(path)));
    assert!(["cls.weight", "cls.output.weight"].iter().all(|head| found.iter().any(|n| n == head)));
}

/// Of the card of Qwen3's rerankers, and of a module of Sentence Transformers, a decoder becomes a file that llama.cpp reads as
/// a reranker: its head is the rows of `yes` and `no`, and a template has the places of both texts.
#[test]
fn rerankers_made_of_decoders_are_known_by_their_card_or_module() {
    const RERANK: &str = "tokenizer.chat_template.rerank";
    let folder = Folder::tiny();
    folder.change("tokenizer.json", |json| {
        json["model"]["vocab"]["no"] = json!(6);
        json["model"]["vocab"]["yes"] = json!(7);
    });
    let head = values(&converted(folder.path(), None), "output.weight");
    let (no, yes) = (&head[6 * 32..7 * 32], &head[7 * 32..]);
    folder.write("README.md", "---\nlicense: mit\n---\n\n# Qwen3-Reranker-0.6B\n\nText\n");
    let card = converted(folder.path(), None);
    let template = "<{{ bos_token }}>{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ end }}\
        {% if add_generation_prompt %}:{% endif %}";
    folder.score_by(7, Some(6), template);
    folder.write(
        "config_sentence_transformers.json",
        r#"{"prompts": {"web": "Find it."}, "default_prompt_name": "web"}"#,
    );
    let kwargs = json!({"chat_template": {"add_generation_prompt": true, "end": "!"}});
    folder.change("sentence_bert_config.json", |json| json["processing_kwargs"] = kwargs);
    let module = converted(folder.path(), None);
    for file in [&card, &module] {
        let metadata = file.metadata();
        assert!(file.tensor("output.weight").is_none());
        assert_eq!(values(file, "cls.output.weight"), [yes, no].concat());
        assert_eq!(metadata.usize("llama.pooling_type").unwrap(), 4);
        let labels = metadata.opt_strings("llama.classifier.output_labels").unwrap().unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), ["yes", "no"]);
    }
    let written = card.metadata().str(RERANK).unwrap();
    assert!(written.contains("<Query>: {query}\n<Document>: {document}<|im_end|>"), "{written}");
    let written = module.metadata().str(RERANK).unwrap();
    assert_eq!(written, "<<|end|>>[system]Find it.[query]{query}[document]{document}!:");
    // One token alone: its logit is the score.
    folder.score_by(7, None, template);
    let one = converted(folder.path(), None);
    assert_eq!(values(&one, "cls.output.weight"), yes);
    assert!(one.metadata().get("llama.classifier.output_labels").is_none());
    let refused =
        |folder: &Folder| Convert::default().plan(folder.path()).err().unwrap().to_string();
    for (yes, template, part) in [
        (8, template, "no rows of the tokens [8]"),
        (7, "{{ messages[0].content }}", "has no place for a message of role `query`"),
        (7, "{{ raise_exception('odd') }}", "cannot be applied to a query and a document: "),
    ] {
        folder.score_by(yes, None, template);
        let error = refused(&folder);
        assert!(error.contains(part), "{error}");
    }
    folder.remove("chat_template.jinja");
    assert!(refused(&folder).contains("modules.json: "), "{}", refused(&folder));
    folder.write("1_LogitScore/config.json", "{}");
    assert!(refused(&folder).contains("`true_token_id` is no token id"), "{}", refused(&folder));
    let folder = Folder::tiny();
    folder.write("README.md", "# Qwen3-Reranker-0.6B");
    assert!(
        refused(&folder).contains("README.md: is the card of a reranker"),
        "{}",
        refused(&folder)
    );
}

/// Between plan and writing, and while the weights are read: an error with the file's name, and no file.
#[test]
fn a_checkpoint_that_changes_while_it_is_read_gives_no_file() {
    let len = |path: &Path| std::fs::metadata(path).unwrap().len() as usize;
    for (bytes, part) in
        [(None, "it changed"), (Some(600), "it was truncated"), (Some(1 << 20), "it changed")]
    {
        let (folder, place) = (Folder::tiny(), Place::new());
        let path = folder.path().join("model.safetensors");
        let plan = Convert::default().plan(folder.path()).unwrap();
        // A clock that is coarser than the test has the same time for both.
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        std::fs::write(&path, vec![1; bytes.unwrap_or(len(&path))]).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let error =
            plan.write(&place.path().join("out.gguf"), &mut |_, _| ControlFlow::Continue(()));
        let error = error.unwrap_err();
        assert_eq!(error.exit_code() as u8, 74, "{error}");
        let error = error.to_string();
        assert!(error.contains("model.safetensors: ") && error.contains(part), "{error}");
        assert!(place.names().is_empty(), "{:?}", place.names());
    }
}

/// A template that puts `<|end|>` before a text.
const TEMPLATE: &str = r#"{"type": "TemplateProcessing", "single": [
    {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}"#;

/// A template that puts `<|turn|>` behind a text, as embedding models made of chat models do.
const BEHIND: &str = r#"{"type": "TemplateProcessing", "single": [
    {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|turn|>", "type_id": 0}}]}"#;

/// A file, a field of it and what is put there, and a key with what it becomes; JSON.
const TOLD: &[[&str; 5]] = &[
    ["config.json", "", "null", "tokenizer.ggml.pre", r#""gpt-2""#],
    ["config.json", "", "null", "tokenizer.ggml.eos_token_id", "4"],
    ["config.json", "", "null", "tokenizer.ggml.add_bos_token", "false"],
    ["tokenizer.json", "post_processor", TEMPLATE, "tokenizer.ggml.add_bos_token", "true"],
    ["tokenizer.json", "post_processor", TEMPLATE, "tokenizer.ggml.add_eos_token", "false"],
    ["tokenizer.json", "post_processor", BEHIND, "tokenizer.ggml.eos_token_id", "5"],
    ["config.json", "is_causal", "null", "llama.attention.causal", "null"],
    ["tokenizer.json", "post_processor", BEHIND, "tokenizer.ggml.eot_token_id", "4"],
    ["tokenizer.json", "post_processor", BEHIND, "tokenizer.ggml.add_eos_token", "true"],
    ["tokenizer.json", "post_processor", BEHIND, "tokenizer.ggml.add_bos_token", "false"],
    ["tokenizer_config.json", "add_bos_token", "true", "tokenizer.ggml.add_bos_token", "true"],
    [
        "tokenizer_config.json",
        "pad_token",
        r#"{"content": "ab"}"#,
        "tokenizer.ggml.padding_token_id",
        "2",
    ],
    ["generation_config.json", "eos_token_id", "[4, 5]", "tokenizer.ggml.eot_token_id", "5"],
    ["generation_config.json", "eos_token_id", "[4, 5]", "tokenizer.ggml.eom_token_id", "null"],
    ["generation_config.json", "eos_token_id", "[4, 5, 6]", "tokenizer.ggml.eom_token_id", "6"],
    ["generation_config.json", "top_k", "20", "general.sampling.top_k", "20"],
    ["generation_config.json", "temperature", "0.5", "general.sampling.temp", "0.5"],
    ["tokenizer_config.json", "chat_template", r#""x""#, "tokenizer.chat_template", r#""x""#],
    [
        "tokenizer_config.json",
        "chat_template",
        r#"[{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]"#,
        "tokenizer.chat_template",
        r#""d""#,
    ],
    [
        "tokenizer_config.json",
        "chat_template",
        r#"[{"name": "tools", "template": "t"}]"#,
        "tokenizer.chat_template.tools",
        r#""t""#,
    ],
];

/// Keys derived from the tokenizer and generation files.
#[test]
fn tokenizer_files_set_the_tokens_around_a_text() {
    for [file, field, value, key, expected] in TOLD {
        let value: Value = serde_json::from_str(value).unwrap();
        let expected: Value = serde_json::from_str(expected).unwrap();
        let folder = Folder::tiny();
        folder.change(file, |json| {
            if !field.is_empty() {
                json[*field] = value.clone();
            }
        });
        let plan = Convert::default().plan(folder.path()).unwrap();
        let found = plan.metadata().get(key).map(|value| match value {
            bilayer_gguf::Value::Bool(flag) => json!(flag),
            bilayer_gguf::Value::U32(number) => json!(number),
            bilayer_gguf::Value::I32(number) => json!(number),
            bilayer_gguf::Value::F32(number) => json!(number),
            bilayer_gguf::Value::String(text) => json!(text),
            other => panic!("{key}: {other:?}"),
        });
        assert_eq!(found.unwrap_or_default(), expected, "{file}: {field} = {value}: {key}");
    }
}

/// Of a decoder made into an embedding model, the way of pooling and scaling comes from Sentence Transformers' files.
#[test]
fn decoders_of_sentence_transformers_embed() {
    let folder = Folder::tiny();
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    let modules = [module("Transformer", ""), module("Pooling", "pool"), module("Normalize", "n")];
    folder.write("modules.json", &json!(modules).to_string());
    std::fs::create_dir(folder.path().join("pool")).unwrap();
    let pooling = json!({"pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true});
    folder.write("pool/config.json", &pooling.to_string());
    folder.change("tokenizer.json", |json| {
        json["post_processor"] = serde_json::from_str(BEHIND).unwrap();
    });
    let prompts =
        json!({"prompts": {"query": "b ", "document": ""}, "default_prompt_name": "query"});
    folder.write("config_sentence_transformers.json", &prompts.to_string());
    // The code of some lets tokens see later ones, and has the class of a model without a head.
    folder.change("config.json", |json| json["architectures"] = json!(["LlamaModel"]));
    let both = Folder::tiny();
    for file in ["modules.json", "pool/config.json"] {
        let _ = std::fs::create_dir(both.path().join("pool"));
        std::fs::copy(folder.path().join(file), both.path().join(file)).unwrap();
    }
    both.change("config.json", |json| json["is_causal"] = json!(false));
    let seen = Convert::default().plan(both.path()).unwrap().to_bytes().unwrap();
    let seen = Model::from_bytes("both", seen).unwrap();
    assert!(!seen.config().encoder.as_ref().unwrap().is_causal);
    let bare = Folder::tiny();
    bare.change("config.json", |json| json["architectures"] = json!(["LlamaModel"]));
    let error = Convert::default().plan(bare.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("LlamaModel has no head"), "{error}");
    let plan = Convert::default().plan(folder.path()).unwrap();
    let model = Model::from_bytes("tiny", plan.to_bytes().unwrap()).unwrap();
    let kept = model.config().encoder.as_ref().unwrap();
    assert_eq!((kept.pooling, kept.is_causal, kept.scores), (Pooling::Last, true, false));
    let settings = Settings { placing: Placing::cpu(), ..Settings::default() };
    let mut encoder = Encoder::new(&model, settings).unwrap();
    assert_eq!(encoder.norm(), Norm::P(2));
    let mut tokens = |name, text| {
        encoder.set_prompt(name)?;
        encoder.tokens(Input { text, pair: None }, Excess::Refuse)
    };
    let bare = tokens(Some("document"), "b ab a").unwrap();
    assert_eq!(bare.last(), Some(&5));
    assert_eq!(tokens(None, "ab a").unwrap(), bare);
    assert_eq!(tokens(Some("query"), "ab a").unwrap(), bare);
    assert!(tokens(Some("document"), "ab a").unwrap().len() < bare.len());
    let error = tokens(Some("passage"), "a").unwrap_err().to_string();
    assert!(error.contains("passage") && error.contains("query, document"), "{error}");
}

#[test]
fn added_tokens_and_rows_without_a_token_have_their_types() {
    let folder = Folder::tiny();
    folder.change("tokenizer_config.json", |config| {
        config["added_tokens_decoder"] = json!({"6": {"content": "hello there", "special": false}});
    });
    let plan = Convert::default().plan(folder.path()).unwrap();
    let tokens: Vec<&str> =
        plan.metadata().strings("tokenizer.ggml.tokens").unwrap().iter().collect();
    assert_eq!(tokens, ["a", "b", "ab", "Ġ", "<|end|>", "<|turn|>", "hello there", "[PAD7]"]);
    let types = plan.metadata().opt_i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!(*types, [1, 1, 1, 1, 3, 3, 4, 5]);
}

#[test]
fn a_template_of_its_own_wins_and_the_card_gives_licence_and_origin() {
    let folder = Folder::tiny();
    folder.change("tokenizer_config.json", |config| config["chat_template"] = json!("old"));
    folder.write("chat_template.jinja", "{{ new }}");
    folder.write(
        "README.md",
        "---\nlicense: mit\nbase_model: maker/big-model\nlanguage: [en]\n---\n",
    );
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    folder.write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
    folder.write("additional_chat_templates/rag.jinja", "{{ documents }}");
    folder.write("additional_chat_templates/README.md", "no template");
    let plan = Convert { name: Some("My Model".into()), ..Convert::default() };
    let plan = plan.plan(folder.path()).unwrap();
    let text = |key: &str| plan.metadata().str(key).unwrap().to_owned();
    assert_eq!(text("tokenizer.chat_template"), "{{ new }}");
    assert_eq!(text("tokenizer.chat_template.tool_use"), "{{ tools }}");
    let names = plan.metadata().strings("tokenizer.chat_templates").unwrap();
    assert_eq!(names.iter().collect::<Vec<_>>(), ["rag", "tool_use"]);
    assert_eq!(text("general.name"), "My Model");
    assert_eq!(text("general.license"), "mit");
    assert_eq!(text("general.base_model.0.name"), "Big Model");
    assert_eq!(text("general.base_model.0.organization"), "maker");
}

/// A SentencePiece model and the BPE derived from it, as in `tokenizer.json`, give the same tokens.
#[test]
fn bpe_derived_from_sentencepiece_gives_its_tokens() {
    let Some(stories) = shared("stories260k/hf") else { return };
    let pieces = converted(&stories, None);
    let (tokens, scores) = (
        pieces.metadata().strings("tokenizer.ggml.tokens").unwrap(),
        pieces.metadata().opt_f32s("tokenizer.ggml.scores").unwrap().unwrap(),
    );
    let ids: BTreeMap<&str, usize> = tokens.iter().zip(0..).collect();
    let mut merges = Vec::new();
    for (token, &id) in &ids {
        for (at, _) in token.char_indices().skip(1).filter(|_| id > 258) {
            let (left, right) = token.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((-scores[id], left, right));
            }
        }
    }
    merges.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let merges: Vec<_> = merges.iter().map(|(_, left, right)| [left, right]).collect();
    let folder = Folder::copy(&stories);
    std::fs::remove_file(folder.path().join("tokenizer.model")).unwrap();
    let json = json!({
        "added_tokens": [{"id": 1, "content": "<s>", "special": true}, {"id": 2, "content": "</s>", "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "vocab": ids, "merges": merges},
    });
    folder.write("tokenizer.json", &json.to_string());
    let place = Place::new();
    let tokenizer = |folder: &Path, name: &str| {
        let out = place.path().join(name);
        let plan = Convert::default().plan(folder).unwrap();
        plan.write(&out, &mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        bilayer_engine::tokenizer(&out).unwrap()
    };
    let pieces = tokenizer(&stories, "pieces.gguf");
    let pairs = tokenizer(folder.path(), "pairs.gguf");
    for text in
        ["Once upon a time, there was a little girl.", "ünïcode — 1234", "She said: \"Hello!\"\n"]
    {
        let options = Encode { add_special: true, parse_special: false };
        assert_eq!(
            pieces.encode(text, options).unwrap(),
            pairs.encode(text, options).unwrap(),
            "{text}"
        );
    }
}

#[derive(serde::Deserialize)]
struct UnigramRecord {
    cases: Vec<UnigramCase>,
    #[serde(default)]
    pairs: Vec<UnigramCase>,
}

#[derive(serde::Deserialize)]
struct UnigramCase {
    text: String,
    pair: Option<String>,
    /// With the tokens around a text.
    ids: Vec<u32>,
}

/// The folder with this tokenizer, and what the makers' libraries make of texts.
fn unigram(name: &str) -> (std::path::PathBuf, UnigramRecord) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name);
    let record = std::fs::read(folder.join("reference.json")).unwrap();
    (folder, serde_json::from_slice(&record).unwrap())
}

/// Asserts that texts and pairs have the recorded ids, and that tokens have their places.
fn assert_unigram(file: &File, record: &UnigramRecord) {
    let vocabulary = bilayer_engine::vocabulary(file.metadata()).unwrap();
    let tokenizer = bilayer_text::Tokenizer::new(vocabulary).unwrap();
    for UnigramCase { text, pair, ids } in record.cases.iter().chain(&record.pairs) {
        let input = bilayer_engine::encode::Input { text, pair: pair.as_deref() };
        let found = bilayer_engine::encode::pair::tokens(&tokenizer, None, input).unwrap();
        assert_eq!(found, *ids, "{text:?}, {pair:?}");
        let plain = tokenizer.encode(text, Encode::default()).unwrap();
        let spans = tokenizer.spans(text).unwrap();
        assert!(spans.iter().map(|span| span.id).eq(plain), "{text:?}");
        if text.contains("kinds") || text.contains("cole") || text.contains("king") {
            // Pieces may divide a character, but leave none out.
            let mut at = 0;
            for span in spans {
                let missed = text[at.min(span.bytes.start)..span.bytes.start].trim();
                assert!(missed.is_empty(), "{text:?}: {missed:?} has no token");
                at = at.max(span.bytes.end);
            }
            assert!(text[at..].trim().is_empty(), "{text:?}");
        }
    }
}

#[test]
fn unigram_tokenizers_give_the_ids_of_the_makers_libraries() {
    let (source, record) = unigram("xlm-roberta-pieces");
    let whole = converted(&source, None);
    assert_unigram(&whole, &record);
    let metadata = whole.metadata();
    assert_eq!(metadata.str("tokenizer.ggml.model").unwrap(), "t5");
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    let ends: Vec<&str> = tokens.iter().take(4).chain(tokens.iter().skip(191)).collect();
    assert_eq!(ends, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]);
    let types = metadata.opt_i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!((&types[..5], types[191]), (&[3, 3, 3, 2, 1][..], 3));
    // Each file alone has all that a vocabulary needs.
    for missing in [&["sentencepiece.bpe.model"][..], &["tokenizer.json", "tokenizer_config.json"]]
    {
        let folder = Folder::copy(&source);
        for name in missing {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        let alone = converted(folder.path(), None);
        assert_unigram(&alone, &record);
        let differences = differences(alone.metadata(), metadata);
        assert!(
            differences
                .keys()
                .all(|key| ["general.name", "cls", "mask"].iter().any(|id| key.contains(id))),
            "{differences:?}"
        );
    }
    let (source, record) = unigram("t5-pieces");
    let folder = with_pieces(&source, "spiece.model", 460);
    assert_unigram(&converted(folder.path(), None), &record);
}

/// A folder with a vocabulary of `rows` tokens and the SentencePiece model `file` of `source`.
fn with_pieces(source: &Path, file: &str, rows: usize) -> Folder {
    let mut config = json!({ "vocab_size": rows, "tie_word_embeddings": true });
    let tiny: Value =
        serde_json::from_slice(&std::fs::read(Folder::tiny().path().join("config.json")).unwrap())
            .unwrap();
    for (key, value) in tiny.as_object().unwrap() {
        config.as_object_mut().unwrap().entry(key.clone()).or_insert(value.clone());
    }
    let folder = Folder::of(&config, &[]);
    std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
    folder
}

/// CamemBERT's SentencePiece model has the name of XLM-RoBERTa's; its pieces have other numbers, here those of the same model.
#[test]
fn camembert_has_numbers_of_its_own() {
    let (source, mut record) = unigram("xlm-roberta-pieces");
    for UnigramCase { ids, .. } in record.cases.iter_mut().chain(&mut record.pairs) {
        for id in ids {
            *id = match *id {
                0 => 5,
                2 => 6,
                1 | 3 => *id,
                piece => piece + 3,
            };
        }
    }
    let folder = with_pieces(&source, "sentencepiece.bpe.model", 195);
    let named = json!({ "tokenizer_class": "CamembertTokenizer" });
    folder.write("tokenizer_config.json", &named.to_string());
    let file = converted(folder.path(), None);
    assert_unigram(&file, &record);
    let tokens = file.metadata().strings("tokenizer.ggml.tokens").unwrap();
    let ends: Vec<&str> = tokens.iter().take(7).chain(tokens.iter().skip(194)).collect();
    let special = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"];
    assert_eq!(ends, [&special[..], &["<s>", "</s>", "<mask>"]].concat());
    // Where no class is named, the model tells.
    folder.remove("tokenizer_config.json");
    folder.change("config.json", |config| config["model_type"] = json!("camembert"));
    assert_unigram(&converted(folder.path(), None), &record);
}

/// Tokens that older versions of transformers list by text.
#[test]
fn added_tokens_of_older_files_have_their_texts() {
    let (source, _) = unigram("t5-pieces");
    let folder = with_pieces(&source, "spiece.model", 464);
    let first = {
        let file = converted(folder.path(), None);
        let tokens = file.metadata().strings("tokenizer.ggml.tokens").unwrap();
        tokens.iter().position(|token| token.starts_with("[PAD")).unwrap()
    };
    let added = json!({
        "<|im_start|>": first, "<tool>": first + 1, "plain": first + 2, "beyond": 10_000, "bad": -1
    });
    folder.write("added_tokens.json", &added.to_string());
    let named = json!({ "additional_special_tokens": ["<tool>"] });
    folder.write("special_tokens_map.json", &named.to_string());
    let file = converted(folder.path(), None);
    let tokens = file.metadata().strings("tokenizer.ggml.tokens").unwrap();
    let tokens: Vec<&str> = tokens.iter().skip(first).take(4).collect();
    assert_eq!(tokens[..3], ["<|im_start|>", "<tool>", "plain"]);
    assert!(tokens[3].starts_with("[PAD"), "{tokens:?}");
    let types = file.metadata().opt_i32s("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!(types[first..first + 4], [3, 3, 4, 5]);
}

/// BERT's normalizer may be one step of several; no other is dropped.
#[test]
fn a_wordpiece_normalizer_is_berts_or_an_error() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/bert-tokens");
    let folder = Folder::copy(&source);
    let own = json!({ "type": "BertNormalizer", "lowercase": false, "strip_accents": false });
    let lower = json!({ "type": "BertNormalizer", "lowercase": true, "strip_accents": null });
    let within = |steps: Value| json!({ "type": "Sequence", "normalizers": steps });
    folder.change("tokenizer.json", |json| json["normalizer"] = within(json!([own])));
    let plan = Convert::default().plan(folder.path()).unwrap();
    assert_eq!(
        plan.metadata().opt_bool("tokenizer.ggml.normalizer.lowercase").unwrap(),
        Some(false)
    );
    for (other, shown) in [
        (json!({"type": "NFKC"}), "NFKC"),
        (within(json!([own, {"type": "NFKC"}])), "NFKC"),
        (within(json!([own, {"type": "Lowercase"}])), "Lowercase"),
        (within(json!([{"type": "NFD"}, {"type": "Lowercase"}])), "NFD"),
        (within(json!([lower, {"type": "NFC"}])), "NFC"),
        // Of marks, it strips more than BERT's does.
        (within(json!([lower, {"type": "StripAccents"}])), "StripAccents"),
    ] {
        folder.change("tokenizer.json", |json| json["normalizer"] = other.clone());
        let error = Convert::default().plan(folder.path()).err().unwrap().to_string();
        assert!(error.contains("tokenizer.json") && error.contains(shown), "{error}");
    }
    // What BERT's does, too.
    let same = json!([{"type": "NFC"}, {"type": "NFD"}, lower, {"type": "Lowercase"}]);
    folder.change("tokenizer.json", |json| json["normalizer"] = within(same.clone()));
    Convert::default().plan(folder.path()).unwrap();
}

/// What an adapter does beyond adding products of low rank to the matrices of its base is refused by name.
#[test]
fn adapters_that_change_their_base_are_refused() {
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let (base, source) = (checkpoints.join("options-llama"), checkpoints.join("lora"));
    let plan = |folder: &Folder| Convert::default().plan_lora(&base, folder.path()).map(drop);
    for (key, value, shown) in [
        ("init_lora_weights", json!("pissa_niter_16"), "pissa_niter_16"),
        ("init_lora_weights", json!("olora"), "olora"),
        ("init_lora_weights", json!("corda"), "corda"),
        ("init_lora_weights", json!("loftq"), "loftq"),
        ("layer_replication", json!([[0, 1], [0, 2]]), "layer_replication"),
        ("use_dora", json!(true), "use_dora"),
    ] {
        let folder = Folder::copy(&source);
        folder.change("adapter_config.json", |config| config[key] = value.clone());
        let error = plan(&folder).unwrap_err().to_string();
        assert!(error.contains("adapter_config.json") && error.contains(key), "{error}");
        assert!(error.contains(shown), "{error}");
    }
    for start in [json!(true), json!("gaussian"), json!("eva"), json!("orthogonal")] {
        let folder = Folder::copy(&source);
        folder.change("adapter_config.json", |config| config["init_lora_weights"] = start);
        plan(&folder).unwrap();
    }
}

/// A change to a folder, the exit code, and the error.
type Bad = (&'static str, fn(&mut Folder), i32, &'static [&'static str]);

const BAD: &[Bad] = &[
    ("no config", |f| f.remove("config.json"), 65, &["config.json", "is missing"]),
    ("config is no JSON", |f| f.write("config.json", "{"), 65, &["config.json", "no JSON"]),
    ("no weights", |f| f.remove("model.safetensors"), 65, &["model.safetensors", "is missing"]),
    ("no tokenizer", |f| f.remove("tokenizer.json"), 66, &["--no-vocab"]),
    (
        "an unknown architecture",
        |f| f.change("config.json", |c| c["architectures"] = json!(["RwkvForCausalLM"])),
        65,
        &["config.json", "`RwkvForCausalLM`", "LlamaForCausalLM"],
    ),
    (
        "a missing field",
        |f| f.change("config.json", |c| drop(c.as_object_mut().unwrap().remove("rms_norm_eps"))),
        65,
        &["config.json", "`rms_norm_eps` is missing"],
    ),
    (
        "an unknown rotation",
        |f| f.change("config.json", |c| c["rope_scaling"] = json!({"type": "mrope"})),
        65,
        &["config.json", "`rope_type`", "mrope"],
    ),
    (
        "a width that the tensors do not have",
        |f| f.change("config.json", |c| c["intermediate_size"] = json!(48)),
        65,
        &["model.layers.0.mlp.", "[40, 32]", "[48, 32]"],
    ),
    (
        "a layer that is not there",
        |f| f.change("config.json", |c| c["num_hidden_layers"] = json!(3)),
        65,
        &["blk.2.", "is missing"],
    ),
    (
        "no output matrix, and none to share",
        |f| f.without("lm_head.weight"),
        65,
        &["config.json", "`tie_word_embeddings` false", "no output matrix"],
    ),
    (
        "a tensor of another kind of model",
        |f| f.add("model.layers.0.self_attn.sinks", &[4], 1.0),
        65,
        &["model.layers.0.self_attn.sinks", "no place"],
    ),
    (
        "no number",
        |f| f.set("model.layers.1.mlp.up_proj.weight", 7, f32::NAN),
        65,
        &["blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight", "weight 7", "NaN"],
    ),
    (
        "infinity",
        |f| f.set("model.norm.weight", 3, f32::INFINITY),
        65,
        &["output_norm.weight", "weight 3", "inf"],
    ),
    (
        "weights that are whole numbers",
        |f| f.header(|h| h["model.norm.weight"]["dtype"] = json!("I16")),
        65,
        &["model.norm.weight", "I16"],
    ),
    (
        "an unknown way to cut text",
        |f| {
            f.change("tokenizer.json", |t| {
                t["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "[aeiou]+"},
                    "behavior": "Isolated", "invert": false});
            });
        },
        65,
        &["tokenizer.json", "[aeiou]+", "gpt-2"],
    ),
    (
        "an unknown kind of tokenizer",
        |f| f.change("tokenizer.json", |t| t["model"]["type"] = json!("WordLevel")),
        65,
        &["tokenizer.json", "WordLevel"],
    ),
    (
        "a unigram whose pieces are no list",
        |f| f.change("tokenizer.json", |t| t["model"]["type"] = json!("Unigram")),
        65,
        &["tokenizer.json", "`model.vocab`"],
    ),
    (
        "rules for characters that are damaged",
        |f| {
            f.change("tokenizer.json", |t| {
                t["model"] = json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]});
                t["normalizer"] =
                    json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
            });
        },
        65,
        &["tokenizer.json", "precompiled_charsmap"],
    ),
    (
        "a token beyond the embedding",
        |f| f.change("tokenizer.json", |t| t["model"]["vocab"]["zzz"] = json!(8)),
        65,
        &["tokenizer.json", "zzz", "8"],
    ),
    (
        "pieces that are cut off",
        |f| {
            f.remove("tokenizer.json");
            f.write("tokenizer.model", "\n\u{9}<unk");
        },
        65,
        &["tokenizer.model", "cut off"],
    ),
    (
        "a header of any length",
        |f| f.head(&u64::MAX.to_le_bytes()),
        65,
        &["model.safetensors", "header"],
    ),
    (
        "a header that is no JSON",
        |f| f.head(&8u64.to_le_bytes()),
        65,
        &["model.safetensors", "bad header"],
    ),
    ("less than its header says", |f| f.cut(10), 65, &["model.safetensors", "cut off"]),
    ("nothing", |f| f.write("model.safetensors", ""), 65, &["model.safetensors"]),
    (
        "ranges that overlap",
        |f| f.header(|h| h["model.norm.weight"]["data_offsets"] = json!([0, 64])),
        65,
        &["model.safetensors", "bad header"],
    ),
    (
        "a range of another length",
        |f| f.header(|h| h["model.norm.weight"]["shape"] = json!([1u64 << 62, 1u64 << 62])),
        65,
        &["model.safetensors", "bad header"],
    ),
    (
        "a missing shard",
        |f| {
            f.split(3);
            f.remove("model-00002-of-00003.safetensors");
        },
        65,
        &["model-00002-of-00003.safetensors", "is missing"],
    ),
    (
        "a shard without its tensor",
        |f| {
            f.split(2);
            f.change("model.safetensors.index.json", |i| {
                i["weight_map"]["lm_head.bias"] = json!("model-00001-of-00002.safetensors");
            });
        },
        65,
        &["model-00001-of-00002.safetensors", "lm_head.bias"],
    ),
    (
        "a shard elsewhere",
        |f| {
            f.split(2);
            f.change("model.safetensors.index.json", |i| {
                i["weight_map"]["model.norm.weight"] = json!("../other/model.safetensors");
            });
        },
        65,
        &["index.json", "model.norm.weight"],
    ),
];

/// The error is one line that names file and tensor, key or field; the folder is unchanged.
#[test]
fn bad_checkpoints_are_reported_and_no_file_is_left() {
    let place = Place::new();
    for (what, spoil, code, parts) in BAD {
        let mut folder = Folder::tiny();
        spoil(&mut folder);
        let before = folder.names();
        let folder_name = folder.path().display();
        let ran = place.run(&format!("convert {folder_name} --outfile out.gguf --outtype f32"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(*code), ""), "{what}: {ran:?}");
        for part in *parts {
            assert!(ran.err.contains(part), "{what}: {part} in {}", ran.err);
        }
        assert_eq!(ran.err.lines().count(), 1, "{what}: {}", ran.err);
        assert_eq!(folder.names(), before, "{what}");
        assert!(place.names().is_empty(), "{what}: {:?}", place.names());
    }
}

#[test]
fn an_interrupted_conversion_keeps_the_old_file() {
    let place = Place::new();
    let (folder, out) = (Folder::tiny(), place.file("out.gguf", "before"));
    let plan = Convert::default().plan(folder.path()).unwrap();
    let error = plan.write(&out, &mut |_, _| std::ops::ControlFlow::Break(())).unwrap_err();
    assert!(matches!(error, bilayer_convert::Error::Interrupted), "{error}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "before");
    assert_eq!(place.names(), ["out.gguf"]);
}

/// Settings of architectures without a checkpoint in the shared data: additional fields, and optional tensors.
const OTHERS: &[(&str, &str, &[&str])] = &[
    ("GemmaForCausalLM", r#"{"head_dim": 16, "hidden_act": "gelu"}"#, &[]),
    ("SmolLM3ForCausalLM", r#"{"no_rope_layer_interval": 4, "use_sliding_window": false}"#, &[]),
    (
        "MixtralForCausalLM",
        r#"{"num_local_experts": 4, "num_experts_per_tok": 2}"#,
        &["output.weight"],
    ),
    (
        "Qwen2MoeForCausalLM",
        r#"{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": false,
            "shared_expert_intermediate_size": 40, "decoder_sparse_step": 1, "mlp_only_layers": []}"#,
        &["output.weight"],
    ),
    ("CohereForCausalLM", r#"{"layer_norm_eps": 1e-5, "logit_scale": 0.0625}"#, &[]),
    (
        "Glm4ForCausalLM",
        r#"{"partial_rotary_factor": 0.5}"#,
        &["output.weight", "blk.0.attn_q.bias"],
    ),
    ("SeedOssForCausalLM", r#"{"head_dim": 8}"#, &["output.weight", "blk.1.attn_k.bias"]),
    ("Ernie4_5ForCausalLM", r#"{"head_dim": 8}"#, &[]),
    ("Exaone4ForCausalLM", r#"{"sliding_window": 16}"#, &["output.weight"]),
    (
        "StableLmForCausalLM",
        r#"{"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25}"#,
        // Some layers with a norm of their own before the network.
        &["output.weight", "blk.0.ffn_norm.weight", "blk.2.ffn_norm.weight"],
    ),
    (
        "MiniMaxM2ForCausalLM",
        r#"{"num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4}"#,
        &["output.weight"],
    ),
];

#[test]
fn architectures_without_a_checkpoint_here_become_whole_models() {
    for (class, more, optional) in OTHERS {
        let mut config = json!({
            "architectures": [class], "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48,
            "max_position_embeddings": 64, "num_attention_heads": 4, "num_hidden_layers": 4,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "vocab_size": 16,
        });
        let more: Value = serde_json::from_str(more).unwrap();
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let folder = Folder::of(&config, optional);
        let convert = Convert { no_vocab: true, outtype: Some(Type::F32), ..Convert::default() };
        let bytes = convert.plan(folder.path()).unwrap().to_bytes().unwrap();
        let file = File::from_bytes(class, bytes).unwrap();
        let (config, _) = bilayer_models::read(&file).unwrap();
        assert_eq!(config.layers.len(), 4, "{class}");
        if let Some(experts) = &config.experts {
            let each = ["block_sparse_moe.experts.{}.w1", "mlp.experts.{}.gate_proj"];
            let is_block = ["llama", "minimax-m2"].contains(&config.architecture);
            let stem = each[usize::from(!is_block)];
            let parts = (0..experts.count).flat_map(|expert| {
                let stem = stem.replace("{}", &expert.to_string());
                folder.values(&format!("model.layers.2.{stem}.weight"))
            });
            let stacked = values(&file, "blk.2.ffn_gate_exps.weight");
            assert_eq!(stacked, parts.collect::<Vec<_>>(), "{class}");
        }
        let norm = folder.values("model.norm.weight");
        let one = if config.architecture == "gemma" { 1.0 } else { 0.0 };
        let expected: Vec<f32> = norm.iter().map(|gain| gain + one).collect();
        assert_eq!(values(&file, "output_norm.weight"), expected, "{class}");
    }
}

/// `layer_types` decides which layers of gpt-oss have a sliding window; without the list it is every other one.
#[test]
fn layer_types_of_gpt_oss_are_honoured() {
    let windows = |layer_types: Value| -> Vec<bool> {
        let mut config = json!({
            "architectures": ["GptOssForCausalLM"], "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 32,
            "max_position_embeddings": 64, "num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1,
            "head_dim": 16, "rms_norm_eps": 1e-5, "vocab_size": 16, "sliding_window": 8, "num_local_experts": 2,
            "num_experts_per_tok": 1, "rope_theta": 150000.0, "swiglu_limit": 7.0,
        });
        config["layer_types"] = layer_types;
        let folder = Folder::of(&config, &[]);
        let convert = Convert { no_vocab: true, outtype: Some(Type::F32), ..Convert::default() };
        let bytes = convert.plan(folder.path()).unwrap().to_bytes().unwrap();
        let (config, _) =
            bilayer_models::read(&File::from_bytes("gpt-oss", bytes).unwrap()).unwrap();
        config.layers.iter().map(|layer| layer.window.is_some()).collect()
    };
    let (local, global) = ("sliding_attention", "full_attention");
    assert_eq!(windows(Value::Null), [true, false, true]);
    assert_eq!(windows(json!([local, global, local])), [true, false, true]);
    assert_eq!(windows(json!([global, local, local])), [false, true, true]);
    assert_eq!(windows(json!([global, global, global])), [false, false, false]);
}

/// gpt-oss as it is published: experts in MXFP4, gate and up row by row in turn.
#[test]
fn packed_experts_keep_their_codes() {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let config = json!({
        "architectures": ["GptOssForCausalLM"], "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 32,
        "max_position_embeddings": 64, "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 1,
        "head_dim": 32, "rms_norm_eps": 1e-5, "vocab_size": 16, "sliding_window": 8, "num_local_experts": 3,
        "num_experts_per_tok": 2, "rope_theta": 150000.0, "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4"},
    });
    let mut folder = Folder::of(&config, &[]);
    let mut random = Random(9);
    let mut bytes = |count: usize, below: f32| -> Vec<u8> {
        (0..count).map(|_| ((random.next() + 1.0) / 2.0 * below) as u8).collect()
    };
    let mut expected = Vec::new();
    for layer in 0..2 {
        let stem = format!("model.layers.{layer}.mlp.experts");
        for (name, rows, groups) in [("gate_up_proj", 64, 2), ("down_proj", 64, 1)] {
            let codes = bytes(3 * rows * groups * 16, 256.0);
            let exponents: Vec<u8> =
                bytes(3 * rows * groups, 9.0).iter().map(|e| 118 + e).collect();
            let values = codes.iter().enumerate().flat_map(|(at, byte)| {
                let scale = (f32::from(exponents[at / 16]) - 127.0).exp2();
                [byte & 15, byte >> 4].map(|code| {
                    let value = scale * E2M1[usize::from(code & 7)];
                    if code > 7 { -value } else { value }
                })
            });
            expected.push((layer, name, groups, values.collect::<Vec<f32>>()));
            folder.replace(
                &format!("{stem}.{name}"),
                &format!("{stem}.{name}_blocks"),
                &[3, rows, groups, 16],
                codes,
            );
            folder.replace("", &format!("{stem}.{name}_scales"), &[3, rows, groups], exponents);
        }
    }
    let convert = Convert { no_vocab: true, ..Convert::default() };
    let bytes = convert.plan(folder.path()).unwrap().to_bytes().unwrap();
    let file = File::from_bytes("packed", bytes).unwrap();
    bilayer_models::read(&file).unwrap();
    for (layer, name, groups, all) in expected {
        let rows: Vec<&[f32]> = all.chunks(32 * groups).collect();
        let parts: &[(&str, usize, usize)] = match name {
            "down_proj" => &[("ffn_down_exps", 0, 1)],
            _ => &[("ffn_gate_exps", 0, 2), ("ffn_up_exps", 1, 2)],
        };
        for &(stem, first, step) in parts {
            let name = format!("blk.{layer}.{stem}.weight");
            assert_eq!(file.tensor(&name).unwrap().layout().ty(), Type::MXFP4, "{name}");
            let kept: Vec<f32> =
                rows.iter().skip(first).step_by(step).copied().flatten().copied().collect();
            assert_eq!(values(&file, &name), kept, "{name}");
        }
    }
    folder.replace("model.layers.1.mlp.experts.down_proj_scales", "spare", &[1], vec![0]);
    let error = convert.plan(folder.path()).err().unwrap().to_string();
    assert!(error.contains("down_proj"), "{error}");
}

/// Both lists of LongRoPE factors are written, whichever the context needs.
#[test]
fn both_lists_of_factors_are_kept() {
    let Some(phi3) = shared("arch-tiny/phi3") else { return };
    let folder = Folder::copy(&phi3);
    let (long, short) = ([4f32; 8], [1.5f32; 8]);
    folder.change("config.json", |config| {
        config["original_max_position_embeddings"] = json!(64);
        config["rope_parameters"] = json!(null);
        config["rope_scaling"] =
            json!({"type": "longrope", "long_factor": long, "short_factor": short});
    });
    let convert = Convert { no_vocab: true, ..Convert::default() };
    let bytes = convert.plan(folder.path()).unwrap().to_bytes().unwrap();
    let file = File::from_bytes("phi3", bytes).unwrap();
    assert_eq!(values(&file, "rope_factors_long.weight"), long);
    assert_eq!(values(&file, "rope_factors_short.weight"), short);
    assert_eq!(file.metadata().u32("phi3.rope.scaling.original_context_length").unwrap(), 64);
    bilayer_models::read(&file).unwrap();
}

/// A Llama with LongRoPE: the file names the scaling, its context and its factor, sqrt(1 + ln 2 / ln 32) for twice 32 tokens.
#[test]
fn longrope_is_of_every_family() {
    let folder = Folder::tiny();
    let dims = 8;
    let (long, short) = (vec![4f32; dims / 2], vec![1.5f32; dims / 2]);
    folder.change("config.json", |config| {
        config["max_position_embeddings"] = json!(64);
        config["rope_scaling"] = json!({
            "rope_type": "longrope", "long_factor": long, "short_factor": short,
            "original_max_position_embeddings": 32,
        });
    });
    let file = converted(folder.path(), None);
    assert_eq!(values(&file, "rope_factors_long.weight"), long);
    assert_eq!(values(&file, "rope_factors_short.weight"), short);
    let (config, graph) = bilayer_models::read(&file).unwrap();
    let rope = config.layers[0].rope.unwrap();
    assert_eq!(rope.scaling, bilayer_models::Scaling::Long { original_context: 32 });
    assert!((rope.magnitude() - (1.0 + 2f32.ln() / 32f32.ln()).sqrt()).abs() < 1e-6);
    assert!(graph.weights.iter().any(|weight| weight.name == "rope_factors_long.weight"));
    folder.change("config.json", |config| {
        config["rope_scaling"]["original_max_position_embeddings"] = json!(null);
    });
    // transformers takes the whole context for it.
    let (config, _) = bilayer_models::read(&converted(folder.path(), None)).unwrap();
    let scaling = config.layers[0].rope.unwrap().scaling;
    assert_eq!(scaling, bilayer_models::Scaling::Long { original_context: 64 });
}

/// A code of FP8 as a number, for codes without NaN: E4M3 with bias 7.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    let value = if exponent == 0 {
        mantissa * 2f32.powi(-6)
    } else {
        (1.0 + mantissa) * 2f32.powi(exponent - 7)
    };
    if code >= 128 { -value } else { value }
}

/// Weights in FP8 are multiplied by the scale of their block, of their matrix or of their row; the scales are no tensors of
/// the file.
#[test]
fn weights_in_fp8_are_scaled() {
    const NAME: &str = "model.layers.0.mlp.up_proj.weight";
    let (rows, cols) = (40, 32);
    let codes: Vec<u8> =
        (0..rows * cols).map(|i| (i * 37 % 126) as u8 | ((i % 2) << 7) as u8).collect();
    for (end, shape, block) in [
        ("_scale_inv", vec![3, 4], Some([16, 8])),
        ("_scale_inv", vec![1, 1], Some([128, 128])),
        ("_scale_inv", vec![], None),
        ("_scale", vec![1], None),
        ("_scale", vec![40, 1], None),
    ] {
        let mut folder = Folder::tiny();
        let count: usize = shape.iter().product();
        let scales: Vec<f32> = (0..count).map(|i| 0.01 + 0.003 * i as f32).collect();
        let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        // The folder knows bytes alone; the header gets the types.
        folder.replace(NAME, NAME, &[rows, cols], codes.clone());
        folder.replace("none", &format!("{NAME}{end}"), &[4 * count], bytes);
        folder.replace("none", "model.layers.0.mlp.up_proj.input_scale", &[1], vec![0]);
        folder.replace("none", "model.layers.0.self_attn.k_proj.k_scale", &[1], vec![0]);
        folder.replace("none", "model.layers.0.self_attn.v_scale", &[1], vec![0]);
        folder.header(|header| {
            header[NAME]["dtype"] = json!("F8_E4M3");
            let entry = &mut header[format!("{NAME}{end}")];
            (entry["dtype"], entry["shape"]) = (json!("F32"), json!(shape));
        });
        folder.change("config.json", |config| {
            config["quantization_config"] =
                json!({"quant_method": "fp8", "weight_block_size": block});
        });
        let block = block.unwrap_or(if count == 1 { [rows, cols] } else { [1, cols] });
        let scale_cols = cols.div_ceil(block[1]);
        let expected: Vec<f32> = (0..rows * cols)
            .map(|i| {
                let (row, col) = (i / cols, i % cols);
                e4m3(codes[i]) * scales[row / block[0] * scale_cols + col / block[1]]
            })
            .collect();
        let file = converted(folder.path(), Some(Type::F32));
        assert_eq!(values(&file, "blk.0.ffn_up.weight"), expected, "{shape:?}");
        bilayer_models::read(&file).unwrap();
        let usual = converted(folder.path(), None);
        let ty = usual.tensor("blk.0.ffn_up.weight").unwrap().layout().ty();
        assert_eq!(ty, Type::BF16);
        if block == [16, 8] {
            // As compressed-tensors writes it.
            folder.change("config.json", |config| {
                let weights = json!({"block_structure": [16, 8]});
                config["quantization_config"] =
                    json!({"config_groups": {"group_0": {"weights": weights}}});
            });
            let file = converted(folder.path(), Some(Type::F32));
            assert_eq!(values(&file, "blk.0.ffn_up.weight"), expected);
        }
        folder.header(|header| header[format!("{NAME}{end}")]["shape"] = json!([4 * count, 1, 1]));
        folder.header(|header| header[format!("{NAME}{end}")]["dtype"] = json!("I8"));
        let error = Convert::default().plan(folder.path()).err().unwrap().to_string();
        assert!(error.contains(NAME) && error.contains("I8"), "{error}");
    }
    let mut folder = Folder::tiny();
    folder.replace(NAME, NAME, &[rows, cols], codes);
    folder.header(|header| header[NAME]["dtype"] = json!("F8_E4M3"));
    let error = Convert::default().plan(folder.path()).err().unwrap().to_string();
    assert!(error.contains("weight_scale_inv is missing"), "{error}");
}

/// A matrix with scales in one of the formats of Open Compute and NVIDIA.
struct Scaled {
    /// The end of the weights' name, and their type: E4M3, or U8 where a byte has two of E2M1.
    weights: [&'static str; 2],
    /// Weights that share a scale, and its type: E4M3, or a power of two (E8M0, in U8 in older files).
    scales: (usize, &'static str),
    /// The end of the name of what all scales are multiplied by, and of what they are divided by.
    global: [Option<&'static str>; 2],
}

/// As compressed-tensors 0.20 (the first, third and last) and NVIDIA's Model Optimizer write them.
const SCALED: &[Scaled] = &[
    Scaled {
        weights: ["_packed", "U8"],
        scales: (16, "F8_E4M3"),
        global: [None, Some("_global_scale")],
    },
    Scaled { weights: ["", "U8"], scales: (16, "F8_E4M3"), global: [Some("_scale_2"), None] },
    Scaled { weights: ["_packed", "U8"], scales: (32, "U8"), global: [None; 2] },
    Scaled { weights: ["_packed", "U8"], scales: (32, "F8_E8M0"), global: [None; 2] },
    Scaled { weights: ["", "F8_E4M3"], scales: (32, "U8"), global: [None; 2] },
];

/// The one factor or divisor of [`SCALED`].
const GLOBAL: f32 = 0.37;

impl Scaled {
    /// Weights in a byte.
    fn each(&self) -> usize {
        if self.weights[1] == "U8" { 2 } else { 1 }
    }

    /// The end of the name of the factor or divisor.
    fn global_end(&self) -> Option<&'static str> {
        self.global[0].or(self.global[1])
    }

    /// The weights of so many bytes, by the formats' definitions.
    fn values(&self, codes: &[u8], scales: &[u8]) -> Vec<f32> {
        const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let each = self.each();
        let value = |i: usize| {
            let weight = match (each, codes[i / each] >> (4 * (i % each))) {
                (1, code) => e4m3(code),
                (_, code) if code & 8 == 0 => E2M1[usize::from(code & 7)],
                (_, code) => -E2M1[usize::from(code & 7)],
            };
            let scale = scales[i / self.scales.0];
            let scale = match self.scales.1 {
                "F8_E4M3" => e4m3(scale),
                _ => 2f32.powi(i32::from(scale) - 127),
            };
            weight
                * match self.global {
                    [Some(_), _] => scale * GLOBAL,
                    [_, Some(_)] => scale / GLOBAL,
                    _ => scale,
                }
        };
        (0..each * codes.len()).map(value).collect()
    }
}

/// The rest of the format's tensors are no tensors of the file.
#[test]
fn weights_in_nvfp4_mxfp4_and_mxfp8_are_scaled() {
    const NAME: &str = "model.layers.0.mlp.up_proj.weight";
    let (rows, cols) = (40, 32);
    for scaled in SCALED {
        let ([end, ty], (group, scale_ty)) = (scaled.weights, scaled.scales);
        let (each, count) = (scaled.each(), rows * cols / group);
        // Neither is NaN.
        let most = if each == 2 { 256 } else { 126 };
        let codes: Vec<u8> = (0..rows * cols / each).map(|i| (i * 37 % most) as u8).collect();
        let scales: Vec<u8> = match scale_ty {
            "F8_E4M3" => (0..count).map(|i| (i * 11 % 126) as u8).collect(),
            _ => (0..count).map(|i| 120 + (i % 9) as u8).collect(),
        };
        let mut folder = Folder::tiny();
        let (weights, scale) = (format!("{NAME}{end}"), format!("{NAME}_scale"));
        folder.replace(NAME, &weights, &[rows, cols / each], codes.clone());
        folder.replace("none", &scale, &[rows, cols / group], scales.clone());
        let global = scaled.global_end().map(|end| format!("{NAME}{end}"));
        if let Some(global) = &global {
            folder.replace("none", global, &[4], GLOBAL.to_le_bytes().to_vec());
        }
        for end in ["input_scale", "input_global_scale"] {
            folder.replace("none", &format!("model.layers.0.mlp.up_proj.{end}"), &[1], vec![0]);
        }
        let typed = |header: &mut Value| {
            header[&weights]["dtype"] = json!(ty);
            header[&scale]["dtype"] = json!(scale_ty);
            if let Some(entry) = global.as_ref().and_then(|global| header.get_mut(global)) {
                (entry["dtype"], entry["shape"]) = (json!("F32"), json!([]));
            }
        };
        folder.header(typed);
        let file = converted(folder.path(), Some(Type::F32));
        let expected = scaled.values(&codes, &scales);
        assert_eq!(values(&file, "blk.0.ffn_up.weight"), expected, "{ty}, {scale_ty}");
        bilayer_models::read(&file).unwrap();
        let usual = converted(folder.path(), None);
        let layout = usual.tensor("blk.0.ffn_up.weight").unwrap().layout();
        assert_eq!(layout.ty(), Type::BF16);
        let mut refused = |wanted: &str, change: &dyn Fn(&mut Folder)| {
            change(&mut folder);
            let error = Convert::default().plan(folder.path()).err().unwrap().to_string();
            assert!(error.contains(wanted) && error.contains(NAME), "{error}");
        };
        refused("scales [", &|folder| {
            folder.header(|header| header[&scale]["shape"] = json!([count / 4, 4]));
        });
        if let Some(global) = &global {
            refused("NVFP4", &|folder| {
                folder.without(global);
                folder.header(typed);
            });
        }
    }
}

/// As in transformers, whose Nemotron-H is never tied: a matrix that differs from the embedding is the head.
#[test]
fn a_head_that_is_not_the_embedding_is_kept_whatever_the_field_says() {
    const HEAD: &str = "lm_head.weight";
    let of = |mut folder: Folder, tied: &Value, (dtype, width): (&str, usize), index: usize| {
        let table = folder.values("model.embed_tokens.weight");
        let bytes = table.iter().flat_map(|x| x.to_bits().to_le_bytes()[4 - width..].to_vec());
        let mut bytes: Vec<u8> = bytes.collect();
        if let Some(byte) = bytes.get_mut(width * index + width - 2) {
            *byte ^= 1;
        }
        folder.replace(HEAD, HEAD, &[8, 32 * width], bytes);
        folder.header(|header| {
            (header[HEAD]["dtype"], header[HEAD]["shape"]) = (json!(dtype), json!([8, 32]));
        });
        folder.change("config.json", |config| config["tie_word_embeddings"] = tied.clone());
        let file = converted(folder.path(), Some(Type::F32));
        file.tensor("output.weight").is_some()
    };
    // The embedding is BF16.
    for float in [("BF16", 2), ("F32", 4)] {
        for tied in [json!(true), json!(null)] {
            let is_kept = |index| of(Folder::tiny(), &tied, float, index);
            assert!(!is_kept(8 * 32), "{float:?} {tied}");
            assert!(is_kept(0) && is_kept(8 * 32 - 1), "{float:?} {tied}");
        }
        assert!(of(Folder::tiny(), &json!(false), float, 8 * 32), "{float:?}");
    }
}

/// As llama.cpp's converter names them, with gate and up from the halves of one matrix.
#[test]
fn granite_4_without_mamba_and_experts_is_granite() {
    let mut folder = Folder::tiny();
    let name = |layer: usize, stem: &str| format!("model.layers.{layer}.{stem}.weight");
    let [gate, up] =
        ["gate", "up"].map(|part| folder.values(&name(1, &format!("mlp.{part}_proj"))));
    for layer in 0..2 {
        let parts = ["mlp.gate_proj", "mlp.up_proj"].map(|stem| name(layer, stem));
        folder.merge(&parts, &name(layer, "shared_mlp.input_linear"));
        folder.merge(&[name(layer, "mlp.down_proj")], &name(layer, "shared_mlp.output_linear"));
    }
    folder.change("config.json", |config| {
        let more = json!({
            "architectures": ["GraniteMoeHybridForCausalLM"], "layer_types": ["attention", "attention"],
            "position_embedding_type": "rope", "num_local_experts": 0, "num_experts_per_tok": 0,
            "shared_intermediate_size": 40, "attention_multiplier": 0.125, "embedding_multiplier": 12.0,
            "residual_multiplier": 0.25, "logits_scaling": 8.0,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    });
    let file = converted(folder.path(), Some(Type::F32));
    assert_eq!(file.metadata().str("general.architecture").unwrap(), "granite");
    assert_eq!(values(&file, "blk.1.ffn_gate.weight"), gate);
    assert_eq!(values(&file, "blk.1.ffn_up.weight"), up);
    bilayer_models::read(&file).unwrap();
}

#[test]
fn weights_too_large_for_half_precision_are_reported() {
    let mut folder = Folder::tiny();
    folder.set("model.layers.0.mlp.up_proj.weight", 0, 1e6);
    let convert = Convert { outtype: Some(Type::F16), ..Convert::default() };
    let error = convert.plan(folder.path()).unwrap().to_bytes().unwrap_err().to_string();
    assert!(error.contains("blk.0.ffn_up.weight") && error.contains("bf16"), "{error}");
}

/// Whatever the type of the file, and also where the checkpoint's bytes are copied.
#[test]
fn weights_that_are_no_numbers_are_named_and_leave_no_file() {
    let place = Place::new();
    for value in [f32::NAN, f32::NEG_INFINITY] {
        let mut folder = Folder::tiny();
        folder.set("model.layers.1.mlp.up_proj.weight", 37, value);
        let path = folder.path().display();
        let before = folder.names();
        for outtype in ["f16", "bf16", "f32", "q8_0"] {
            let ran = place.run(&format!("convert {path} --outtype {outtype} --outfile made.gguf"));
            assert_eq!(ran.code, Some(65), "{outtype}: {ran:?}");
            let place_of_it = format!("weight 37 of model.layers.1.mlp.up_proj.weight is {value}");
            assert!(ran.err.contains(&place_of_it), "{outtype}: {ran:?}");
            assert!(ran.err.contains("the checkpoint is damaged"), "{outtype}: {ran:?}");
            assert_eq!((place.names(), folder.names()), (vec![], before.clone()), "{outtype}");
        }
    }
}

#[test]
fn a_file_of_the_checkpoint_is_never_overwritten() {
    let place = Place::new();
    let folder = Folder::tiny();
    let path = folder.path().display();
    for name in folder.names() {
        let before = std::fs::read(folder.path().join(&name)).unwrap();
        let ran = place.run(&format!("convert {path} --outfile {path}/./{name}"));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("the same file"), "{ran:?}");
        assert!(std::fs::read(folder.path().join(&name)).unwrap() == before, "{name}");
    }
}

#[test]
fn the_command_reports_what_it_writes() {
    let place = Place::new();
    let folder = Folder::tiny();
    let path = folder.path().display();
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    let dry = place.run(&format!("convert {path} --dry-run")).good();
    assert!(dry.out.contains("blk.0.attn_q.weight") && dry.out.contains("not written"), "{dry:?}");
    let out = format!("{name}-BF16.gguf");
    assert!(!folder.names().contains(&out));
    let ran = place.run(&format!("convert {path} --json")).good();
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(document["architecture"], "llama");
    assert_eq!(document["type"], "BF16");
    assert_eq!(document["parameters"], 14_496);
    assert!(folder.names().contains(&out), "{:?}", folder.names());
    let file = File::open(&folder.path().join(&out)).unwrap();
    bilayer_models::read(&file).unwrap();
    std::fs::create_dir(place.path().join("made")).unwrap();
    for (given, expected) in [
        ("made", format!("made/{out}")),
        ("x-{ftype}-{FTYPE}.gguf", "x-bf16-BF16.gguf".to_owned()),
        ("{outtype}{OUTTYPE}.gguf", "bf16BF16.gguf".to_owned()),
    ] {
        place.run(&format!("convert {path} --outfile {given}")).good();
        assert!(place.path().join(&expected).is_file(), "{expected}: {:?}", place.names());
    }
}

/// A file without a tokenizer works with ids; text is an error.
#[test]
fn a_file_without_a_tokenizer_runs_on_ids() {
    let place = Place::new();
    let folder = Folder::tiny();
    folder.remove("tokenizer.json");
    let path = folder.path().display();
    place.run(&format!("convert {path} --no-vocab --outfile ids.gguf")).good();
    let ran = place.run("run -m ids.gguf --tokens 1,2,3 -n 2 --temp 0").good();
    let shown = ran.out.trim().trim_start_matches('<').trim_end_matches('>');
    let ids: Vec<u32> = shown.split("><").map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() == 2 && ids.iter().all(|&id| id < 8), "{ran:?}");
    let ran = place.run("run -m ids.gguf -p text");
    assert!(ran.code != Some(0) && ran.err.contains("no tokenizer"), "{ran:?}");
    assert!(place.run("inspect ids.gguf").good().out.contains("runs: yes"));
}

/// A model with a matrix of 512 MiB is converted in an address space of 400 MiB.
#[cfg(target_os = "linux")]
#[test]
fn memory_is_bounded_whatever_the_size() {
    let place = Place::new();
    let folder = Folder::hollow(1 << 17, 1024);
    folder.write("limits.sh", "ulimit -v 400000; exec \"$@\"");
    let script = folder.path().join("limits.sh");
    let mut command = place.bare("sh");
    command.arg(&script).arg(env!("CARGO_BIN_EXE_bilayer")).env("MALLOC_ARENA_MAX", "1");
    command.args([
        "convert",
        "--no-vocab",
        "--outtype",
        "q8_0",
        "--outfile",
        "big.gguf",
        "-t",
        "2",
    ]);
    command.arg(folder.path());
    let ran = ran(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let file = File::open(&place.path().join("big.gguf")).unwrap();
    assert_eq!(file.tensor("token_embd.weight").unwrap().layout().shape(), [1 << 17, 1024]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_up_during_the_work_keeps_the_old_file() {
    let place = Place::new();
    let folder = Folder::hollow(1 << 15, 1024);
    let path = folder.path().display();
    let line = format!("convert --no-vocab --outtype q8_0 -t 1 --outfile disk/out.gguf {path}");
    let Some(full) = filled_meanwhile(&place, 48 << 20, &line) else { return };
    keeps_the_old(&full, 74, "disk/out.gguf: cannot write it");
    assert!(full.err.contains("No space left"), "{full:?}");
}
