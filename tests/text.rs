//! The promise of tokenizers: text gets the ids of the original tokenizers and round-trips unchanged.
#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod support {
    pub mod data;
}

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bilayer_engine::vocabulary;
use bilayer_text::{Decode, Decoder, Encode, Error, Tokenizer, Vocabulary};
use proptest::prelude::*;
use serde_json::Value;

use support::data::shared;

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

/// OLMo's tokenizer composes characters; Qwen's does too, but not the recorded ids.
#[test]
fn characters_are_composed_as_in_the_original_tokenizers() {
    for (pre, composes) in [("olmo", true), ("gpt-2", false), ("qwen2", false)] {
        let tokenizer = tokenizer(byte_level(pre, &[], &[]));
        for (text, composed) in [("e\u{301}", "é"), ("\u{1112}\u{1161}\u{11ab}", "한")] {
            let expected = if composes { composed } else { text };
            let ids: Vec<u32> = expected.bytes().map(u32::from).collect();
            assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), ids, "{pre}: {text}");
        }
    }
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
        ("gemma-4", &[1, 106]),
        ("llama-spm", &[2]),
    ];
    for (name, expected) in cases {
        let tokenizer = open(&folder.join(format!("ggml-vocab-{name}.gguf")));
        assert_eq!(tokenizer.ends(), *expected, "{name}");
    }
}

#[test]
fn messages_of_one_turn_do_not_end_it() {
    let cases: &[(&[&str], &[u32])] = &[
        (&["<|end|>", "<|user|>"], &[MORE]),
        (&["<|end|>", "<|return|>", "<|call|>"], &[MORE + 1, MORE + 2]),
    ];
    for (control, expected) in cases {
        let types = [vec![1; MORE as usize], vec![3; control.len()]].concat();
        let tokenizer = tokenizer(Vocabulary { types, ..byte_level("gpt-2", control, &[]) });
        assert_eq!(tokenizer.ends(), *expected, "{control:?}");
    }
}

#[test]
fn tokens_around_a_text_follow_the_flags() {
    let flags = [None, Some(false), Some(true)];
    for model in ["llama", "gpt-2", "llama-bpe"] {
        for (add_bos, add_eos) in flags.iter().flat_map(|a| flags.map(|b| (*a, b))) {
            let base =
                if model == "llama" { sentence_piece() } else { byte_level(model, &[], &[]) };
            let (bos, eos) = (Some(1), Some(2));
            let tokenizer = tokenizer(Vocabulary { add_bos, add_eos, bos, eos, ..base });
            let ids = tokenizer.encode("x", SPECIAL).unwrap();
            let begins = add_bos.unwrap_or(model != "gpt-2");
            assert_eq!(ids.first() == Some(&1), begins, "{model}: {add_bos:?}");
            assert_eq!(ids.last() == Some(&2), add_eos == Some(true), "{model}: {add_eos:?}");
            assert_eq!(tokenizer.adds_bos(), begins, "{model}");
        }
    }
}

