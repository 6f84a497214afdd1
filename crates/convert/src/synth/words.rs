//! Generates a vocabulary of any size in which every text has tokens and every token has a text.

use bilayer_gguf::{Metadata, Strings};

use super::family::Family;

/// Tokens of every byte-level vocabulary: 256 bytes, begin and end of text.
const FIXED: usize = 258;

/// The smallest vocabulary: the fixed tokens and one merge, which a byte-level BPE must have. (WordPiece needs
/// fewer.)
pub(super) const LEAST: usize = FIXED + 1;

/// Values of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Special tokens of a WordPiece vocabulary in id order, and their keys.
const SPECIAL_PIECES: [(&str, &[&str]); 5] = [
    ("[PAD]", &["padding_token_id"]),
    ("[UNK]", &["unknown_token_id"]),
    ("[CLS]", &["cls_token_id", "bos_token_id"]),
    ("[SEP]", &["seperator_token_id", "eos_token_id"]),
    ("[MASK]", &["mask_token_id"]),
];

/// Adds the keys `tokenizer.ggml.*` of a vocabulary of `size` tokens.
pub(super) fn add(metadata: &mut Metadata, family: Family, size: usize) {
    match family {
        Family::Decoder { pre, .. } => byte_level(metadata, pre, size),
        Family::Encoder => word_pieces(metadata, size),
    }
}

/// Bytes, then merges of letters into groups of two, three and four, then begin and end of text.
fn byte_level(metadata: &mut Metadata, pre: &str, size: usize) {
    let (mut tokens, mut merges) = (Strings::default(), Strings::default());
    (0..=255).for_each(|byte| tokens.push(&shown(byte).to_string()));
    for (left, right) in groups().take(size - FIXED) {
        tokens.push(&format!("{left}{right}"));
        merges.push(&format!("{left} {right}"));
    }
    let mut types = vec![NORMAL; tokens.len()];
    // Remaining tokens stand for no text.
    for unused in tokens.len()..size - 2 {
        tokens.push(&format!("[unused{unused}]"));
        types.push(CONTROL);
    }
    for special in ["<|begin_of_text|>", "<|end_of_text|>"] {
        tokens.push(special);
        types.push(CONTROL);
    }
    let mut set = |name: &str, value: bilayer_gguf::Value| {
        metadata.set(&format!("tokenizer.ggml.{name}"), value);
    };
    set("model", "gpt2".into());
    set("pre", pre.into());
    set("bos_token_id", (size as u32 - 2).into());
    set("eos_token_id", (size as u32 - 1).into());
    set("add_bos_token", true.into());
    set("token_type", types.into());
    set("merges", merges.into());
    set("tokens", tokens.into());
}

/// Letters at the start of words (after U+2581) and inside words, then groups of letters.
fn word_pieces(metadata: &mut Metadata, size: usize) {
    let mut tokens = Strings::default();
    SPECIAL_PIECES.iter().for_each(|(name, _)| tokens.push(name));
    let mut types = vec![CONTROL; SPECIAL_PIECES.len()];
    let single = ('!'..='~').filter(|c| !c.is_ascii_uppercase()).map(String::from);
    let pieces = single.chain(groups().map(|(left, right)| left + &right));
    let mut both = pieces.flat_map(|piece| [format!("\u{2581}{piece}"), piece]);
    for id in SPECIAL_PIECES.len()..size {
        tokens.push(&both.next().unwrap_or_else(|| format!("[unused{id}]")));
        types.push(NORMAL);
    }
    let mut set = |name: &str, value: bilayer_gguf::Value| {
        metadata.set(&format!("tokenizer.ggml.{name}"), value);
    };
    set("model", "bert".into());
    set("token_type_count", 2u32.into());
    for (id, (_, keys)) in SPECIAL_PIECES.iter().enumerate() {
        keys.iter().for_each(|key| set(key, (id as u32).into()));
    }
    set("token_type", types.into());
    set("tokens", tokens.into());
}

/// All pairs of letters, then pairs with a letter, then pairs of pairs: each consists of earlier tokens, and no
/// two have the same text.
fn groups() -> impl Iterator<Item = (String, String)> {
    let letters = || ('a'..='z').map(String::from);
    let pairs = move || letters().flat_map(move |a| letters().map(move |b| a.clone() + &b));
    let two = letters().flat_map(move |a| letters().map(move |b| (a.clone(), b)));
    let three = pairs().flat_map(move |ab| letters().map(move |c| (ab.clone(), c)));
    let four = pairs().flat_map(move |ab| pairs().map(move |cd| (ab.clone(), cd)));
    two.chain(three).chain(four)
}

/// The character that stands for a byte in GPT-2 vocabularies: printable bytes are themselves, the others are
/// mapped to U+0100 and up in order.
fn shown(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if visible(byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|byte| !visible(*byte)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}
