//! The promise of tokenizers: text gets the ids of the original tokenizers and round-trips unchanged.
#![expect(clippy::unwrap_used, reason = "a failed test says where")]

#[path = "../crates/text/tests/text/vocabularies.rs"]
mod vocabularies;

mod support {
    pub mod data;
}

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bilayer_engine::vocabulary;
use bilayer_text::{Decode, Decoder, Encode, Tokenizer};
use proptest::prelude::*;
use serde_json::Value;

use support::data::shared;
use vocabularies::{built_in, byte_level, tokenizer, word_piece};

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: false };
const PARSED: Encode = Encode { add_special: false, parse_special: true };

// --- recorded ids -------------------------------------------------------------------------------

/// The vocabularies with 47 recorded texts each.
const VOCABULARIES: &[&str] =
    &["bert-bge", "gemma-4", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"];

#[test]
fn every_recorded_text_gets_its_ids() {
    let Some(folder) = shared("vocab") else { return };
    for name in VOCABULARIES {
        let tokenizer = open(&folder.join(format!("ggml-vocab-{name}.gguf")));
        let read = |kind| {
            let path = folder.join(format!("ggml-vocab-{name}.gguf.{kind}"));
            std::fs::read_to_string(path).unwrap()
        };
        let (texts, lines) = (read("inp"), read("out"));
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        // One file omits the last text, which is empty and has no tokens.
        let lines: Vec<&str> = lines.split('\n').collect();
        assert_eq!((lines.len(), texts.len().max(47)), (47, 47), "{name}");
        for (text, line) in texts.iter().zip(&lines) {
            let expected: Vec<u32> = line.split(' ').filter_map(|id| id.parse().ok()).collect();
            assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), expected, "{name}: {text:?}");
        }
    }
}

/// Recorded texts in JSON: the file, the vocabulary, whether special tokens are included.
const RECORDED: &[(&str, &str, bool)] = &[
    ("vocab/extra-bert-bge.json", "vocab/ggml-vocab-bert-bge.gguf", true),
    ("vocab/extra-gpt-2.json", "vocab/ggml-vocab-gpt-2.gguf", false),
    ("vocab/extra-llama-bpe.json", "vocab/ggml-vocab-llama-bpe.gguf", false),
    ("vocab/extra-llama-spm.json", "vocab/ggml-vocab-llama-spm.gguf", false),
    ("vocab/extra-qwen2.json", "vocab/ggml-vocab-qwen2.gguf", false),
    ("stories260k/reference.json", "stories260k/stories260k-f16.gguf", true),
    ("all-minilm-l6-v2/reference.json", "vocab/ggml-vocab-bert-bge.gguf", true),
];

/// The MiniLM record truncates inputs to this many tokens.
const MINILM_TOKENS_MAX: usize = 256;

#[test]
fn every_text_recorded_in_json_gets_its_ids() {
    for (file, gguf, add_special) in RECORDED {
        let (Some(path), Some(gguf)) = (shared(file), shared(gguf)) else { return };
        let tokenizer = open(&gguf);
        let record: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let cases = record["cases"].as_array().unwrap();
        assert!(!cases.is_empty(), "{file}");
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let expected: Vec<u32> = case["ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect();
            let options = Encode { add_special: *add_special, ..PLAIN };
            let mut ids = tokenizer.encode(text, options).unwrap();
            if ids.len() > MINILM_TOKENS_MAX && file.contains("minilm") {
                ids.truncate(MINILM_TOKENS_MAX - 1);
                ids.extend(expected.last());
            }
            assert_eq!(ids, expected, "{file}: {text:?}");
        }
    }
}

#[test]
fn recorded_greedy_ids_decode_to_the_recorded_text() {
    let (Some(record), Some(gguf)) =
        (shared("stories260k/reference.json"), shared("stories260k/stories260k-f32.gguf"))
    else {
        return;
    };
    let tokenizer = open(&gguf);
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    for case in record["cases"].as_array().unwrap() {
        let mut decoder = Decoder::new(&tokenizer, Decode::default()).continuing();
        let ids = case["greedy_ids"].as_array().unwrap().iter();
        let text: String = ids.map(|id| decoder.push(id.as_u64().unwrap() as u32).text).collect();
        assert_eq!(text + &decoder.finish(), case["greedy_text"]);
    }
}