#[test]
fn user_defined_tokens_are_matched_in_every_text() {
    let mut vocabulary = byte_level("gpt-2", &["   ", "ü", "<x>"], &[]);
    vocabulary.types = [vec![1; MORE as usize], vec![4, 4, 3]].concat();
    let tokenizer = tokenizer(vocabulary);
    assert_eq!(
        tokenizer.encode("a    ü<x>", PLAIN).unwrap()[1..4],
        [MORE, u32::from(b' '), MORE + 1]
    );
    assert_eq!(tokenizer.decode(&tokenizer.encode("a    ü", PLAIN).unwrap()), "a    ü");
    assert_eq!(tokenizer.encode("<x>", PLAIN).unwrap().len(), 3);
    assert_eq!(tokenizer.encode("<x>", PARSED).unwrap(), [MORE + 2]);
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
        let mut decoder = Decoder::new(tokenizer, Decode { stops: vec!["€".into(), stop], ..Decode::default() });
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

#[test]
fn a_stop_string_is_withheld_at_every_split() {
    // Tokens that split "one STOP two" at every pair of positions, including within the bytes of é.
    let text = "oné STÖP two";
    for first in 0..=text.len() {
        for second in first..=text.len() {
            let parts = [
                &text.as_bytes()[..first],
                &text.as_bytes()[first..second],
                &text.as_bytes()[second..],
            ];
            let tokenizer = tokenizer(byte_level("gpt-2", &[], &[]));
            let mut decoder = Decoder::new(
                &tokenizer,
                Decode { stops: vec!["STÖP".into()], ..Decode::default() },
            );
            let mut shown = String::new();
            let mut stop = None;
            for part in parts {
                for &byte in part {
                    let piece = decoder.push(u32::from(byte));
                    shown += &piece.text;
                    stop = piece.stop;
                }
                assert!("oné ".starts_with(&shown), "{shown:?}");
            }
            assert_eq!((shown.as_str(), stop, decoder.finish().as_str()), ("oné ", Some(0), ""));
        }
    }
}

#[test]
fn withheld_text_is_released_when_no_stop_string_can_complete() {
    let tokenizer = tokenizer(byte_level("gpt-2", &["ab", "abc"], &[]));
    let mut decoder =
        Decoder::new(&tokenizer, Decode { stops: vec!["abcd".into()], ..Decode::default() });
    let texts = [MORE + 1, MORE, u32::from(b'x'), MORE].map(|id| decoder.push(id).text);
    assert_eq!(texts, ["", "abc", "abx", ""]);
    assert_eq!(decoder.finish(), "ab");
}

#[test]
fn incomplete_characters_are_withheld_and_invalid_ones_are_not() {
    let tokenizer = tokenizer(sentence_piece());
    let byte = |byte: u8| 3 + u32::from(byte);
    let cases: &[(&[u8], &[&str], &str)] = &[
        // (bytes, text after each, rest)
        ("é".as_bytes(), &["", "é"], ""),
        ("🦙".as_bytes(), &["", "", "", "🦙"], ""),
        (&[0xE2, 0x82], &["", ""], "\u{fffd}"),
        (&[0xE2, 0x41], &["", "\u{fffd}A"], ""),
        (&[0xFF, 0xC3, 0xC3, 0xA9], &["\u{fffd}", "", "\u{fffd}", "é"], ""),
        (&[0xF0, 0x9F, 0x20], &["", "", "\u{fffd} "], ""),
    ];
    for (bytes, texts, rest) in cases {
        let mut decoder = Decoder::new(&tokenizer, Decode::default());
        let found: Vec<String> =
            bytes.iter().map(|&value| decoder.push(byte(value)).text).collect();
        assert_eq!(found, *texts, "{bytes:x?}");
        assert_eq!(decoder.finish(), *rest, "{bytes:x?}");
    }
}

#[test]
fn the_leading_space_belongs_to_a_continued_text_only() {
    let tokenizer = tokenizer(sentence_piece());
    let ids = tokenizer.encode("ab ab", PLAIN).unwrap();
    assert_eq!(
        ids.iter().map(|&id| tokenizer.piece(id).unwrap()).collect::<Vec<_>>(),
        [b" ab", b" ab"]
    );
    let read =
        |mut decoder: Decoder| ids.iter().map(|&id| decoder.push(id).text).collect::<String>();
    assert_eq!(read(Decoder::new(&tokenizer, Decode::default())), "ab ab");
    assert_eq!(read(Decoder::new(&tokenizer, Decode::default()).continuing()), " ab ab");
}

#[test]
fn control_tokens_are_shown_only_if_asked() {
    let tokenizer = tokenizer(sentence_piece());
    for (show_control, expected) in [(false, "ab"), (true, "<s>ab</s>")] {
        let mut decoder = Decoder::new(&tokenizer, Decode { show_control, ..Decode::default() });
        let ids = tokenizer.encode("<s>ab</s>", PARSED).unwrap();
        let text: String = ids.iter().map(|&id| decoder.push(id).text).collect();
        assert_eq!(text, expected);
    }
}

// --- SentencePiece ------------------------------------------------------------------------------

/// Of equal scores the leftmost pair merges first; emulations by ranked merges order by token instead.
#[test]
fn equal_scores_merge_from_left_to_right() {
    let tokens = ["<unk>", "a", "aa", "aaa", "b", "ab", "ba"];
    let scores = [0.0, -9.0, -1.0, -1.0, -9.0, -0.0, 0.0];
    let tokenizer = tokenizer(Vocabulary {
        model: "llama".into(),
        tokens: strings(&tokens),
        scores: scores.to_vec(),
        unk: Some(0),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    });
    let cases: &[(&str, &[u32])] = &[
        ("aaaa", &[3, 1]),
        ("aaaaa", &[3, 2]),
        ("aba", &[5, 1]),
        ("bab", &[6, 4]),
        ("?!a?", &[0, 1, 0]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), *expected, "{text}");
    }
}

