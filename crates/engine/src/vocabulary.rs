//! The vocabulary and the chat templates of a GGUF file: its keys `tokenizer.*` as plain data for `bilayer-text`.

use std::borrow::Cow;

use bilayer_gguf::{Error, Metadata, Strings};
use bilayer_models::limits;
use bilayer_text::Vocabulary;
use bilayer_text::chat::Templates;

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
    /// Before the name of the repository.
    pub repository: Option<u32>,
    /// Before the name of each file.
    pub separator: Option<u32>,
}

/// The names of such a token: its keys in the metadata, then its spellings in the vocabularies of code models.
///
/// Source: llama.cpp (`llama-vocab.cpp`).
type Names = (&'static [&'static str], &'static [&'static str]);

const PREFIX: Names = (
    &["fim_pre_token_id", "prefix_token_id"],
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
);

const SUFFIX: Names = (
    &["fim_suf_token_id", "suffix_token_id"],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
);

const MIDDLE: Names = (
    &["fim_mid_token_id", "middle_token_id"],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
);

const REPOSITORY: Names = (
    &["fim_rep_token_id"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
);

const SEPARATOR: Names = (&["fim_sep_token_id"], &["<|file_sep|>", "<file_sep>"]);

/// The tokens of fill-in-the-middle prompts in a vocabulary of so many tokens: from the metadata, else by their spellings.
/// Tokens of any type count, since files give them different ones: control, user-defined, and normal in CodeLlama's.
pub(crate) fn fill_in_middle(metadata: &Metadata, vocab: usize) -> FillInMiddle {
    let tokens = metadata.opt_strings(&key("tokens")).ok().flatten();
    let spelled = |spellings: &[&str]| {
        let at = tokens?.iter().position(|token| spellings.contains(&token))?;
        u32::try_from(at).ok()
    };
    let find = |(keys, spellings): Names| {
        let given = keys.iter().find_map(|name| metadata.opt_u32(&key(name)).ok().flatten());
        given.or_else(|| spelled(spellings)).filter(|&id| (id as usize) < vocab)
    };
    FillInMiddle {
        prefix: find(PREFIX),
        suffix: find(SUFFIX),
        middle: find(MIDDLE),
        repository: find(REPOSITORY),
        separator: find(SEPARATOR),
    }
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::{Metadata, Strings};

    use super::{FillInMiddle, fill_in_middle};

    fn found(tokens: &[&str], keys: &[(&str, u32)]) -> FillInMiddle {
        let mut metadata = Metadata::new();
        metadata.set("tokenizer.ggml.tokens", tokens.iter().copied().collect::<Strings>());
        for (name, id) in keys {
            metadata.set(&format!("tokenizer.ggml.{name}"), *id);
        }
        fill_in_middle(&metadata, tokens.len())
    }

    #[test]
    fn tokens_of_code_models_are_found_by_key_or_spelling() {
        let ids = |ids: [Option<u32>; 5]| {
            let [prefix, suffix, middle, repository, separator] = ids;
            FillInMiddle { prefix, suffix, middle, repository, separator }
        };
        let three = ids([Some(0), Some(1), Some(2), None, None]);
        for tokens in [
            ["▁<PRE>", "▁<SUF>", "▁<MID>"],
            ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
            ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
            ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ] {
            assert_eq!(found(&tokens, &[]), three, "{tokens:?}");
        }
        let qwen =
            ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|repo_name|>", "<|file_sep|>"];
        assert_eq!(found(&qwen, &[]), ids([Some(0), Some(2), Some(1), Some(3), Some(4)]));
        let old = [("prefix_token_id", 1), ("suffix_token_id", 2), ("middle_token_id", 0)];
        let keys = ids([Some(1), Some(2), Some(0), None, None]);
        assert_eq!(found(&["a", "b", "c"], &old), keys);
        let newer = [("fim_pre_token_id", 2), ("prefix_token_id", 1), ("fim_rep_token_id", 0)];
        let found_newer = found(&["<|fim_prefix|>", "b", "c"], &newer);
        assert_eq!(found_newer, ids([Some(2), None, None, Some(0), None]));
        assert_eq!(found(&["a"], &[("fim_sep_token_id", 7)]), FillInMiddle::default());
    }
}
