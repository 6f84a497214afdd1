//! What `run` prints besides the text: opening line, placement, statistics, the JSON document.

use std::collections::BTreeMap;
use std::time::Duration;

use bilayer_engine::Model;
use bilayer_engine::generate::{Statistics, Token};
use bilayer_engine::sampling::TokenLogprob;
use bilayer_engine::session::{Session, Spent};
use bilayer_scheduler::{Bytes, Plan};
use serde_json::{Value, json};

use super::{Answer, Question};
use crate::output;

/// The model and its devices.
pub fn opening(model: &Model, session: &Session) -> String {
    let file = model.file();
    let name = file.metadata().str("general.name").unwrap_or(file.name()).escape_debug();
    let millions = model.graph().parameters() as f64 / 1e6;
    let devices: Vec<String> = session
        .backends()
        .map(|b| {
            let threads = output::counted(b.facts().threads, ["thread", "threads"]);
            format!("{} {threads} {}", b.facts().name, b.facts().level)
        })
        .collect();
    format!("{name} ({millions:.1}M parameters) on {}", devices.join(", "))
}

/// One line: the device of every layer.
pub fn placement(session: &Session) -> String {
    format!("placement: {}", session.plan().map)
}

/// With --verbose: the memory of each device, and the kernels.
pub fn details(session: &Session) {
    for device in &session.plan().devices {
        output::detail(&format!(
            "{}: {} of {}: weights {}, KV cache {}, states {}, activations {}, transfers {}",
            device.name,
            Bytes(device.used_bytes),
            Bytes(device.budget_bytes),
            Bytes(device.weight_bytes),
            Bytes(device.kv_bytes),
            Bytes(device.state_bytes),
            Bytes(device.activation_bytes),
            Bytes(device.staging_bytes)
        ));
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for kernel in session.kernels() {
        *counts.entry(kernel.name).or_default() += 1;
    }
    for (name, count) in counts {
        let calls = output::counted(count, ["call", "calls"]);
        output::detail(&format!("kernel {name}: {calls} per step"));
    }
}

/// The tokens of the prompt, one per line, on stderr.
pub fn prompt(model: &Model, tokens: &[u32]) {
    output::note(&format!("prompt of {}:", output::counted(tokens.len(), output::TOKENS)));
    for &id in tokens {
        let piece = String::from_utf8_lossy(model.tokenizer().piece(id).unwrap_or_default());
        output::note(&format!("{id:>7}  {piece:?}"));
    }
}

/// For each device of a plan, the time in which it had work in the steps, and the share of their time; then for lost
/// devices.
pub fn devices(plan: &Plan, spent: &Spent) -> Value {
    let total = spent.total.as_secs_f64().max(f64::MIN_POSITIVE);
    let device = |(i, busy): (usize, &Duration)| {
        let name = plan.devices.get(i).map_or("lost", |device| &device.name);
        json!({ "name": name, "busy_ms": ms(*busy), "busy": busy.as_secs_f64() / total })
    };
    spent.devices.iter().enumerate().map(device).collect()
}

/// The closing line.
pub fn statistics(s: &Statistics) -> String {
    let wall = s.spent.total.as_secs_f64().max(f64::MIN_POSITIVE);
    let share = |part: Duration| 100.0 * part.as_secs_f64() / wall;
    let line = format!(
        "prompt: {}, {:.0} ms, {:.1} tok/s | generate: {}, {:.0} ms, {:.1} tok/s | \
         cpu busy {:.0} % gpu busy {:.0} % crossing {:.0} %",
        output::counted(s.prompt_tokens, output::TOKENS),
        ms(s.prompt),
        per_second(s.prompt_tokens, s.prompt),
        output::counted(s.generated, output::TOKENS),
        ms(s.generate),
        per_second(decoded(s), s.generate),
        share(s.spent.host()),
        share(s.spent.offload()),
        share(s.spent.crossing),
    );
    if s.drafted == 0 {
        return line;
    }
    format!(
        "{line} | drafted: {}, {:.0} ms, {} accepted ({:.0} %), {:.2} tokens/step",
        output::counted(s.drafted, output::TOKENS),
        ms(s.drafting),
        s.accepted,
        100.0 * s.accepted as f64 / s.drafted as f64,
        tokens_per_step(s),
    )
}

/// That tokens left the full context, `times` times.
pub fn shifted(times: usize) -> String {
    let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    format!("the context was full {times}: the answer went on without the oldest tokens")
}

/// The tokens and the speed of an answer, in short.
pub fn rate(s: &Statistics) -> String {
    let tokens = output::counted(s.generated, output::TOKENS);
    format!("({tokens}, {:.1} tok/s)", per_second(decoded(s), s.generate))
}

/// How many of the tokens' experts were resident on a GPU, if experts are.
pub fn experts(session: &Session) -> Option<String> {
    let (planned, hits) = (session.plan().experts.as_ref()?, session.expert_hits()?);
    let rate = 100.0 * hits.rate()?;
    let line = format!(
        "experts: {rate:.0} % of those that tokens used were on the GPU, {:.0} % expected",
        100.0 * planned.hit_rate
    );
    Some(match hits.exchanged {
        0 => line,
        count => format!("{line}; {count} exchanged for others"),
    })
}

/// Predicted and measured time per token, and a note if they differ much.
pub fn prediction(session: &Session, s: &Statistics) -> Option<String> {
    let predicted = session.plan().predicted.as_ref()?.decode_ms;
    let measured = (decoded(s) > 0).then(|| ms(s.generate) / decoded(s) as f64)?;
    if s.drafted > 0 {
        // The prediction is for steps of one token, so the ratio is the gain from drafts, not an error.
        let gain = predicted / measured;
        return Some(format!(
            "predicted {predicted:.2} ms/token without drafts, measured {measured:.2} with them: {gain:.2}x"
        ));
    }
    let mut line = format!("predicted {predicted:.2} ms/token, measured {measured:.2}");
    if session.judge() {
        line += match session.backends().count() {
            1 => "; they differ much, so the prediction is dropped until --remeasure",
            _ => "; they differ much, so the next run measures the devices again",
        };
    }
    Some(line)
}

/// Data of the JSON document besides question and answer.
pub struct Report<'r> {
    pub model: &'r Model,
    pub session: &'r Session,
    /// From the start to a loaded model, excluding the wait for the prompt.
    pub load: Duration,
    /// Whether draft tokens were used.
    pub is_speculative: bool,
}