#[test]
fn spaces_are_collapsed_if_the_vocabulary_says_so() {
    let squeezing = Vocabulary { remove_extra_whitespaces: Some(true), ..sentence_piece() };
    let [plain, squeezing] = [sentence_piece(), squeezing].map(tokenizer);
    assert_eq!(squeezing.encode("  ab   ab ", PLAIN), plain.encode("ab ab", PLAIN));
    assert!(squeezing.encode("   ", PLAIN).unwrap().is_empty());
}

// --- hostile vocabularies -----------------------------------------------------------------------

#[test]
fn a_bad_vocabulary_is_an_error_that_names_it() {
    type Case = (fn() -> Vocabulary<'static>, fn(&mut Vocabulary<'_>), &'static str);
    let spm: fn() -> Vocabulary<'static> = sentence_piece;
    let bytes: fn() -> Vocabulary<'static> = || byte_level("gpt-2", &["ab"], &["a b"]);
    let words: fn() -> Vocabulary<'static> = word_piece;
    let cases: &[Case] = &[
        (spm, |v| v.tokens.clear(), "is empty"),
        (spm, |v| v.model = "rwkv".into(), "is 'rwkv'; known are"),
        (spm, |v| v.scores.truncate(3), "scores has 3 entries for"),
        (spm, |v| v.scores.clear(), "scores is absent"),
        (spm, |v| v.scores[7] = f32::NAN, "token 7 has the score NaN"),
        (spm, |v| v.scores[8] = f32::INFINITY, "token 8 has the score inf"),
        (spm, |v| v.types.push(1), "token_type has"),
        (spm, |v| v.types[5] = 7, "token 5 has the type 7"),
        (spm, |v| v.types[5] = -1, "token 5 has the type -1"),
        (spm, |v| v.tokens[3] = "<0x0>".into(), "reads '<0x0>'"),
        (spm, |v| v.tokens[3] = "<0x+1>".into(), "reads '<0x+1>'"),
        (spm, |v| v.bos = Some(1 << 20), "bos_token_id is 1048576"),
        (spm, |v| v.eot = Some(u32::MAX), "eot_token_id is 4294967295"),
        (spm, |v| (v.add_bos, v.bos) = (Some(true), None), "bos_token_id is absent"),
        (spm, |v| (v.add_eos, v.eos) = (Some(true), None), "eos_token_id is absent"),
        (bytes, |v| v.pre = Some("gpt-5".into()), "is 'gpt-5'; known are"),
        (bytes, |v| v.pre = None, "tokenizer.ggml.pre is absent"),
        (bytes, |v| v.merges.clear(), "merges is absent"),
        (bytes, |v| v.merges = strings(&["ab"]), "merges[0] is 'ab'"),
        (bytes, |v| v.merges = strings(&["a b", " "]), "merges[1] is ' '"),
        (bytes, |v| v.merges = strings(&["a "]), "merges[0] is 'a '"),
        (bytes, |v| v.merges = strings(&["a c"]), "together they are no token"),
        (bytes, |v| v.merges = strings(&["ab abc"]), "the second is no token"),
        (bytes, |v| v.merges = strings(&["🦙 b"]), "the first is no token"),
        (unigrams, |v| v.scores.clear(), "scores is absent"),
        (unigrams, |v| v.tokens[260] = "a".repeat(600).into(), "token 260 has 600 characters"),
        (unigrams, |v| v.charsmap = b"abc"[..].into(), "precompiled_charsmap has less than 4"),
        (unigrams, |v| v.charsmap = [255; 64][..].into(), "precompiled_charsmap is shorter"),
        (unigrams, |v| v.charsmap = [1, 0, 0, 0, 9][..].into(), "no multiple of 4"),
        (unigrams, |v| v.charsmap = rules(0, b"\xff\0"), "that are not UTF-8"),
        (unigrams, |v| v.charsmap = rules(9, b"b\0"), "missing or too long"),
        (unigrams, |v| v.charsmap = rules(0, &[b'b'; 999]), "missing or too long"),
        (words, |v| (v.unk, v.tokens[0]) = (None, "x".into()), "unknown_token_id is absent"),
        (words, |v| v.tokens[1] = "x".into(), "cls_token_id is absent"),
    ];
    for (base, spoil, expected) in cases {
        let mut vocabulary = base();
        spoil(&mut vocabulary);
        let error = Tokenizer::new(vocabulary).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn text_that_a_vocabulary_cannot_express_is_an_error() {
    let few = Vocabulary {
        model: "llama".into(),
        tokens: strings(&["▁", "a"]),
        scores: vec![0.0; 2],
        ..Vocabulary::default()
    };
    assert_eq!(tokenizer(few).encode("ab", PLAIN), Err(Error::NoToken { what: 'b' }));
}

/// Falcon lacks bytes that only occur in control characters; the original tokenizer drops them.
#[test]
fn a_byte_that_a_vocabulary_lacks_is_dropped() {
    let mut vocabulary = byte_level("gpt-2", &[], &[]);
    vocabulary.tokens[7] = "spare".into();
    assert_eq!(tokenizer(vocabulary).encode("a\u{7}b", PLAIN).unwrap(), [97, 98]);
}

#[test]
fn of_equal_tokens_the_first_counts() {
    let tokenizer = tokenizer(byte_level("gpt-2", &["ab", "ab", ""], &["a b"]));
    assert_eq!(tokenizer.encode("ab", PLAIN).unwrap(), [MORE]);
    assert_eq!(tokenizer.decode(&[MORE + 1, MORE + 2, MORE, 9999]), "abab");
    assert_eq!((tokenizer.len(), tokenizer.piece(MORE + 3)), (260, None));
}

/// Long runs make patterns with look-ahead and merge queues quadratic, or make them fail.
#[test]
fn long_runs_are_tokenized() {
    for run in [" ", "\n", "a", "1", ".", " \n", "é", "'s", "日"] {
        let text = run.repeat(200_000 / run.len());
        for tokenizer in built_in() {
            let ids = tokenizer.encode(&text, PLAIN).unwrap();
            assert_eq!(tokenizer.decode(&ids).len(), text.len(), "{tokenizer:?}: {run:?}");
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

fn tokenizer(vocabulary: Vocabulary<'_>) -> Tokenizer {
    Tokenizer::new(vocabulary).unwrap()
}

fn strings(list: &[&str]) -> Vec<Cow<'static, str>> {
    list.iter().map(|&item| item.to_owned().into()).collect()
}

/// Id = byte for the first 256 tokens, then two spaces, then `more` from [`MORE`] on.
fn byte_level(pre: &str, more: &[&str], merges: &[&str]) -> Vocabulary<'static> {
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

/// The first token of `more` in [`byte_level`].
const MORE: u32 = 257;

/// `<unk>`, `<s>`, `</s>`, the 256 bytes, a few pieces.
fn sentence_piece() -> Vocabulary<'static> {
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
fn unigrams() -> Vocabulary<'static> {
    Vocabulary { model: "t5".into(), add_space_prefix: Some(true), ..sentence_piece() }
}

/// A double array that replaces `a` by what begins at `at` of `replacements`.
fn rules(at: u32, replacements: &[u8]) -> Cow<'static, [u8]> {
    let mut units = [0u32; 256];
    units[usize::from(b'a')] = u32::from(b'a') | 1 << 8 | 1 << 10;
    units[usize::from(b'a' ^ 1)] = 1 << 31 | at;
    let units = units.map(u32::to_le_bytes).concat();
    [&1024u32.to_le_bytes(), &units[..], replacements].concat().into()
}

#[test]
fn unigrams_have_the_greatest_sum_of_scores_after_normalization() {
    let vocabulary = |charsmap| Vocabulary {
        model: "t5".into(),
        tokens: strings(&["<unk>", "▁", "x", "xx", "xxx", "y", "<u>", "xy"]),
        types: vec![2, 1, 1, 1, 1, 1, 4, 5],
        scores: vec![0.0, -2.0, -3.0, -1.0, -4.0, -3.0, 0.0, 0.0],
        add_space_prefix: Some(true),
        remove_extra_whitespaces: Some(true),
        charsmap,
        ..Vocabulary::default()
    };
    let plain = tokenizer(vocabulary(Cow::default()));
    let ruled = tokenizer(vocabulary(rules(1, b"\0 x \0")));
    let cases: &[(&Tokenizer, &str, &[u32])] = &[
        (&plain, "xxxx", &[1, 3, 3]),
        // Of equal sums the longer last piece, and no unused piece.
        (&plain, "xxx xy", &[1, 4, 1, 2, 5]),
        (&plain, " x  <u>yzz ", &[1, 2, 6, 1, 5, 0]),
        (&plain, "a", &[1, 0]),
        (&ruled, "aax", &[1, 2, 1, 2, 1, 2]),
        (&ruled, "xa", &[1, 2, 1, 2]),
    ];
    for (tokenizer, text, expected) in cases {
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), *expected, "{text:?}");
    }
}

