//! The promise of tokenizers: text becomes tokens as the vocabulary says, and text again while they come.

use std::borrow::Cow;

use bilayer_text::{Decode, Decoder, Encode, Error, Tokenizer, Vocabulary};

use super::vocabularies::{
    MORE, built_in, byte_level, gemma, rules, sentence_piece, strings, tokenizer, unigrams,
    word_piece,
};

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: false };
const PARSED: Encode = Encode { add_special: false, parse_special: true };

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

// --- special tokens ------------------------------------------------------------------------------

#[test]
fn messages_of_one_turn_do_not_end_it() {
    // (control tokens, those that end a turn)
    let cases: &[(&[&str], &[u32])] = &[
        (&["<|end|>", "<|user|>"], &[MORE]),
        (&["<|end|>", "<|return|>", "<|call|>"], &[MORE + 1, MORE + 2]),
        (&["<|end|>", "<|flush|>", "<|call|>"], &[MORE + 1, MORE + 2]),
        (&["<|end|>", "<|flush|>", "<|calls|>"], &[MORE + 1, MORE + 2]),
        (&["<|end|>", "<|return|>", "<|calls|>"], &[MORE, MORE + 1, MORE + 2]),
        (&["<|end|>", "<|return|>", "<|flush|>"], &[MORE, MORE + 1, MORE + 2]),
        (&["<|end|>", "<|call|>", "<|calls|>"], &[MORE, MORE + 1, MORE + 2]),
        (&["<|end|>", "<|flush|>"], &[MORE, MORE + 1]),
    ];
    for (control, expected) in cases {
        let types = [vec![1; MORE as usize], vec![3; control.len()]].concat();
        let tokenizer = tokenizer(Vocabulary { types, ..byte_level("gpt-2", control, &[]) });
        assert_eq!(tokenizer.ends(), *expected, "{control:?}");
    }
}

/// What is spelled as the end of a turn is no text, whatever its type in the file.
#[test]
fn well_known_ends_are_control_tokens() {
    for kind in [None, Some(1), Some(3), Some(4)] {
        let base = byte_level("gpt-2", &["<|im_end|>", "<|im_start|>"], &[]);
        let more = |kind| [vec![1; MORE as usize], vec![kind; 2]].concat();
        let types = kind.map(more).unwrap_or_default();
        let tokenizer = tokenizer(Vocabulary { types, ..base });
        assert_eq!(tokenizer.ends(), [MORE], "{kind:?}");
        assert!(tokenizer.is_control(MORE) && tokenizer.text(MORE).is_none(), "{kind:?}");
        assert_eq!(tokenizer.is_control(MORE + 1), kind == Some(3), "{kind:?}");
        assert_eq!(tokenizer.encode("a<|im_end|>", PARSED).unwrap(), [97, MORE], "{kind:?}");
        assert_eq!(tokenizer.encode("<|im_end|>", PLAIN).unwrap().len(), 10, "{kind:?}");
        assert_eq!(tokenizer.decode(&[97, MORE]), "a", "{kind:?}");
    }
}

