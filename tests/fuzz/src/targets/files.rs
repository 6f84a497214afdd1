//! Files other than models: checkpoints, importance matrices, base logits, saved sequences, settings.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

use bilayer_cli::SettingsChecker;
use bilayer_convert::convert::Convert;
use bilayer_convert::imatrix::Imatrix;
use bilayer_engine::session::{Run, SavedSequence, Session, Wanted};
use bilayer_measure::perplexity::Base;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::models::{model, session};

thread_local! {
    static FOLDER: TempDir = TempDir::new().expect("a folder for files");
    static SESSION: RefCell<Session> = RefCell::new(session(model()).expect("a session"));
    static CHECKER: RefCell<SettingsChecker> = RefCell::default();
}

/// Converts the folder, if it is a checkpoint.
fn convert(folder: &Path) {
    let convert = Convert { threads: Some(1), name: Some("fuzz".to_owned()), ..Convert::default() };
    let Ok(plan) = convert.plan(folder) else { return };
    let Ok(bytes) = plan.to_bytes() else { return };
    let file = bilayer_gguf::File::from_bytes("converted", bytes).expect("what was written");
    bilayer_models::read(&file).expect("what was planned is a model");
}

fn put(name: &str, bytes: &[u8]) {
    FOLDER.with(|folder| std::fs::write(folder.path().join(name), bytes).expect("a file"));
}

/// Most bytes of weights, which are zeros.
const WEIGHTS_MAX: u64 = 1 << 16;

/// A file of weights with this header and as many zeros as it lists.
fn weights(header: &str) -> Vec<u8> {
    let parsed: Value = serde_json::from_str(header).unwrap_or_default();
    let tensors = parsed.as_object().into_iter().flatten();
    let ends = tensors.filter_map(|(_, tensor)| tensor.pointer("/data_offsets/1")?.as_u64());
    let zeros = ends.max().unwrap_or(0).min(WEIGHTS_MAX) as usize;
    let start = (header.len() as u64).to_le_bytes();
    [&start[..], header.as_bytes(), &vec![0; zeros]].concat()
}

/// Between the files of a checkpoint.
const NEXT: &str = "\n---\n";

/// A checkpoint: `config.json`, `tokenizer.json`, `tokenizer_config.json`, and the header of its weights.
pub fn checkpoint(data: &[u8]) {
    let all = String::from_utf8_lossy(data);
    let mut files = all.split(NEXT);
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        put(name, files.next().unwrap_or("{}").as_bytes());
    }
    put("model.safetensors", &weights(files.next().unwrap_or("{}")));
    FOLDER.with(|folder| convert(folder.path()));
}

/// A sound checkpoint with `tokenizer.model` of any bytes.
pub fn sentencepiece(data: &[u8]) {
    static FILES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let [config, weights] = FILES.get_or_init(sound);
    put("config.json", config);
    put("model.safetensors", weights);
    put("tokenizer.model", data);
    FOLDER.with(|folder| {
        let _ = std::fs::remove_file(folder.path().join("tokenizer.json"));
        convert(folder.path());
        let _ = std::fs::remove_file(folder.path().join("tokenizer.model"));
    });
}

/// Configuration and weights of a Llama of one layer and eight tokens.
fn sound() -> [Vec<u8>; 2] {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 32, "max_position_embeddings": 64, "num_attention_heads": 2,
        "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "vocab_size": 8, "tie_word_embeddings": true,
    });
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let ffn = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    let norms = ["input_layernorm", "post_attention_layernorm"];
    let matrices = square.iter().chain(&ffn).map(|stem| (format!("layers.0.{stem}"), vec![32, 32]));
    let norms = norms.iter().map(|stem| (format!("layers.0.{stem}"), vec![32]));
    let ends = [("embed_tokens".to_owned(), vec![8, 32]), ("norm".to_owned(), vec![32])];
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (stem, shape) in matrices.chain(norms).chain(ends) {
        let end = at + 2 * shape.iter().product::<u64>();
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [at, end] });
        header.insert(format!("model.{stem}.weight"), entry);
        at = end;
    }
    [config.to_string().into_bytes(), weights(&Value::Object(header).to_string())]
}

/// An importance matrix, in the GGUF format or the older one.
pub fn imatrix(data: &[u8]) {
    let Ok(imatrix) = Imatrix::from_bytes("fuzz", data) else { return };
    for (_, entry) in imatrix.entries() {
        assert_eq!(entry.means().len(), entry.experts() * entry.cols());
    }
}

/// Log-probabilities of a base model: the header, and as many rows as there are.
pub fn kl_base(data: &[u8]) {
    let model = model();
    let Ok(mut base) = Base::new(data, data.len() as u64, model) else { return };
    assert!(base.windows().tokens().iter().all(|&id| (id as usize) < model.config().vocab));
    let mut row = vec![0; Base::<&[u8]>::row_bytes(model.config().vocab)];
    while base.rows(&mut row).is_ok() {}
}

/// A saved sequence with changed bytes and a hash that fits: it is refused, or continues.
pub fn saved(data: &[u8]) {
    static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
    let mut bytes = WHOLE.get_or_init(|| SESSION.with_borrow_mut(whole)).clone();
    for edit in data.as_chunks::<4>().0.iter().take(64) {
        let place = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % bytes.len().max(1);
        match edit[2] % 8 {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, edit[3]),
            _ if bytes.is_empty() => {}
            2 => bytes[place] = edit[3],
            _ => bytes[place] ^= edit[3],
        }
    }
    // FNV-1a, as the format says.
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    bytes.extend(hash.to_le_bytes());
    let (path, length) = (Path::new("fuzz"), bytes.len() as u64);
    let Ok(saved) = SavedSequence::read_from(path, &bytes[..], length, model(), 64) else { return };
    SESSION.with_borrow_mut(|session| {
        let Ok(sequence) = session.restore(&saved) else { return };
        let run = Run { sequence, tokens: &[4], wanted: Wanted::Last };
        if let Ok(logits) = session.step(&[run]) {
            assert!(logits.iter().all(|logit| logit.is_finite()), "logits that are not finite");
        }
        session.close(sequence);
    });
}

/// A sequence of 40 tokens, as written to a file, without the hash.
fn whole(session: &mut Session) -> Vec<u8> {
    let sequence = session.open().expect("a free sequence");
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i % 5).collect();
    session.prefill(sequence, &tokens, &mut |_| true).expect("a small prompt");
    let saved = session.save(sequence).expect("the CPU does not fail");
    session.close(sequence);
    let path = FOLDER.with(|folder| folder.path().join("saved"));
    saved.write(&path).expect("a file");
    let mut bytes = std::fs::read(&path).expect("the file");
    bytes.truncate(bytes.len() - 8);
    bytes
}

/// A settings file, for one of several commands.
pub fn settings(data: &[u8]) {
    let Some((which, text)) = data.split_first() else { return };
    let commands = ["run", "serve", "bench", "perplexity", "embed"];
    let command = commands[usize::from(*which) % commands.len()];
    let typed = ["bilayer", command, "-m", "model.gguf"].map(OsString::from);
    let text = String::from_utf8_lossy(text);
    let _ = CHECKER.with_borrow_mut(|checker| checker.check(&text, &typed));
}
