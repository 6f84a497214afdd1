//! The vocabulary and the chat templates of a GGUF file: its keys `tokenizer.*` as plain data for `bilayer-text`.

use std::borrow::Cow;

use bilayer_gguf::{Error, Metadata, Strings};
use bilayer_models::limits;
use bilayer_text::chat::Templates;
use bilayer_text::{Tokenizer, Vocabulary};

/// The lists with an entry per token, merge or rule, the bulk of a vocabulary.
pub(crate) const LISTS: [&str; 5] =
    ["tokens", "scores", "token_type", "merges", "precompiled_charsmap"];

/// The key of a part of the vocabulary.
pub(crate) fn key(part: &str) -> String {
    format!("tokenizer.ggml.{part}")
}

/// Reads the vocabulary from `metadata`. Values are validated by [`bilayer_text::Tokenizer::new`]; absent keys stay
/// absent, since most have defaults that depend on the kind of tokenizer.
///
/// # Errors
/// [`Error::MissingKey`] if model or tokens are absent, [`Error::WrongType`].
pub fn vocabulary(metadata: &Metadata) -> Result<Vocabulary<'_>, Error> {
    let id = |name: &str| metadata.opt_u32(&key(name));
    let flag = |name: &str| metadata.opt_bool(&key(name));
    Ok(Vocabulary {
        name: metadata.opt_str("general.name")?.unwrap_or_default().to_owned(),
        model: metadata.str(&key("model"))?.to_owned(),
        pre: metadata.opt_str(&key("pre"))?.map(str::to_owned),
        tokens: match metadata.str(&key("model"))? {
            // A file without a tokenizer: only ids can be shown.
            "no_vocab" => ids(metadata)?,
            _ => borrowed(metadata.strings(&key("tokens"))?),
        },
        scores: metadata.opt_f32s(&key("scores"))?.unwrap_or_default().into_owned(),
        types: metadata.opt_i32s(&key("token_type"))?.unwrap_or_default().into_owned(),
        merges: metadata.opt_strings(&key("merges"))?.map(borrowed).unwrap_or_default(),
        charsmap: metadata.opt_bytes(&key("precompiled_charsmap"))?.unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        eom: id("eom_token_id")?,
        unk: id("unknown_token_id")?,
        sep: id("seperator_token_id")?,
        pad: id("padding_token_id")?,
        cls: id("cls_token_id")?,
        mask: id("mask_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
    })
}

fn borrowed(strings: &Strings) -> Vec<Cow<'_, str>> {
    strings.iter().map(Cow::Borrowed).collect()
}

/// A spelling for each row of the embedding.
fn ids(metadata: &Metadata) -> Result<Vec<Cow<'static, str>>, Error> {
    let architecture = metadata.str("general.architecture")?;
    let rows = metadata.count(&format!("{architecture}.vocab_size"))?.min(limits::VOCAB);
    Ok((0..rows).map(|id| format!("<{id}>").into()).collect())
}

/// Reads the chat templates from `metadata`: `tokenizer.chat_template`, and named ones.
///
/// # Errors
/// [`Error::WrongType`].
pub fn chat_templates(metadata: &Metadata) -> Result<Templates, Error> {
    const KEY: &str = "tokenizer.chat_template";
    let own = metadata.opt_str(KEY)?.map(str::to_owned);
    let names = metadata.iter().filter_map(|(key, _)| key.strip_prefix(KEY)?.strip_prefix('.'));
    let named = names.map(|name| {
        let source = metadata.str(&format!("{KEY}.{name}"))?;
        Ok((name.to_owned(), source.to_owned()))
    });
    Ok(Templates { own, named: named.collect::<Result<_, Error>>()? })
}

/// Tokens of fill-in-the-middle prompts; `None` for those that a model does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillInMiddle {
    /// Before the text before the cursor.
    pub prefix: Option<u32>,
    /// Before the text after the cursor.
    pub suffix: Option<u32>,
    /// After both: the model continues here.
    pub middle: Option<u32>,
    /// Between files.
    pub separator: Option<u32>,
}

/// The tokens of fill-in-the-middle prompts: from the metadata, else by the names that code models use.
pub(crate) fn fill_in_middle(metadata: &Metadata, tokenizer: &Tokenizer) -> FillInMiddle {
    let named = |names: &[&str]| {
        let mut controls = tokenizer.controls();
        controls.find(|(text, _)| names.contains(text)).map(|(_, id)| id)
    };
    let find = |part: &str, names: &[&str]| {
        let given = metadata.opt_u32(&key(&format!("fim_{part}_token_id"))).ok().flatten();
        given.filter(|&id| (id as usize) < tokenizer.len()).or_else(|| named(names))
    };
    FillInMiddle {
        prefix: find(
            "pre",
            &["<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "<PRE>"],
        ),
        suffix: find(
            "suf",
            &["<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "<SUF>"],
        ),
        middle: find(
            "mid",
            &["<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "<MID>"],
        ),
        separator: find("sep", &["<|file_sep|>", "<file_sep>"]),
    }
}