/// The closing tag of HTML, and what merges make of text, are ordinary tokens unless the file says otherwise.
#[test]
fn spellings_of_ends_that_are_text_stay_text() {
    let merges = ["< /", "</ s", "</s >", "< E", "<E O", "<EO T", "<EOT >"];
    let pieces = ["</", "</s", "</s>", "<E", "<EO", "<EOT", "<EOT>"];
    for kind in [1, 3] {
        let types: Vec<i32> = [vec![1; MORE as usize], vec![kind; pieces.len()]].concat();
        let merges: &[&str] = if kind == 1 { &merges } else { &[] };
        let tokenizer = tokenizer(Vocabulary { types, ..byte_level("gpt-2", &pieces, merges) });
        let expected: &[u32] = if kind == 1 { &[] } else { &[MORE + 2, MORE + 6] };
        assert_eq!(tokenizer.ends(), expected, "{kind}");
        if kind == 1 {
            assert_eq!(tokenizer.decode(&[MORE + 2, MORE + 6]), "</s><EOT>");
            assert!(!tokenizer.encode("</s>", PARSED).unwrap().contains(&(MORE + 2)));
        }
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

/// Files of Gemma 4 say that no token is added, and models answer nonsense without it.
#[test]
fn texts_of_gemma_4_begin_with_bos_whatever_the_file_says() {
    let files =
        [("gemma4", None), ("gpt2", Some("gemma4")), ("gpt2", Some("granite-embed-multi-311m"))];
    for (model, pre) in files {
        for add_bos in [None, Some(false), Some(true)] {
            let file =
                Vocabulary { model: model.into(), pre: pre.map(String::from), add_bos, ..gemma() };
            assert_eq!(tokenizer(file).encode("ab", SPECIAL).unwrap()[0], 1, "{model} {pre:?}");
        }
    }
    let pre = Some("sarvam-moe".into());
    let file = Vocabulary { model: "gpt2".into(), pre, ..gemma() };
    let [bare, begun] = [None, Some(true)].map(|add_bos| Vocabulary { add_bos, ..file.clone() });
    let ids = tokenizer(bare).encode("ab 日", SPECIAL).unwrap();
    assert_eq!(tokenizer(begun).encode("ab 日", SPECIAL).unwrap(), [&[1], &ids[..]].concat());
    assert_eq!(ids, tokenizer(gemma()).encode("ab 日", PLAIN).unwrap());
}

#[test]
fn special_tokens_beyond_the_vocabulary_are_ignored_with_a_note() {
    let file = Vocabulary {
        pad: Some(60_000),
        eos: Some(70_000),
        eot: Some(u32::MAX),
        ..byte_level("gpt-2", &["<s>"], &[])
    };
    let tokenizer = tokenizer(Vocabulary { bos: Some(MORE), ..file });
    let specials = (tokenizer.bos(), tokenizer.eos(), tokenizer.pad());
    assert_eq!(specials, (Some(MORE), None, None));
    assert_eq!(tokenizer.ends(), [0u32; 0]);
    let notes =
        ["eos_token_id is 70000", "eot_token_id is 4294967295", "padding_token_id is 60000"];
    let notes = notes.map(|note| {
        format!("tokenizer.ggml.{note}, and the vocabulary has 258 tokens; it is ignored")
    });
    assert_eq!(tokenizer.notes(), notes);
}

#[test]
fn files_of_llama_may_leave_out_its_special_tokens() {
    let base = || Vocabulary { bos: None, eos: None, unk: None, ..sentence_piece() };
    let named = tokenizer(sentence_piece());
    let untyped = Vocabulary { types: Vec::new(), ..base() };
    let beyond = Vocabulary { bos: Some(999), eos: Some(999), ..sentence_piece() };
    for (file, notes) in [(base(), 0), (untyped, 0), (beyond, 2)] {
        let found = tokenizer(file);
        assert_eq!((found.bos(), found.eos(), found.ends()), (Some(1), Some(2), &[2u32][..]));
        assert_eq!(found.encode("ab", SPECIAL), named.encode("ab", SPECIAL));
        assert_eq!(found.notes().len(), notes);
    }
    // Ordinary pieces are not special because of their ids.
    let mut pieces = base();
    for (id, piece) in ["x", "y", "z"].into_iter().enumerate() {
        (pieces.tokens[id], pieces.types[id]) = (piece.into(), 1);
    }
    let found = tokenizer(pieces);
    assert_eq!((found.bos(), found.eos(), found.ends()), (None, None, &[0u32; 0][..]));
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

/// The special tokens that a file of model `llama` leaves out are special as well if it has no types.
#[test]
fn default_special_tokens_are_parsed_and_hidden() {
    let tokenizer = tokenizer(Vocabulary {
        model: "llama".into(),
        tokens: strings(&["<unk>", "<s>", "</s>", "a"]),
        scores: vec![0.0; 4],
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    });
    assert_eq!(tokenizer.encode("<s>a</s>", PARSED).unwrap(), [1, 3, 2]);
    assert_eq!(tokenizer.decode(&[0, 1, 3, 2]), "a");
    assert!(tokenizer.is_control(1) && tokenizer.is_control(2));
}

// --- there and back ------------------------------------------------------------------------------

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
                Decode { stops: vec!["STÖP".to_owned()].into(), ..Decode::default() },
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
    let mut decoder = Decoder::new(
        &tokenizer,
        Decode { stops: vec!["abcd".to_owned()].into(), ..Decode::default() },
    );
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

// --- SentencePiece -------------------------------------------------------------------------------

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

/// An unknown character costs 10 more than the worst piece, and a token of users a tenth less than the best piece for
/// each of its bytes, where normalization makes one.
#[test]
fn unigrams_weigh_what_they_do_not_know() {
    let vocabulary = |tokens: &[&str], scores: &[f32], types: &[i32]| Vocabulary {
        model: "t5".into(),
        tokens: strings(tokens),
        types: types.to_vec(),
        scores: scores.to_vec(),
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    };
    // `a` and an unknown one against `ab`, whose score is the worst: -1 against a's score and -11.
    for (score, expected) in [(10.5, vec![1, 0]), (9.5, vec![2])] {
        let full = tokenizer(vocabulary(&["<unk>", "a", "ab"], &[0.0, score, -1.0], &[2, 1, 1]));
        assert_eq!(full.encode("ab", PLAIN).unwrap(), expected, "{score}");
    }
    // The token has 3 * 2 - 0.1, its characters 2 + 2 and the last one's.
    for (score, expected) in [(1.95, vec![1, 2, 3]), (1.85, vec![4])] {
        let tokens = ["<unk>", "<", "u", ">", "<u>"];
        let full = tokenizer(Vocabulary {
            charsmap: rules(1, b"\0<u>\0"),
            ..vocabulary(&tokens, &[0.0, 2.0, 2.0, score, 0.0], &[2, 1, 1, 1, 4])
        });
        assert_eq!(full.encode("a", PLAIN).unwrap(), expected, "{score}");
    }
    // No piece at all: one unknown token.
    let none = tokenizer(vocabulary(&["<unk>", "<s>"], &[0.0, 0.0], &[2, 3]));
    assert_eq!(none.encode("日本", PLAIN).unwrap(), [0]);
    // Of equal pieces the first counts; pieces may be long, and there may be more characters than tokens.
    let long = "b".repeat(512);
    let tokens = ["<unk>", "é日", "é日", long.as_str(), "b"];
    let full = tokenizer(vocabulary(&tokens, &[0.0, -1.0, 5.0, -2.0, -1.0], &[2, 1, 1, 1, 1]));
    let text = format!("é日{long}bé");
    assert_eq!(full.encode(&text, PLAIN).unwrap(), [1, 4, 3, 0]);
    let spans = full.spans(&text).unwrap();
    let places: Vec<_> = spans.into_iter().map(|span| span.bytes).collect();
    assert_eq!(places, [0..5, 5..6, 6..518, 518..520]);
}

/// Words are cut apart only where no token goes on behind a space within it.
#[test]
fn tokens_may_go_on_behind_a_space() {
    let made = |more: &str| {
        tokenizer(Vocabulary {
            model: "llama".into(),
            tokens: strings(&["<unk>", "▁", "a", "▁a", more]),
            scores: vec![0.0, -9.0, -9.0, -1.0, -2.0],
            types: vec![2, 1, 1, 1, 1],
            add_space_prefix: Some(false),
            ..Vocabulary::default()
        })
    };
    assert_eq!(made("▁a▁a").encode("a a a a", PLAIN).unwrap(), [2, 4, 3]);
    assert_eq!(made("a▁a").encode("a a a", PLAIN).unwrap(), [4, 3]);
    assert_eq!(made("▁▁").encode("a  a   a", PLAIN).unwrap(), [2, 1, 3, 4, 3]);
    // One unknown token for a run of what is unknown.
    assert_eq!(made("b").encode("aé é日 a", PLAIN).unwrap(), [2, 0, 1, 0, 3]);
}

// --- WordPiece -----------------------------------------------------------------------------------

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

// --- hostile vocabularies ------------------------------------------------------------------------

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
        (spm, |v| (v.add_bos, v.bos) = (Some(true), Some(1 << 20)), "bos_token_id is 1048576"),
        (spm, |v| (v.add_eos, v.eos) = (Some(true), Some(u32::MAX)), "eos_token_id is 4294967295"),
        (spm, |v| (v.add_sep, v.sep) = (Some(true), Some(999)), "seperator_token_id is 999"),
        (bytes, |v| (v.add_bos, v.bos) = (Some(true), None), "bos_token_id is absent"),
        (bytes, |v| (v.add_eos, v.eos) = (Some(true), None), "eos_token_id is absent"),
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
