//! What a tokenizer says of its vocabulary, and what files leave unsaid.

use bilayer_text::{Encode, Error, Tokenizer, Vocabulary};

use super::vocabularies::{
    MORE, byte_level, sentence_piece, strings, tokenizer, unigrams, word_piece,
};

const PLAIN: Encode = Encode { add_special: false, parse_special: false };
const SPECIAL: Encode = Encode { add_special: true, parse_special: false };
const PARSED: Encode = Encode { add_special: false, parse_special: true };

#[test]
fn a_tokenizer_says_what_its_vocabulary_does() {
    let mut vocabulary = Vocabulary {
        bos: Some(10),
        eos: Some(11),
        sep: Some(12),
        pad: Some(13),
        add_eos: Some(true),
        add_sep: Some(true),
        ..byte_level("gpt-2", &["ab", "<|im_end|>", "<x>"], &[])
    };
    vocabulary.types = [vec![1; MORE as usize + 1], vec![3, 4]].concat();
    let full = tokenizer(vocabulary);
    assert_eq!((full.bos(), full.eos()), (Some(10), Some(11)));
    assert_eq!((full.sep(), full.pad()), (Some(12), Some(13)));
    assert_eq!((full.adds_bos(), full.adds_eos(), full.adds_sep()), (false, true, true));
    assert_eq!(full.len(), MORE as usize + 3);
    // An end is one by its key or by its name.
    assert_eq!(full.ends(), [11, MORE + 1]);
    assert_eq!([10, 11, MORE, MORE + 1].map(|id| full.is_end(id)), [false, true, false, true]);
    assert_eq!([MORE, MORE + 1, MORE + 2].map(|id| full.is_control(id)), [false, true, false]);
    assert_eq!(full.controls().collect::<Vec<_>>(), [("<|im_end|>", MORE + 1)]);
    let spelled = [Some("ab"), Some("<|im_end|>"), Some("<x>"), None];
    let spelled = spelled.map(|text| text.map(str::as_bytes));
    assert_eq!([0, 1, 2, 3].map(|at| full.piece(MORE + at)), spelled);
    let texts = [spelled[0], None, spelled[2], None];
    assert_eq!([0, 1, 2, 3].map(|at| full.text(MORE + at)), texts);
    assert_eq!(format!("{full:?}"), r#"Tokenizer { model: "byte pairs", len: 260 }"#);

    let empty = tokenizer(byte_level("gpt-2", &[], &[]));
    assert_eq!((empty.bos(), empty.eos(), empty.sep(), empty.pad()), (None, None, None, None));
    assert_eq!((empty.adds_bos(), empty.adds_eos(), empty.adds_sep()), (false, false, false));
    assert!(empty.ends().is_empty() && empty.controls().next().is_none());
    let kinds = [sentence_piece(), unigrams(), word_piece()].map(|v| format!("{:?}", tokenizer(v)));
    let [pieces, words] = ["SentencePiece", "WordPiece"];
    assert!(kinds[0].contains(pieces) && kinds[1].contains(pieces) && kinds[2].contains(words));
}

/// A vocabulary without a tokenizer spells its ids.
#[test]
fn ids_without_a_tokenizer_are_spelled() {
    let ids = tokenizer(Vocabulary {
        model: "no_vocab".into(),
        tokens: strings(&["▁one", "two"]),
        ..Vocabulary::default()
    });
    assert_eq!(ids.encode("one", PLAIN), Err(Error::NoTokenizer));
    assert_eq!(ids.spans("one"), Err(Error::NoTokenizer));
    assert!(ids.encode("", PLAIN).unwrap().is_empty());
    assert_eq!(ids.decode(&[0, 1]), " onetwo");
    assert!(format!("{ids:?}").contains("ids"));
}

/// Where the file does not say: `llama` begins with its first token, `t5` ends with its last one, and byte-level
/// vocabularies are as their pre-tokenizer is.
#[test]
fn texts_begin_and_end_as_the_model_does() {
    let begins = ["llama-bpe", "llama3", "falcon3", "pixtral", "lfm2", "tekken", "chameleon"];
    let others = ["gpt-2", "mpt", "dbrx", "glm4", "qwen2", "youtu", "minicpm5", "deepseek-v3"];
    let byte_pairs = |pre: &&str| byte_level(pre, &[], &[]);
    let gemma =
        Vocabulary { model: "gemma4".into(), merges: strings(&["a b"]), ..sentence_piece() };
    let with_bos =
        [vec![sentence_piece(), gemma], begins.iter().map(byte_pairs).collect()].concat();
    let with_neither = others.iter().map(byte_pairs).collect();
    for (vocabularies, expected) in [
        (with_bos, (true, false)),
        (vec![unigrams()], (false, true)),
        (with_neither, (false, false)),
    ] {
        for vocabulary in vocabularies {
            let pre = vocabulary.pre.clone();
            let tokens = Vocabulary { bos: Some(5), eos: Some(6), ..vocabulary.clone() };
            let full = tokenizer(tokens);
            assert_eq!((full.adds_bos(), full.adds_eos()), expected, "{full:?} {pre:?}");
            let ids = full.encode("", SPECIAL).unwrap();
            let both = [expected.0.then_some(5), expected.1.then_some(6)];
            assert_eq!(ids, both.into_iter().flatten().collect::<Vec<_>>());
            // Files of `llama` may leave out their first and last token.
            let is_llama = vocabulary.model == "llama";
            let none = tokenizer(Vocabulary { bos: None, eos: None, ..vocabulary });
            assert_eq!((none.adds_bos(), none.adds_eos()), (is_llama, false), "{none:?} {pre:?}");
        }
    }
}

/// BERT's texts are between two tokens, by their keys or their names, and its separator ends the first of a pair.
#[test]
fn words_are_between_the_tokens_that_the_file_names() {
    type Change = fn(&mut Vocabulary<'_>);
    // (what the file says, the tokens around a text, whether another one is between two texts)
    let cases: [(Change, [u32; 2], bool); 7] = [
        (|_| (), [1, 2], true),
        (|v| (v.bos, v.eos) = (Some(3), Some(4)), [3, 4], true),
        (|v| (v.bos, v.eos, v.cls, v.sep) = (Some(3), Some(4), Some(4), Some(5)), [4, 5], false),
        (|v| v.sep = Some(5), [1, 5], false),
        (|v| (v.sep, v.add_sep) = (Some(5), Some(true)), [1, 5], false),
        (|v| v.add_sep = Some(false), [1, 2], false),
        (|v| (v.eos, v.add_sep) = (Some(4), Some(true)), [1, 4], true),
    ];
    for (at, (change, expected, adds_sep)) in cases.into_iter().enumerate() {
        let mut vocabulary = word_piece();
        change(&mut vocabulary);
        let words = tokenizer(vocabulary);
        assert_eq!(words.encode("", SPECIAL).unwrap(), expected, "{at}");
        assert_eq!((words.adds_bos(), words.adds_eos()), (true, true), "{at}");
        assert_eq!(words.adds_sep(), adds_sep, "{at}");
    }
}

/// Without types, the tokens that the file names are control tokens and all others are text.
#[test]
fn tokens_without_types_are_text_or_named() {
    let named = Vocabulary {
        bos: Some(MORE),
        eot: Some(MORE + 1),
        eom: Some(MORE + 2),
        unk: Some(MORE + 3),
        mask: Some(MORE + 4),
        cls: Some(MORE + 5),
        ..byte_level("gpt-2", &["A0", "A1", "A2", "A3", "A4", "A5", "A6"], &[])
    };
    let full = tokenizer(named);
    let controls: Vec<(&str, u32)> = full.controls().collect();
    let names = ["A0", "A1", "A2", "A3", "A4", "A5"];
    assert_eq!(controls, names.into_iter().zip(MORE..).collect::<Vec<_>>());
    assert_eq!(full.ends(), [MORE + 1, MORE + 2]);
    let visible = MORE + 6;
    assert_eq!(full.decode(&[MORE, MORE + 3, visible, MORE + 5, 65]), "A6A");
}

/// Only tokens of type 6 are bytes, and those of types 2, 3 and 4 are spelled as they are; 0 is as 1.
#[test]
fn tokens_are_of_the_types_of_the_format() {
    let tokens = ["▁", "▁a", "▁b", "c", "d", "e", "<0x41>", "f"];
    let full = tokenizer(Vocabulary {
        model: "llama".into(),
        tokens: strings(&tokens),
        types: vec![1, 0, 2, 3, 4, 5, 6, 1],
        scores: vec![0.0; tokens.len()],
        add_space_prefix: Some(false),
        ..Vocabulary::default()
    });
    let pieces: Vec<&[u8]> = (0..8).map(|id| full.piece(id).unwrap()).collect();
    let spelled = [" ", " a", "▁b", "c", "d", "e", "A", "f"].map(str::as_bytes);
    assert_eq!(pieces, spelled);
    let hidden: Vec<u32> = (0..8).filter(|&id| full.text(id).is_none()).collect();
    assert_eq!(hidden, [2, 3]);
    assert_eq!(full.encode("A a", PLAIN).unwrap(), [6, 1]);
    assert_eq!(full.encode("dc", PARSED).unwrap(), [4, 3]);
    // There is an unknown token by type, and a control token is none.
    assert_eq!(full.encode("dc", PLAIN).unwrap(), [4, 2]);
}

/// Phi-3's control tokens take the white space behind them, but for those after which it is kept everywhere.
#[test]
fn white_space_after_special_tokens_goes_with_them_in_phi_3() {
    for (name, strips) in [("Phi-3 mini", true), ("my phi3.5", true), ("Phi-2", false)] {
        let mut vocabulary = byte_level("gpt-2", &["<|end|>", "<s>", "<u>"], &[]);
        vocabulary.types = [vec![1; MORE as usize], vec![3, 3, 4]].concat();
        vocabulary.name = name.into();
        let full = tokenizer(vocabulary);
        let space = u32::from(b' ');
        let kept: &[u32] = if strips { &[] } else { &[space, 10] };
        let expected = [&[MORE][..], kept, &[97, MORE + 1, space, 97]].concat();
        assert_eq!(full.encode("<|end|> \na<s> a", PARSED).unwrap(), expected, "{name}");
        let spans = full.spans("b<u> \na").unwrap();
        let places: Vec<_> = spans.iter().map(|span| (span.id, span.bytes.clone())).collect();
        let mut expected = vec![(98, 0..1), (MORE + 2, 1..4), (97, 6..7)];
        if !strips {
            expected.splice(2..2, [(space, 5..5), (10, 6..6)]);
        }
        assert_eq!(places, expected, "{name}");
    }
}

/// Words that are tokens skip merging in some vocabularies.
#[test]
fn whole_words_are_tokens_where_the_maker_says() {
    let whole = ["llama-bpe", "llama3", "pixtral", "glm4", "glm5", "tekken", "youtu", "minicpm5"];
    let others = ["gpt-2", "dbrx", "qwen2", "mpt", "gpt-4o", "deepseek-v3"];
    for (names, is_whole) in [(&whole[..], true), (&others[..], false)] {
        for pre in names {
            let full = tokenizer(byte_level(pre, &["abc"], &[]));
            let expected: &[u32] = if is_whole { &[MORE] } else { &[97, 98, 99] };
            assert_eq!(full.encode("abc", PLAIN).unwrap(), expected, "{pre}");
        }
    }
}

/// A vocabulary that spells characters needs an unknown token, or a token for each byte that UTF-8 has.
#[test]
fn every_text_has_tokens() {
    let bytes = |missing: &[u8]| {
        let bytes = (0..0xF5).filter(|byte| !missing.contains(byte));
        let tokens = bytes.map(|byte: u8| format!("<0x{byte:02X}>").into());
        Vocabulary {
            model: "gemma4".into(),
            tokens: tokens.chain(strings(&["a", "b", "ab"])).collect(),
            merges: strings(&["a b"]),
            ..Vocabulary::default()
        }
    };
    let full = tokenizer(bytes(&[0xC0, 0xC1]));
    assert_eq!(full.encode("abé", PLAIN).unwrap(), [0xF3 + 2, 0xC3 - 2, 0xA9]);
    for missing in [0, b'A', 0xC2, 0xF4] {
        let vocabulary = bytes(&[missing]);
        let error = Tokenizer::new(vocabulary.clone()).unwrap_err().to_string();
        assert!(error.contains("unknown_token_id is absent"), "{missing}: {error}");
        // What cannot be spelled is unknown, once for a run of it.
        let known = tokenizer(Vocabulary { unk: Some(1), ..vocabulary });
        let text = ["\u{0}\u{0}", "AA", "\u{80}\u{80}", "\u{10FFFF}\u{10FFFF}"];
        let at = [0, b'A', 0xC2, 0xF4].iter().position(|byte| *byte == missing).unwrap();
        assert_eq!(known.encode(text[at], PLAIN).unwrap(), [1], "{missing}");
    }
}
