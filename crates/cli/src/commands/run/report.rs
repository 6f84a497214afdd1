//! What `run` says beside the text: opening line, placement, statistics, the JSON document.

use std::time::Duration;

use bilayer_engine::Model;
use bilayer_engine::generate::{Statistics, Token};
use bilayer_engine::session::Session;
use bilayer_graph::Kind;
use serde_json::{Value, json};

use super::Answer;

/// Which model on which device.
pub fn opening(model: &Model, session: &Session) -> String {
    let file = model.file();
    let name = file.metadata().str("general.name").unwrap_or(file.name());
    let millions = model.graph().parameters() as f64 / 1e6;
    let devices: Vec<String> = session
        .backends()
        .map(|b| format!("{} {} threads {}", b.facts().name, b.facts().threads, b.facts().level))
        .collect();
    format!("{name} ({millions:.1}M parameters) on {}", devices.join(", "))
}

/// One line: where every layer lies.
pub fn placement(session: &Session) -> String {
    format!("placement: {}", session.plan().map)
}

/// The closing line.
pub fn statistics(s: &Statistics) -> String {
    let wall = s.spent.total.as_secs_f64().max(f64::MIN_POSITIVE);
    let share = |part: Duration| 100.0 * part.as_secs_f64() / wall;
    format!(
        "prompt: {} tokens, {:.0} ms, {:.1} tok/s | generate: {} tokens, {:.0} ms, {:.1} tok/s | \
         cpu busy {:.0} % gpu busy {:.0} % crossing {:.0} %",
        s.prompt_tokens,
        ms(s.prompt),
        per_second(s.prompt_tokens, s.prompt),
        s.generated,
        ms(s.generate),
        per_second(s.generated.saturating_sub(1), s.generate),
        share(s.spent.cpu),
        share(s.spent.gpu),
        share(s.spent.crossing),
    )
}

/// The document of `--json` (CLI.md).
pub fn document(model: &Model, session: &Session, answer: &Answer, seed: u64) -> Value {
    let s = &answer.statistics;
    let decoded = s.generated.saturating_sub(1);
    let adapter = session
        .backends()
        .find(|b| b.facts().kind == Kind::Gpu)
        .map(|b| b.facts().name.clone());
    let mut document = json!({
        "text": answer.text,
        "tokens": answer.tokens.iter().map(|t| t.id).collect::<Vec<_>>(),
        "prompt_tokens": answer.prompt_tokens,
        "stop_reason": answer.stop.name(),
        "seed": seed,
        "model": model.file().name(),
        "placement": { "map": session.plan().map, "gpu_layers": 0, "adapter": adapter },
        "timings": {
            "load_ms": ms(session.load_time()),
            "first_token_ms": ms(s.first_token),
            "prompt_ms": ms(s.prompt),
            "prompt_tps": per_second(s.prompt_tokens, s.prompt),
            "generate_ms": ms(s.generate),
            "generate_tps": per_second(decoded, s.generate),
        },
        "predicted_ms_per_token": null,
        "measured_ms_per_token": (decoded > 0).then(|| ms(s.generate) / decoded as f64),
    });
    if answer.tokens.iter().any(|t| t.logprobs.is_some()) {
        document["logprobs"] = answer.tokens.iter().map(|t| logprobs(model, t)).collect();
    }
    document
}

fn logprobs(model: &Model, token: &Token) -> Value {
    let piece = |id: u32| {
        String::from_utf8_lossy(model.tokenizer().piece(id).unwrap_or_default()).into_owned()
    };
    let entry = |t: &bilayer_engine::sampling::TokenLogprob| {
        json!({ "id": t.id, "piece": piece(t.id), "logprob": t.logprob })
    };
    match &token.logprobs {
        None => Value::Null,
        Some((chosen, top)) => {
            let mut value = entry(chosen);
            value["top"] = top.iter().map(entry).collect();
            value
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn per_second(tokens: usize, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { tokens as f64 / duration.as_secs_f64() }
}