fn word_piece() -> Vocabulary<'static> {
    Vocabulary {
        model: "bert".into(),
        tokens: strings(&["[UNK]", "[CLS]", "[SEP]", "▁un", "able", "▁,"]),
        types: vec![3, 3, 3, 1, 1, 1],
        ..Vocabulary::default()
    }
}

#[test]
fn words_are_cut_into_pieces() {
    let tokenizer = tokenizer(word_piece());
    let cases: &[(&str, &[u32])] = &[
        ("unable", &[1, 3, 4, 2]),
        ("ÚN,able", &[1, 3, 5, 0, 2]),
        ("un\u{300}able\u{0}", &[1, 3, 4, 2]),
        ("", &[1, 2]),
    ];
    for (text, expected) in cases {
        assert_eq!(tokenizer.encode(text, SPECIAL).unwrap(), *expected, "{text:?}");
    }
    assert_eq!(tokenizer.decode(&[1, 3, 4, 5, 2]), "unable ,");
}

/// Small vocabularies of every kind that round-trips text.
fn built_in() -> &'static [Tokenizer] {
    static TOKENIZERS: LazyLock<Vec<Tokenizer>> =
        LazyLock::new(|| built_in_vocabularies().into_iter().map(tokenizer).collect());
    &TOKENIZERS
}