#[test]
fn every_available_vocabulary_loads_and_round_trips() {
    let Some(folder) = shared("") else { return };
    let mut seen = 0;
    for path in files(&folder).iter().filter(|path| !path.to_string_lossy().contains("malformed")) {
        let file = bilayer_gguf::File::open(path).unwrap();
        if file.metadata().get("tokenizer.ggml.tokens").is_none() {
            continue;
        }
        let tokenizer = open(path);
        seen += 1;
        let ids = tokenizer.encode("Hello world, 3 times", SPECIAL).unwrap();
        assert!(ids.iter().all(|&id| tokenizer.piece(id).is_some()), "{}", path.display());
        assert!(tokenizer.eos().is_none_or(|eos| tokenizer.is_end(eos)), "{}", path.display());
    }
    assert!(seen >= VOCABULARIES.len(), "{seen}");
}

// --- special tokens -----------------------------------------------------------------------------

#[test]
fn special_tokens_are_parsed_only_where_asked() {
    let Some(folder) = shared("vocab") else { return };
    let open = |name: &str| open(&folder.join(format!("ggml-vocab-{name}.gguf")));
    let cases: &[(&str, &str, &[u32])] = &[
        // (vocabulary, text, ids with special tokens parsed)
        ("llama-bpe", "<|eot_id|>Hi", &[128009, 13347]),
        ("qwen2", "<|im_start|>user\nHi<|im_end|>\n", &[151644, 872, 198, 13048, 151645, 198]),
        ("gpt-2", "Hi<|endoftext|>", &[17250, 50256]),
        ("phi-3", "<|user|>\nHi<|end|>\n", &[32010, 6324, 32007]),
        ("gemma-4", "<|turn>user\n", &[105, 2364, 107]),
        ("bert-bge", "a [SEP] b", &[1037, 102, 1038]),
        ("llama-spm", "<s>Hi</s>", &[1, 6324, 2]),
    ];
    for (name, text, expected) in cases {
        let tokenizer = open(name);
        let parsed = tokenizer.encode(text, PARSED).unwrap();
        assert_eq!(parsed, *expected, "{name}");
        let control = parsed.iter().copied().find(|&id| tokenizer.is_control(id)).unwrap();
        assert!(!tokenizer.encode(text, PLAIN).unwrap().contains(&control), "{name}");
    }
}

#[test]
fn ends_of_generation_are_known() {
    let Some(folder) = shared("vocab") else { return };
    let cases: &[(&str, &[u32])] = &[
        ("llama-bpe", &[128001, 128009]),
        ("qwen2", &[151643, 151645]),
        ("gpt-2", &[50256]),
        ("phi-3", &[32000, 32007]),
        // 50 is `<|tool_response>`, of another type in the file.
        ("gemma-4", &[1, 50, 106]),
        ("llama-spm", &[2]),
    ];
    for (name, expected) in cases {
        let tokenizer = open(&folder.join(format!("ggml-vocab-{name}.gguf")));
        assert_eq!(tokenizer.ends(), *expected, "{name}");
    }
}

