//! Rerankers made of decoders: a pair of texts is written into a template, and its score is the head's logits of one or two
//! tokens behind it.

use std::borrow::Cow;
use std::path::Path;

use bilayer_engine::encode::pair;
use bilayer_gguf::{Metadata, Strings};
use bilayer_models::RANK;
use bilayer_text::Vocabulary;
use bilayer_text::chat::{Inputs, Template};
use serde_json::{Value, json};

use crate::Error;
use crate::checkpoint::Checkpoint;

/// The name of the template, after `tokenizer.chat_template.`.
const TEMPLATE: &str = "rerank";

/// How the model card of the Qwen3 rerankers begins: nothing else in the first of their folders tells them from a model that
/// chats.
const QWEN3_CARD: &str = "# Qwen3-Reranker";

/// The prompt of these models (<https://huggingface.co/Qwen/Qwen3-Reranker-0.6B>), with the task they suggest.
const QWEN3_TEMPLATE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// A decoder that scores pairs.
pub(super) struct Reranker {
    /// The token of `yes` and, where its logit is compared with another one, that of `no`: rows of the head.
    pub tokens: Vec<u32>,
    /// The text around both texts of a pair, which are `{query}` and `{document}`.
    template: String,
}

impl Reranker {
    /// What a folder says of it: a module `LogitScore` of Sentence Transformers, or the card of Qwen3's rerankers.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: a module without its tokens, or a chat template that has no place for a query and a document.
    pub fn find(
        checkpoint: &Checkpoint,
        vocabulary: Option<&Vocabulary<'_>>,
        templates: &[(Option<String>, String)],
    ) -> Result<Option<Reranker>, Error> {
        let modules = checkpoint.json("modules.json")?.unwrap_or_default();
        let is_score = |module: &&Value| {
            module["type"].as_str().is_some_and(|kind| kind.ends_with("LogitScore"))
        };
        if let Some(module) = modules.as_array().and_then(|list| list.iter().find(is_score)) {
            return of_module(checkpoint, module, vocabulary, templates).map(Some);
        }
        let card = checkpoint.text("README.md")?.unwrap_or_default();
        if !card.lines().any(|line| line.starts_with(QWEN3_CARD)) {
            return Ok(None);
        }
        let tokens = ["yes", "no"].map(|word| {
            let place = vocabulary.and_then(|words| words.tokens.iter().position(|own| own == word));
            let reason = format!(
                "is the card of a reranker that answers with the token `{word}`, which the vocabulary lacks"
            );
            place.map(|id| id as u32).ok_or_else(|| checkpoint.wrong("README.md", &reason))
        });
        let tokens = tokens.into_iter().collect::<Result<_, _>>()?;
        Ok(Some(Reranker { tokens, template: QWEN3_TEMPLATE.to_owned() }))
    }

    /// Adds what a file says of it: by it, a decoder ends in scores.
    pub fn describe(&self, architecture: &str, metadata: &mut Metadata) {
        metadata.set(&format!("{architecture}.pooling_type"), RANK as u32);
        if self.tokens.len() > 1 {
            let labels: Strings = ["yes", "no"].into_iter().collect();
            metadata.set(&format!("{architecture}.classifier.output_labels"), labels);
        }
    }

    /// Adds its template to those of the folder.
    pub fn join(&self, templates: &mut Vec<(Option<String>, String)>) {
        templates.retain(|(name, _)| name.as_deref() != Some(TEMPLATE));
        templates.push((Some(TEMPLATE.to_owned()), self.template.clone()));
    }
}

/// The module's tokens, and what the chat template makes of a query and a document, with the default prompt as system message.
fn of_module(
    checkpoint: &Checkpoint,
    module: &Value,
    vocabulary: Option<&Vocabulary<'_>>,
    templates: &[(Option<String>, String)],
) -> Result<Reranker, Error> {
    let file = Path::new(module["path"].as_str().unwrap_or_default()).join("config.json");
    let file = file.display().to_string();
    let config = checkpoint.json(&file)?.ok_or_else(|| checkpoint.wrong(&file, "is missing"))?;
    let token = |field: &str| {
        let reason = format!("`{field}` is no token id");
        let id = config[field].as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| checkpoint.wrong(&file, &reason))
    };
    let mut tokens = vec![token("true_token_id")?];
    if !config["false_token_id"].is_null() {
        tokens.push(token("false_token_id")?);
    }
    let Some((_, source)) = templates.iter().find(|(name, _)| name.is_none()) else {
        let reason =
            "scores pairs of texts, but the folder has no chat template to write them into";
        return Err(checkpoint.wrong("modules.json", reason));
    };
    let failed = |error: bilayer_text::Error| {
        let reason = format!("cannot be applied to a query and a document: {error}");
        checkpoint.wrong("chat_template.jinja", &reason)
    };
    let texts = checkpoint.json("config_sentence_transformers.json")?.unwrap_or_default();
    let prompt = texts["default_prompt_name"].as_str().map(|name| &texts["prompts"][name]);
    let prompt =
        prompt.and_then(Value::as_str).map(|text| json!({ "role": "system", "content": text }));
    let [query, document] = pair::PLACES;
    let pair = [("query", query), ("document", document)]
        .map(|(role, place)| json!({ "role": role, "content": place }));
    let messages: Vec<Value> = prompt.into_iter().chain(pair).collect();
    let settings = checkpoint.json("sentence_bert_config.json")?.unwrap_or_default();
    let mut extra =
        settings["processing_kwargs"]["chat_template"].as_object().cloned().unwrap_or_default();
    let begins_answer = extra.remove("add_generation_prompt");
    let spelled = |id: Option<u32>| {
        let token = vocabulary.and_then(|words| words.tokens.get(id? as usize));
        token.map(Cow::to_string).unwrap_or_default()
    };
    let inputs = Inputs {
        add_generation_prompt: begins_answer.and_then(|flag| flag.as_bool()).unwrap_or(false),
        extra,
        bos_token: spelled(vocabulary.and_then(|words| words.bos)),
        eos_token: spelled(vocabulary.and_then(|words| words.eos)),
        ..Inputs::new(&messages)
    };
    let template = Template::new("chat template", source).map_err(failed)?;
    let template = template.render(&inputs).map_err(failed)?;
    if !pair::has_places(&template) {
        let reason =
            "has no place for a message of role `query`, or not one for that of role `document`";
        return Err(checkpoint.wrong("chat_template.jinja", reason));
    }
    Ok(Reranker { tokens, template })
}