fn built_in_vocabularies() -> Vec<Vocabulary<'static>> {
    let pieces = ["ab", "bc", "abc", "Ġa"];
    let merges = ["a b", "b c", "ab c", "Ġ a"];
    let mut vocabularies = vec![sentence_piece()];
    for pre in
        ["gpt-2", "llama-bpe", "falcon", "deepseek-llm", "deepseek-v3", "tekken", "gpt-4o", "bloom"]
    {
        vocabularies.push(byte_level(pre, &pieces, &merges));
    }
    let mut gemma = sentence_piece();
    gemma.model = "gemma4".into();
    gemma.merges = strings(&["a b", "▁ ab", "b c", "▁ ▁", "▁▁ ▁▁", "日 本"]);
    vocabularies.push(gemma);
    vocabularies.push(unigrams());
    vocabularies
}

/// Any text: all scripts, controls, emoji, runs. No U+2581, which SentencePiece takes for a space.
fn text() -> impl Strategy<Value = String> {
    let known = "abc \n\t\r日本é🦙👩‍👩‍👧\u{301}\u{200d}<|>▂'s 1٣\u{a0}\u{3000}\u{0}\u{feff}\u{fffd}";
    let known: Vec<char> = known.chars().collect();
    let character = prop_oneof![any::<char>(), proptest::sample::select(known)];
    let character = character.prop_filter("not U+2581", |&character| character != '▁');
    proptest::collection::vec(character, 0..50).prop_map(String::from_iter)
}