// --- there and back -----------------------------------------------------------------------------

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn text_round_trips(text in text()) {
        for tokenizer in built_in() {
            let ids = tokenizer.encode(&text, PLAIN).unwrap();
            prop_assert_eq!(&tokenizer.decode(&ids), &text, "{:?}", tokenizer);
        }
    }

    #[test]
    fn normalizing_tokenizers_take_any_text(text in text()) {
        static TOKENIZERS: LazyLock<[Tokenizer; 2]> =
            LazyLock::new(|| [word_piece(), byte_level("olmo", &[], &[])].map(tokenizer));
        let [words, bytes] = &*TOKENIZERS;
        let ids = words.encode(&text, SPECIAL).unwrap();
        prop_assert!(ids.first() == Some(&1) && ids.last() == Some(&2), "{ids:?}");
        // Composition is idempotent, and decoded text is composed.
        let once = bytes.decode(&bytes.encode(&text, PLAIN).unwrap());
        prop_assert_eq!(bytes.decode(&bytes.encode(&once, PLAIN).unwrap()), once);
    }

    #[test]
    fn streaming_reads_as_decoding_at_once(ids in proptest::collection::vec(0u32..300, 0..60)) {
        for tokenizer in built_in() {
            let mut decoder = Decoder::new(tokenizer, Decode::default());
            let mut text = String::new();
            for (at, &id) in ids.iter().enumerate() {
                text += &decoder.push(id).text;
                let sofar = tokenizer.decode(&ids[..=at]);
                let held = sofar.strip_prefix(&text);
                // At most one incomplete character is withheld.
                prop_assert!(matches!(held, Some("" | "\u{fffd}")), "{text:?} of {sofar:?}");
            }
            prop_assert_eq!(text + &decoder.finish(), tokenizer.decode(&ids));
        }
    }

    #[test]
    fn stop_strings_work_wherever_the_text_is_cut(
        before in "[a-c]{0,6}", stop in "[a-c]{1,4}", after in "[a-c]{0,6}", tokens in 0usize..2,
    ) {
        let tokenizer = &built_in()[tokens];
        let text = format!("{before}{stop}{after}");
        let expected = &text[..text.find(&stop).unwrap()];
        let ids = tokenizer.encode(&text, PLAIN).unwrap();
        let mut decoder = Decoder::new(tokenizer, Decode { stops: vec!["€".into(), stop].into(), ..Decode::default() });
        let mut shown = String::new();
        for id in ids {
            let piece = decoder.push(id);
            shown += &piece.text;
            prop_assert!(expected.starts_with(&shown), "{shown:?} of {expected:?}");
            if piece.stop.is_some() {
                prop_assert_eq!(piece.stop, Some(1));
                break;
            }
        }
        prop_assert_eq!(shown, expected);
        prop_assert_eq!(decoder.finish(), "");
    }
}

#[test]
fn real_vocabularies_round_trip_every_script() {
    let Some(folder) = shared("vocab") else { return };
    // No U+2581: SentencePiece takes it for a space.
    let texts: Vec<String> = (0..0x11u32)
        .flat_map(|plane| (0..0x100).map(move |row| plane << 16 | row << 8))
        .map(|row| {
            (row..row + 0x100).filter(|&code| code != 0x2581).filter_map(char::from_u32).collect()
        })
        .collect();
    for name in ["gpt-2", "llama-bpe", "llama-spm", "phi-3", "gemma-4"] {
        let tokenizer = open(&folder.join(format!("ggml-vocab-{name}.gguf")));
        for text in &texts {
            let ids = tokenizer.encode(text, PLAIN).unwrap();
            assert_eq!(
                &tokenizer.decode(&ids),
                text,
                "{name}: row {:x}",
                text.chars().next().map_or(0, u32::from)
            );
        }
    }
}

// --- what the tests are made of -----------------------------------------------------------------

/// All GGUF files below `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .collect()
}

fn open(path: &Path) -> Tokenizer {
    let file = bilayer_gguf::File::open(path).unwrap();
    let vocabulary = vocabulary(file.metadata()).unwrap();
    Tokenizer::new(vocabulary).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Any text: all scripts, controls, emoji, runs. No U+2581, which SentencePiece takes for a space.
fn text() -> impl Strategy<Value = String> {
    let known = "abc \n\t\r日本é🦙👩‍👩‍👧\u{301}\u{200d}<|>▂'s 1٣\u{a0}\u{3000}\u{0}\u{feff}\u{fffd}";
    let known: Vec<char> = known.chars().collect();
    let character = prop_oneof![any::<char>(), proptest::sample::select(known)];
    let character = character.prop_filter("not U+2581", |&character| character != '▁');
    proptest::collection::vec(character, 0..50).prop_map(String::from_iter)
}
