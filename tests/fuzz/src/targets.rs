//! One function per kind of hostile input. Each takes any bytes and must return; `tests/reliability.rs` runs them on the
//! inputs in `seeds` and `findings`.

use bilayer_gguf::{Array, File, NewTensor, Value, to_bytes};
use bilayer_quant::Type;
use bilayer_text::chat::{Inputs, Template};
use bilayer_text::{Encode, Tokenizer, Vocabulary};
use serde_json::json;

/// A target: its name, and what runs an input.
pub type Target = (&'static str, fn(&[u8]));

/// The functions by name.
pub const TARGETS: &[Target] = &[
    ("gguf", gguf),
    ("gguf_edits", gguf_edits),
    ("template", template),
    ("tokenizer", tokenizer),
    ("quant", quant),
];

/// Any bytes as a model file: directory, configuration and graph, and what is accepted can be written and read again.
pub fn gguf(data: &[u8]) {
    let Ok(file) = File::from_bytes("fuzz", bytes::Bytes::copy_from_slice(data)) else { return };
    let _ = bilayer_models::read(&file);
    let tensors = file.tensors().iter().map(|tensor| NewTensor::copied(&file, tensor));
    let Ok(again) = to_bytes(file.metadata(), tensors) else { return };
    let again = File::from_bytes("again", again).expect("what was written is read");
    // NaN is not equal to itself.
    assert_eq!(again.metadata().len(), file.metadata().len());
    assert_eq!(again.tensors().len(), file.tensors().len());
}

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
    let outline = bilayer_models::Outline::new(Type::Q8_0, &[]);
    let _ = bilayer_models::record(&config, &outline);
}

/// Pieces of templates.
const PIECES: &[&str] = &[
    "{{ ",
    " }}",
    "{% ",
    " %}",
    "for m in messages",
    "endfor",
    "if ",
    "elif ",
    "else",
    "endif",
    "set ns = namespace(x=1)",
    "set ns.x = ",
    "ns.x",
    "m",
    "m.content",
    "m['role']",
    " ~ ",
    " + ",
    " * ",
    " - ",
    " / ",
    " // ",
    " % ",
    " ** ",
    "|trim",
    "|length",
    "|list",
    "|join(ns.x)",
    "|replace('a', ns.x)",
    "|indent(9)",
    "|tojson",
    "|string",
    "|sort",
    "|reverse",
    "|batch(2)",
    "|slice(3)",
    "|format(ns.x)",
    "|map('upper')",
    "|select",
    "|unique",
    "|sum(start=ns.x)",
    "|first",
    "|last",
    "|items",
    "|default(ns.x)",
    ".split('a')",
    ".strip()",
    ".replace('a', 'bb')",
    ".join(ns.x)",
    ".items()",
    ".format(ns.x)",
    "[::-1]",
    "[1:]",
    "[0]",
    "[-1]",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    ", ",
    ": ",
    "'a%s{}'",
    "'ab'",
    "1",
    "99999999999",
    "0.5",
    "range(9)",
    "range(99999)",
    "messages",
    "loop",
    "loop.index",
    "loop.changed(ns.x)",
    "loop.cycle(1, ns.x)",
    "loop(m)",
    " recursive",
    "macro f(a, b=ns.x)",
    "endmacro",
    "f(ns.x)",
    "call f(1)",
    "endcall",
    "caller()",
    "filter upper",
    "endfilter",
    "set y",
    "endset",
    "y",
    "break",
    "continue",
    "with z = ns.x",
    "endwith",
    "z",
    "block b",
    "endblock",
    "self.b()",
    "raise_exception(ns.x)",
    "strftime_now(ns.x)",
    "dict(a=ns.x)",
    "namespace(b=ns.x)",
    " in ",
    " == ",
    " < ",
    " is eq(ns.x)",
    " is defined",
    " not ",
    " and ",
    " or ",
    " if ",
    " else ",
    "text\n",
    "{# c #}",
    "-%}",
    "{%- ",
    "*ns.x",
    "**ns.x",
    "autoescape true",
    "endautoescape",
    "do ",
    "include 'chat'",
    "import 'chat' as i",
    "extends 'chat'",
];

/// Templates: pieces of the language in any order, or the bytes as they are. It must end within its limits.
pub fn template(data: &[u8]) {
    let source = match data.split_first() {
        Some((0, rest)) => String::from_utf8_lossy(rest).into_owned(),
        _ => data.iter().map(|byte| PIECES[usize::from(*byte) % PIECES.len()]).collect(),
    };
    let messages = [
        json!({ "role": "user", "content": "Hello, you.\nHow are you?" }),
        json!({ "role": "assistant", "content": "a%s{}", "tool_calls": [{ "id": [1, 2.5, null] }] }),
    ];
    if let Ok(template) = Template::new("fuzz", &source) {
        let _ = template.render(&Inputs::new(&messages));
    }
}

/// A vocabulary from bytes, then the rest as text: decoding gives back what was encoded, or an error comes before.
pub fn tokenizer(data: &[u8]) {
    let Some((&[kind, count, flags], rest)) = data.split_first_chunk() else { return };
    let count = usize::from(count) + 1;
    let text = String::from_utf8_lossy(rest);
    let mut tokens: Vec<_> = (0..=255).map(|byte| format!("<0x{byte:02X}>").into()).collect();
    let words = text.split('\n').take(count);
    tokens.extend(words.map(|word| word.to_owned().into()));
    let len = tokens.len();
    let special = |bit: u8| (flags & bit != 0).then(|| (usize::from(flags) % len) as u32);
    let types = match flags & 1 {
        0 => Vec::new(),
        _ => (0..len)
            .map(|at| {
                if at < 256 {
                    6
                } else {
                    1 + (rest[at % rest.len().max(1)..].first().copied().unwrap_or(0) % 6) as i32
                }
            })
            .collect(),
    };
    let vocabulary = Vocabulary {
        model: ["llama", "gpt2", "gemma4", "bert", "no_vocab", "odd"][usize::from(kind) % 6]
            .to_owned(),
        pre: Some("llama-bpe".to_owned()),
        scores: (0..len).map(|at| -(at as f32)).collect(),
        types,
        bos: special(2),
        eos: special(4),
        unk: special(8),
        sep: special(16),
        add_bos: Some(flags & 32 != 0),
        add_space_prefix: Some(flags & 64 != 0),
        tokens,
        ..Vocabulary::default()
    };
    let Ok(tokenizer) = Tokenizer::new(vocabulary) else { return };
    let Ok(ids) = tokenizer.encode(&text, Encode::default()) else { return };
    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.len()));
    let _ = tokenizer.decode(&ids);
}

/// Blocks of any bytes and any floats through every type: sizes hold, and what is finite stays within the type's error.
pub fn quant(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else { return };
    let types = bilayer_quant::all();
    let ty = types[usize::from(*which) % types.len()];
    let weights = ty.block_weights;
    let Ok(row_bytes) = ty.row_bytes(weights) else { return };
    let mut block = vec![0; row_bytes];
    block.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    let mut values = vec![0.0; weights];
    let _ = ty.dequantize(&block, &mut values);
    let floats =
        rest.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    values.iter_mut().zip(floats).for_each(|(to, from)| *to = from);
    if ty.quantize(&values, None, &mut block).is_ok() {
        let mut back = vec![0.0; weights];
        ty.dequantize(&block, &mut back).expect("what was quantized is a block");
    }
}
