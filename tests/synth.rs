//! The promise of `synth`: random models run in every type, and their vocabulary tokenizes text.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bilayer_convert::mix::Mix;
use bilayer_convert::synth::{Shape, Sizes, Synth};
use bilayer_engine::Model;
use bilayer_engine::session::{Run, Session, Settings, Wanted};
use bilayer_text::Encode;

/// A small Llama of a mix.
fn model(mix: Mix) -> Model {
    let synth = Synth::new(Shape::find("tiny").unwrap(), mix);
    Model::from_bytes(mix.name, synth.to_bytes().unwrap()).unwrap()
}

#[test]
fn every_type_runs_and_its_logits_differ_from_token_to_token() {
    let pure = bilayer_quant::all().iter().filter_map(|ty| Mix::pure(*ty).ok());
    let mixes: Vec<Mix> = pure.chain([Mix::find("Q4_K_M").unwrap()]).collect();
    assert!(mixes.len() > 25, "{}", mixes.len());
    for mix in mixes {
        let model = model(mix);
        let settings = Settings {
            ctx_size: Some(64),
            ubatch_size: 8,
            placing: bilayer_engine::placement::Placing::cpu(),
            ..Settings::default()
        };
        let mut session = Session::new(&model, settings).unwrap();
        let sequence = session.open().unwrap();
        for tokens in [&[65, 300, 7, 511][..], &[100]] {
            let run = Run { sequence, tokens, wanted: Wanted::Last };
            let logits = session.step(&[run]).unwrap();
            assert!(logits.iter().all(|logit| logit.is_finite()), "{}", mix.name);
            let square = logits.iter().map(|logit| logit * logit).sum::<f32>();
            let deviation = (square / logits.len() as f32).sqrt();
            assert!((0.3..3.0).contains(&deviation), "{}: {deviation}", mix.name);
        }
    }
}

#[test]
fn mixtures_of_experts_and_recurrences_run() {
    let small = Sizes {
        layers: Some(2),
        width: Some(256),
        heads: Some(4),
        kv_heads: Some(2),
        ffn: Some(256),
        vocab: Some(512),
        ..Sizes::default()
    };
    for name in ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-lite", "qwen35-4b", "mamba2-1b"] {
        let shape = Shape::find(name).unwrap().with(small).unwrap();
        let bytes = Synth::new(shape, Mix::find("Q4_K_M").unwrap()).to_bytes().unwrap();
        let model = Model::from_bytes(name, bytes).unwrap();
        let settings = Settings {
            ctx_size: Some(64),
            ubatch_size: 64,
            placing: bilayer_engine::placement::Placing::cpu(),
            ..Settings::default()
        };
        let mut session = Session::new(&model, settings).unwrap();
        let sequence = session.open().unwrap();
        let many: Vec<u32> = (0..40).map(|i| i * 7 % 512).collect();
        for tokens in [&many[..], &[100], &[3, 4]] {
            let run = Run { sequence, tokens, wanted: Wanted::Last };
            let logits = session.step(&[run]).unwrap();
            assert!(logits.iter().all(|logit| logit.is_finite()), "{name}");
            let square = logits.iter().map(|logit| logit * logit).sum::<f32>();
            let deviation = (square / logits.len() as f32).sqrt();
            assert!((0.2..4.0).contains(&deviation), "{name}: {deviation}");
        }
    }
}

#[test]
fn text_round_trips_through_the_vocabulary() {
    for vocab in [259, 3000, 20_000] {
        let sizes = Sizes { vocab: Some(vocab), ..Sizes::default() };
        let shape = Shape::find("tiny").unwrap().with(sizes).unwrap();
        let bytes = Synth::new(shape, Mix::find("Q8_0").unwrap()).to_bytes().unwrap();
        let model = Model::from_bytes("words", bytes).unwrap();
        let tokenizer = model.tokenizer();
        let text = "The rain in Spain, 日本 and \0 too\n";
        let options = Encode { add_special: true, parse_special: false };
        let ids = tokenizer.encode(text, options).unwrap();
        assert_eq!((ids[0], tokenizer.decode(&ids[1..]).as_str()), (vocab - 2, text));
        // Merged tokens are used where possible.
        assert_eq!(ids.len() <= text.len(), vocab > 259, "{vocab}: {ids:?}");
    }
}

#[test]
fn encoders_have_a_vocabulary() {
    let sizes = Sizes { layers: Some(1), vocab: Some(2000), ..Sizes::default() };
    let shape = Shape::find("minilm-l6").unwrap().with(sizes).unwrap();
    let synth = Synth { hollow: true, ..Synth::new(shape, Mix::find("Q8_0").unwrap()) };
    let file = bilayer_gguf::File::from_bytes("words", synth.to_bytes().unwrap()).unwrap();
    let words = bilayer_engine::vocabulary(file.metadata()).unwrap();
    let tokenizer = bilayer_text::Tokenizer::new(words).unwrap();
    let options = Encode { add_special: true, parse_special: false };
    let ids = tokenizer.encode("Hello, world!", options).unwrap();
    assert_eq!((ids[0], ids[ids.len() - 1]), (2, 3), "[CLS] and [SEP] in {ids:?}");
    assert!(!ids.contains(&1), "[UNK] in {ids:?}");
    assert_eq!(tokenizer.decode(&ids), "hello , world !");
}
