//! Shared by `embed`, `rerank`, `classify` and `extract`: the texts, the encoder, the closing line.

use std::path::Path;
use std::time::Instant;

use bilayer_engine::encode::{Each, Encoder, Excess, Input, texts_max};
use bilayer_engine::session::{Purpose, Settings};
use serde::Deserialize;
use serde_json::Value;

use super::run::settings;
use crate::args::{ModelArgs, TextArgs};
use crate::demo::Source;
use crate::failure::Failure;
use crate::{demo, escapes, output, progress};

/// A text with its origin.
pub struct Given {
    pub text: String,
    /// A second text, evaluated together with the first.
    pub pair: Option<String>,
    /// The user's id.
    pub id: Option<Value>,
    /// Its position, for messages.
    pub place: String,
}

/// A line of JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Text(String),
    Object { text: String, text_pair: Option<String>, id: Option<Value> },
}

/// The texts given by the flags.
pub fn texts(args: &TextArgs) -> Result<Vec<Given>, Failure> {
    let separator = match &args.embd_separator {
        Some(separator) => escapes::resolve(separator)?,
        None => "\n".to_owned(),
    };
    if separator.is_empty() {
        return Err(Failure::usage("--embd-separator is empty; give the text between two texts"));
    }
    let parts = |text: &str, what: &str| -> Vec<Given> {
        let end = if separator == "\n" { "\n" } else { "" };
        let text = text.strip_suffix(end).unwrap_or(text);
        let place = |at: usize| format!("{what} {}", at + 1);
        let parts = text.split(separator.as_str()).enumerate();
        let part = |(at, text): (usize, &str)| {
            let text = if end.is_empty() { text } else { text.strip_suffix('\r').unwrap_or(text) };
            Given { text: text.to_owned(), pair: None, id: None, place: place(at) }
        };
        if text.is_empty() { Vec::new() } else { parts.map(part).collect() }
    };
    if let Some(path) = &args.jsonl {
        return lines(path);
    }
    if !args.texts.is_empty() {
        let texts = args.texts.iter().enumerate();
        let given = texts.map(|(at, text)| Given {
            text: text.clone(),
            pair: None,
            id: None,
            place: format!("text {}", at + 1),
        });
        return Ok(given.collect());
    }
    if let Some(text) = &args.prompt {
        return Ok(parts(&escapes::resolve(text)?, "text"));
    }
    if let Some(path) = &args.file {
        return Ok(parts(&output::file(path)?, &format!("{}: line", path.display())));
    }
    let text = output::piped(None)?.ok_or_else(|| {
        Failure::usage("no text; give TEXT, -f FILE or --jsonl FILE, or pipe in one text per line")
    })?;
    Ok(parts(&text, "line"))
}

fn lines(path: &Path) -> Result<Vec<Given>, Failure> {
    let text = output::json_lines(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let given = lines.map(|(at, line)| {
        let place = format!("{}: line {}", path.display(), at + 1);
        let (text, pair, id) = match serde_json::from_str(line) {
            Ok(Line::Text(text)) => (text, None, None),
            Ok(Line::Object { text, text_pair, id }) => (text, text_pair, id),
            Err(_) => {
                let line =
                    "expected a JSON string, or an object with a string `text`; write one per line";
                return Err(Failure::usage(line).at(&place));
            }
        };
        Ok(Given { text, pair, id, place })
    });
    given.collect()
}

/// Loads the encoder given by the flags.
pub fn encoder(args: &ModelArgs, purpose: Purpose) -> Result<Encoder, Failure> {
    let pooling = match purpose {
        Purpose::Embed(pooling) => pooling,
        _ => None,
    };
    let model = demo::open(&Source { pooling, ..args.source() })?;
    let settings = Settings { purpose, sequences: texts_max(&model), ..settings::model(args)? };
    let encoder = progress::loading(|tell| {
        Encoder::new(&model, Settings { progress: Some(tell), ..settings })
    })?;
    for note in &encoder.session().plan().notes {
        output::note(&format!("note: {note}"));
    }
    super::run::details(encoder.session());
    Ok(encoder)
}

/// The texts to run, and how.
pub struct Job<'t> {
    pub texts: &'t [Given],
    /// A first text that is paired with each of them.
    pub query: Option<&'t str>,
    pub excess: Excess,
}

impl<'t> Job<'t> {
    fn input(&self, given: &'t Given) -> Input<'t> {
        match self.query {
            Some(query) => Input { text: query, pair: Some(&given.text) },
            None => Input { text: &given.text, pair: given.pair.as_deref() },
        }
    }
}

/// Runs texts through the encoder; `each` receives a text's number, tokens and rows in order.
pub fn run(
    encoder: &mut Encoder,
    job: &Job<'_>,
    each: &mut Each<'_, Failure>,
) -> Result<(), Failure> {
    let texts = job.texts;
    // All texts are tokenized before the first runs, so that a text that is too long is reported before any output.
    let tokens = texts.iter().map(|given| {
        let tokens = encoder.tokens(job.input(given), job.excess);
        tokens.map_err(|error| Failure::from(error).at(&given.place))
    });
    let tokens: Vec<Vec<u32>> = tokens.collect::<Result<_, _>>()?;
    let count: usize = tokens.iter().map(Vec::len).sum();
    let bar = progress::steps("texts");
    bar.set_length(texts.len() as u64);
    let began = encoder.session().clock().now();
    encoder.run(tokens.into_iter().map(Ok), &mut |at, tokens, rows| {
        bar.inc(1);
        each(at, tokens, rows)
    })?;
    bar.finish_and_clear();
    close(encoder, texts.len(), count, began);
    Ok(())
}

/// Prints warnings, the placement and the speed of a run over texts of `count` tokens, which began at a time of the session's
/// clock.
pub fn close(encoder: &mut Encoder, texts: usize, count: usize, began: Instant) {
    let session = encoder.session_mut();
    let seconds = session.clock().since(began).as_secs_f64().max(f64::MIN_POSITIVE);
    for warning in session.take_warnings() {
        output::warning(&warning);
    }
    output::note(&super::run::placement(session));
    output::note(&format!(
        "{}, {}, {:.0} ms, {:.1} texts/s, {:.0} tok/s",
        output::counted(texts, ["text", "texts"]),
        output::counted(count, output::TOKENS),
        1e3 * seconds,
        texts as f64 / seconds,
        count as f64 / seconds
    ));
}