impl Report<'_> {
    /// The document of `--json` (CLI.md).
    pub fn document(&self, question: &Question, answer: &Answer) -> Value {
        let s = &answer.statistics;
        let mut document = json!({
            "text": answer.text,
            "tokens": answer.tokens.iter().map(|t| t.id).collect::<Vec<_>>(),
            "prompt_tokens": question.prompt,
            "stop_reason": answer.stop.name(),
            "seed": question.options.seed,
            "model": self.model.file().name(),
            "placement": self.placement(),
            "devices": devices(self.session.plan(), &s.spent),
            "timings": {
                "load_ms": ms(self.load),
                "first_token_ms": ms(s.first_token),
                "prompt_ms": ms(s.prompt),
                "prompt_tps": per_second(s.prompt_tokens, s.prompt),
                "generate_ms": ms(s.generate),
                "generate_tps": per_second(decoded(s), s.generate),
            },
            "predicted_ms_per_token":
                self.session.plan().predicted.as_ref().map(|predicted| predicted.decode_ms),
            "measured_ms_per_token":
                (decoded(s) > 0).then(|| ms(s.generate) / decoded(s) as f64),
        });
        if let (Some(planned), Some(hits)) =
            (&self.session.plan().experts, self.session.expert_hits())
        {
            document["experts"] = json!({
                "bytes": planned.bytes,
                "expected_hit_rate": planned.hit_rate,
                "hit_rate": hits.rate(),
                "exchanged": hits.exchanged,
            });
        }
        if self.is_speculative {
            document["speculation"] = self.speculation(s);
        }
        if answer.tokens.iter().any(|t| t.logprobs.is_some()) {
            document["logprobs"] = answer.tokens.iter().map(|t| self.logprobs(t)).collect();
        }
        document
    }

    /// Statistics of the draft tokens.
    fn speculation(&self, s: &Statistics) -> Value {
        let predicted = self.session.plan().predicted.as_ref();
        let gain = predicted.filter(|_| decoded(s) > 0).map(|predicted| {
            predicted.decode_ms * decoded(s) as f64 / ms(s.generate).max(f64::MIN_POSITIVE)
        });
        json!({
            "drafted": s.drafted,
            "accepted": s.accepted,
            "acceptance": (s.drafted > 0).then(|| s.accepted as f64 / s.drafted as f64),
            "steps": s.steps,
            "tokens_per_step": (s.steps > 0).then(|| tokens_per_step(s)),
            "draft_ms": ms(s.drafting),
            "gain": gain,
        })
    }

    fn placement(&self) -> Value {
        let plan = self.session.plan();
        let names: Vec<&str> =
            self.session.backends().skip(1).map(|b| b.facts().name.as_str()).collect();
        let parts = plan.devices.iter().skip(1).map(|device| device.parts);
        let mut placement = json!({
            "map": plan.map,
            "gpu_layers": parts.sum::<u32>(),
            "adapter": names.first(),
        });
        if names.len() > 1 {
            placement["adapters"] = json!(names);
        }
        placement
    }

    fn logprobs(&self, token: &Token) -> Value {
        let piece = |id: u32| {
            let piece = self.model.tokenizer().piece(id).unwrap_or_default();
            String::from_utf8_lossy(piece).into_owned()
        };
        let entry =
            |t: &TokenLogprob| json!({ "id": t.id, "piece": piece(t.id), "logprob": t.logprob });
        let Some((chosen, top)) = &token.logprobs else { return Value::Null };
        let mut value = entry(chosen);
        value["top"] = top.iter().map(entry).collect();
        value
    }
}

fn tokens_per_step(s: &Statistics) -> f64 {
    decoded(s) as f64 / s.steps.max(1) as f64
}

/// Tokens generated by decode steps; the first one comes from prefill.
fn decoded(s: &Statistics) -> usize {
    s.generated.saturating_sub(1)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn per_second(tokens: usize, duration: Duration) -> f64 {
    if duration.is_zero() { 0.0 } else { tokens as f64 / duration.as_secs_f64() }
}
