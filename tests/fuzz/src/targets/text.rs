//! Text: templates, tokenizers, and what is done to an answer while it is streamed.

use std::sync::OnceLock;

use bilayer_text::chat::reply::{Delta, Format, Options, Tool};
use bilayer_text::chat::{Inputs, Template};
use bilayer_text::{Decode, Decoder, Encode, Tokenizer, Vocabulary};
use serde_json::json;

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

/// A vocabulary from bytes, then the rest as text and as rules of normalization: decoding gives back what was encoded,
/// or an error comes before.
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
        model: ["llama", "gpt2", "gemma4", "bert", "no_vocab", "odd", "t5"][usize::from(kind) % 7]
            .to_owned(),
        charsmap: if flags & 128 != 0 { rest.into() } else { Default::default() },
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

/// Types of tokens in the format: a text, and a single byte.
const TEXT: i32 = 1;
const BYTE: i32 = 6;

/// A tokenizer of these tokens, all of one type; nothing is added to a text.
fn of(tokens: impl Iterator<Item = String>, ty: i32) -> Tokenizer {
    let tokens: Vec<_> = tokens.map(Into::into).collect();
    let len = tokens.len();
    let vocabulary = Vocabulary {
        model: "llama".to_owned(),
        types: vec![ty; len],
        scores: vec![0.0; len],
        add_bos: Some(false),
        add_space_prefix: Some(false),
        tokens,
        ..Vocabulary::default()
    };
    Tokenizer::new(vocabulary).expect("a valid vocabulary")
}

/// The first line is a text, the next ones stop strings: what is shown ends where the first stop string ends first, however
/// the text is cut into tokens.
pub fn stops(data: &[u8]) {
    // The mark of a space in a vocabulary has no spelling of its own.
    let all = String::from_utf8_lossy(data).replace('\u{2581}', "_");
    let mut lines = all.split('\n');
    let text: String = lines.next().unwrap_or_default().chars().take(48).collect();
    let stops: Vec<String> = lines.take(4).map(str::to_owned).collect();
    let ends = |end: usize| {
        let ending = stops.iter().filter(|stop| !stop.is_empty() && text[..end].ends_with(*stop));
        ending.map(String::len).max().map(|len| end - len)
    };
    let mut boundaries = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let expected = boundaries.find_map(ends).map_or(text.as_str(), |shown| &text[..shown]);
    let shown = |tokenizer: &Tokenizer, ids: &[u32]| {
        let options = Decode { stops: stops.clone().into(), show_control: false };
        let mut decoder = Decoder::new(tokenizer, options);
        let parts: Vec<String> = ids.iter().map(|&id| decoder.push(id).text).collect();
        let all = parts.concat() + &decoder.finish();
        assert_eq!(decoder.finish(), "", "a text ends once");
        all
    };
    static BYTES: OnceLock<Tokenizer> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| of((0..=255).map(|byte| format!("<0x{byte:02X}>")), BYTE));
    let single: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!(shown(bytes, &single), expected, "{text:?} by bytes, {stops:?}");
    // One vocabulary for all cuts, as making one takes most of the time.
    let mut words: Vec<String> = Vec::new();
    let mut id = |word: &str| {
        let word = word.replace(' ', "\u{2581}");
        let known = words.iter().position(|known| *known == word);
        known.unwrap_or_else(|| {
            words.push(word);
            words.len() - 1
        }) as u32
    };
    let cuts = text.char_indices().skip(1).map(|(cut, _)| cut);
    let cuts: Vec<_> = cuts.map(|cut| (cut, [id(&text[..cut]), id(&text[cut..])])).collect();
    if cuts.is_empty() {
        return;
    }
    let tokenizer = of(words.into_iter(), TEXT);
    for (cut, ids) in cuts {
        // A word that is spelled as a control token is one, whatever its type.
        if ids.iter().any(|&id| tokenizer.is_control(id)) {
            continue;
        }
        assert_eq!(shown(&tokenizer, &ids), expected, "{text:?} cut at {cut}, {stops:?}");
    }
}

/// Marks by which templates are told apart; a reply is made of them too.
const MARKS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
    "<|start|>assistant",
    "commentary to=functions.f",
    "<TOOLCALL>",
    "</TOOLCALL>",
    "<function=f>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "functools[",
    "<think>",
    "</think>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_sep|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|tool_call_start|>",
    "<tools>",
    "f",
    "(a=",
    ")",
    "[",
    "]",
    "{",
    "}",
    "\"name\"",
    "\"arguments\"",
    ": ",
    ", ",
    "\"f\"",
    "{\"a\": 1}",
    "1.5e3",
    "\"\\u00e9\\n\"",
    "true",
    "null",
    "\n",
    " ",
    "text ",
    "\u{e9}",
    "\"",
    "\\",
    "'",
    "<",
    ">",
    "|",
];

/// A reply of any family of models gives the same parts whether it comes at once or letter by letter.
pub fn reply(data: &[u8]) {
    let Some((&[sign, flags], rest)) = data.split_first_chunk() else { return };
    let format = Format::of(MARKS[usize::from(sign) % MARKS.len()]);
    let mark = |byte: &u8| MARKS[usize::from(*byte) % MARKS.len()];
    let text: String = rest.iter().take(512).map(mark).collect();
    let tool = Tool { name: "f".to_owned(), ..Tool::default() };
    let options = Options {
        tools: if flags & 1 == 0 { vec![tool] } else { Vec::new() },
        calls_max: (flags & 2 != 0).then_some(1),
        thinking_is_open: flags & 4 != 0,
        ..Options::default()
    };
    let mut whole = format.parser(options.clone());
    let mut at_once = whole.push(&text);
    at_once.extend(whole.finish());
    let mut parser = format.parser(options);
    let mut letters = [0; 4];
    let mut apart: Vec<Delta> =
        text.chars().flat_map(|c| parser.push(c.encode_utf8(&mut letters))).collect();
    apart.extend(parser.finish());
    assert_eq!(joined(apart), joined(at_once), "{} {text:?}", format.name());
}

/// Neighbours of one kind as one.
fn joined(deltas: Vec<Delta>) -> Vec<Delta> {
    let mut all: Vec<Delta> = Vec::new();
    for delta in deltas {
        match (all.last_mut(), delta) {
            (Some(Delta::Content(text)), Delta::Content(more))
            | (Some(Delta::Reasoning(text)), Delta::Reasoning(more)) => text.push_str(&more),
            (
                Some(Delta::Arguments { index, text }),
                Delta::Arguments { index: of, text: more },
            ) if *index == of => {
                text.push_str(&more);
            }
            (_, Delta::Content(text) | Delta::Reasoning(text)) if text.is_empty() => {}
            (_, delta) => all.push(delta),
        }
    }
    all
}
