//! Vocabularies of a few tokens, one of every kind.

#![allow(dead_code, reason = "each test file uses its part")]

use std::borrow::Cow;
use std::sync::LazyLock;

use bilayer_text::{Tokenizer, Vocabulary};

/// The first token of `more` in [`byte_level`].
pub const MORE: u32 = 257;

/// Id = byte for the first 256 tokens, then two spaces, then `more` from [`MORE`] on.
pub fn byte_level(pre: &str, more: &[&str], merges: &[&str]) -> Vocabulary<'static> {
    // The byte alphabet: printable Latin-1 unchanged, other bytes from U+0100 on.
    let mut free = 0x100..;
    let bytes = (0..=u8::MAX).map(|byte| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte).to_string(),
        _ => char::from_u32(free.next().unwrap()).unwrap().to_string(),
    });
    Vocabulary {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens: bytes.map(Cow::Owned).chain(strings(&["ĠĠ"])).chain(strings(more)).collect(),
        merges: strings(&[&["Ġ Ġ"], merges].concat()),
        ..Vocabulary::default()
    }
}

/// `<unk>`, `<s>`, `</s>`, the 256 bytes, a few pieces.
pub fn sentence_piece() -> Vocabulary<'static> {
    let pieces = ["▁", "a", "b", "c", "ab", "▁ab", "bc", "▁▁", "▁▁▁▁", "日", "本", "日本"];
    let bytes = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>").into());
    let tokens: Vec<Cow<'static, str>> = strings(&["<unk>", "<s>", "</s>"])
        .into_iter()
        .chain(bytes)
        .chain(strings(&pieces))
        .collect();
    Vocabulary {
        model: "llama".into(),
        scores: (0..tokens.len()).map(|id| -(id as f32)).collect(),
        types: [vec![2, 3, 3], vec![6; 256], vec![1; pieces.len()]].concat(),
        tokens,
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..Vocabulary::default()
    }
}

/// The pieces of [`sentence_piece`] as unigrams.
pub fn unigrams() -> Vocabulary<'static> {
    Vocabulary { model: "t5".into(), add_space_prefix: Some(true), ..sentence_piece() }
}

/// A double array that replaces `a` by what begins at `at` of `replacements`.
pub fn rules(at: u32, replacements: &[u8]) -> Cow<'static, [u8]> {
    let mut units = [0u32; 256];
    units[usize::from(b'a')] = u32::from(b'a') | 1 << 8 | 1 << 10;
    units[usize::from(b'a' ^ 1)] = 1 << 31 | at;
    let units = units.map(u32::to_le_bytes).concat();
    [&1024u32.to_le_bytes(), &units[..], replacements].concat().into()
}

pub fn word_piece() -> Vocabulary<'static> {
    Vocabulary {
        model: "bert".into(),
        tokens: strings(&["[UNK]", "[CLS]", "[SEP]", "▁un", "able", "▁,"]),
        types: vec![3, 3, 3, 1, 1, 1],
        ..Vocabulary::default()
    }
}

pub fn built_in_vocabularies() -> Vec<Vocabulary<'static>> {
    let pieces = ["ab", "bc", "abc", "Ġa"];
    let merges = ["a b", "b c", "ab c", "Ġ a"];
    let mut vocabularies = vec![sentence_piece()];
    for pre in
        ["gpt-2", "llama-bpe", "falcon", "deepseek-llm", "deepseek-v3", "tekken", "gpt-4o", "bloom"]
    {
        vocabularies.push(byte_level(pre, &pieces, &merges));
    }
    vocabularies.push(gemma());
    vocabularies.push(unigrams());
    vocabularies
}

/// The pieces of [`sentence_piece`] as those of Gemma 4.
pub fn gemma() -> Vocabulary<'static> {
    Vocabulary {
        model: "gemma4".into(),
        merges: strings(&["a b", "▁ ab", "b c", "▁ ▁", "▁▁ ▁▁", "日 本"]),
        ..sentence_piece()
    }
}

/// Small vocabularies of every kind that round-trips text.
pub fn built_in() -> &'static [Tokenizer] {
    static TOKENIZERS: LazyLock<Vec<Tokenizer>> =
        LazyLock::new(|| built_in_vocabularies().into_iter().map(tokenizer).collect());
    &TOKENIZERS
}

pub fn tokenizer(vocabulary: Vocabulary<'_>) -> Tokenizer {
    Tokenizer::new(vocabulary).unwrap()
}

pub fn strings(list: &[&str]) -> Vec<Cow<'static, str>> {
    list.iter().map(|&item| item.to_owned().into()).collect()
}
