//! Model files: the reader, configuration and graph, and the whole load to the first token.

use std::sync::OnceLock;

use bilayer_engine::Model;
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Run, Session, Settings, Wanted};
use bilayer_gguf::{Array, File, Metadata, NewTensor, Strings, Value, to_bytes};
use bilayer_quant::Type;
use bilayer_quant::private::KEY;
use bytes::Bytes;

/// Any bytes as a model file: directory, configuration and graph, and what is accepted can be written and read again.
pub fn gguf(data: &[u8]) {
    let Ok(file) = File::from_bytes("fuzz", Bytes::copy_from_slice(data)) else { return };
    let _ = bilayer_models::read(&file);
    let tensors = file.tensors().iter().map(|tensor| NewTensor::copied(&file, tensor));
    let Ok(again) = to_bytes(file.metadata(), tensors) else { return };
    let again = File::from_bytes("again", again).expect("what was written is read");
    // NaN is not equal to itself. The writer makes the list of types outside of GGUF from the tensors.
    let keys = |file: &File| file.metadata().iter().filter(|(key, _)| *key != KEY).count();
    assert_eq!(keys(&again), keys(&file));
    assert_eq!(again.tensors().len(), file.tensors().len());
}

/// Most layers of a graph that is made.
const LAYERS_MAX: usize = 64;

/// A valid model with edits: each is a place, a kind and a value.
pub fn gguf_edits(data: &[u8]) {
    let Some((which, edits)) = data.split_first() else { return };
    let architectures = bilayer_models::all();
    let architecture = architectures[usize::from(*which) % architectures.len()];
    let mut metadata = (architecture.tiny)();
    let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
    for edit in edits.chunks_exact(7) {
        let number = u32::from_le_bytes([edit[2], edit[3], edit[4], edit[5]]);
        let key = &keys[usize::from(edit[0]) % keys.len()];
        match edit[1] % 9 {
            0 => drop(metadata.remove(key)),
            1 => metadata.set(key, number),
            2 => metadata.set(key, f32::from_bits(number)),
            3 => metadata.set(key, number.to_string()),
            4 => metadata.set(key, Value::Array(Array::U32(vec![number; usize::from(edit[6])]))),
            5 => metadata.set(key, Value::Array(Array::F32(vec![f32::from_bits(number); 3]))),
            6 => metadata.set(key, u64::from(number) << (edit[6] % 33)),
            7 => metadata.set(key, number as i32),
            _ => metadata.set(key, number % 2 == 0),
        }
    }
    let config = bilayer_models::config(&metadata);
    let Ok(config) = config else { return };
    // Time grows with the layers, of which thousands take seconds here.
    if config.layers.len() > LAYERS_MAX {
        return;
    }
    let outline = bilayer_models::Outline::new(Type::Q8_0, &[]);
    let _ = bilayer_models::record(&config, &outline);
}

/// The smallest file of an architecture: weights of one value, and a vocabulary of bytes.
pub fn smallest(which: usize) -> Bytes {
    static FILES: OnceLock<Vec<OnceLock<Bytes>>> = OnceLock::new();
    let architectures = bilayer_models::all();
    let files = FILES.get_or_init(|| architectures.iter().map(|_| OnceLock::new()).collect());
    let which = which % architectures.len();
    files[which].get_or_init(|| made((architectures[which].tiny)())).clone()
}

fn made(mut metadata: Metadata) -> Bytes {
    let mut config = bilayer_models::config(&metadata).expect("the smallest metadata are valid");
    let outline = bilayer_models::Outline::new(Type::F32, &[]);
    // A file has all tensors that its model needs in any context.
    let longest = config.context;
    for context in [1, longest] {
        config.context = context;
        bilayer_models::record(&config, &outline).expect("and so is their graph");
    }
    let letters = (0..config.vocab).map(|id| match id {
        0 => "<unk>".to_owned(),
        1 => "<s>".to_owned(),
        2 => "</s>".to_owned(),
        id => char::from_u32(32 + id as u32).map_or_else(String::new, String::from),
    });
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.tokens", letters.collect::<Strings>());
    metadata.set("tokenizer.ggml.scores", vec![0.0f32; config.vocab]);
    for (key, id) in [("unknown", 0u32), ("bos", 1), ("eos", 2)] {
        metadata.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let tensors = outline.tensors().into_iter().enumerate().map(|(at, (name, entry))| {
        let count = entry.shape.iter().product::<u64>() as usize;
        let values: Vec<f32> = (0..count).map(|i| ((i * 7 + at) % 13) as f32 / 16.0).collect();
        let cols = *entry.shape.last().expect("a tensor has a dimension") as usize;
        let row_bytes = entry.ty.row_bytes(cols).expect("whole blocks");
        let mut bytes = vec![0; count / cols * row_bytes];
        entry.ty.quantize(&values, None, &mut bytes).expect("finite values");
        NewTensor::bytes(&name, entry.ty, &entry.shape, bytes)
    });
    to_bytes(&metadata, tensors.collect::<Vec<_>>()).expect("a valid file")
}

/// The smallest model of the first architecture.
pub fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::from_bytes("smallest", smallest(0)).expect("a valid model"))
}

/// A session on one thread, with room for 64 tokens.
pub fn session(model: &Model) -> Result<Session, bilayer_engine::Error> {
    let settings = Settings {
        threads: Some(1),
        ctx_size: Some(64),
        ubatch_size: 16,
        placing: Placing::cpu(),
        ..Settings::default()
    };
    Session::new(model, settings)
}

/// A model file with changed bytes, from opening it to the first token: an error, or finite logits.
pub fn first_token(data: &[u8]) {
    let Some((&[which, keep], edits)) = data.split_first_chunk() else { return };
    let mut bytes = smallest(usize::from(which)).to_vec();
    // Half of the files are whole.
    if keep >= 128 {
        bytes.truncate(bytes.len() * usize::from(keep - 128) / 128);
    }
    for edit in edits.as_chunks::<4>().0.iter().take(64) {
        let place = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize;
        if let Some(byte) = bytes.get_mut(place) {
            *byte ^= edit[3];
        }
    }
    let Ok(model) = Model::from_bytes("fuzz", bytes.into()) else { return };
    let Ok(mut session) = session(&model) else { return };
    let Ok(sequence) = session.open() else { return };
    let tokens = [1, 2, 3].map(|id| id.min(model.config().vocab as u32 - 1));
    let run = Run { sequence, tokens: &tokens, wanted: Wanted::Last };
    if let Ok(logits) = session.step(&[run]) {
        assert!(logits.iter().all(|logit| logit.is_finite()), "logits that are not finite");
    }
}
