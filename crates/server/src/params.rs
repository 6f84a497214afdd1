//! Fields about sampling and the length of an answer: llama-server's and OpenAI's names, and what comes of them.

use std::time::Duration;

use bilayer_engine::requests::Shift;
use bilayer_engine::sampling::{self, BREAKERS, Options, Parameter, parameters};
use bilayer_engine::{Error as Engine, Model, new_seed};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};

mod logit_bias;
pub mod names;
mod samplers;

use logit_bias::logit_bias;
use names::api_name;

/// Largest number of tokens whose probabilities are reported for each position.
pub const TOP_MAX: usize = 128;

/// Texts that may end an answer: each byte of it is compared with each of them. The answers of a request share them.
pub const STOPS: Accepts = Accepts::Texts(512, 256);

/// Text of fields that are not used; bodies have their own limit.
const UNUSED: Accepts = Accepts::Text(usize::MAX);

/// Fields of every request that generates.
pub const FIELDS: &[Field] = &[
    Field::new(
        "model",
        Accepts::Text(512),
        "The model; any name where one is served without --models-dir.",
    ),
    Field::new("stream", Accepts::Bool, "Send the answer as server-sent events."),
    Field::new(
        "stream_options",
        Accepts::Object,
        "`include_usage`: send a last chunk with the usage.",
    ),
    Field::new("n", Accepts::Integer(1, 8), "Number of answers; the prompt is computed once."),
    Field::new("n_cmpl", Accepts::Integer(1, 8), "As n."),
    Field::new(
        "max_tokens",
        Accepts::Integer(-1, 1 << 24),
        "Maximum tokens of the answer; -1 until it ends.",
    ),
    Field::new("max_completion_tokens", Accepts::Integer(-1, 1 << 24), "As max_tokens."),
    Field::new("n_predict", Accepts::Integer(-1, 1 << 24), "As max_tokens."),
    Field::new(
        "t_max_predict_ms",
        Accepts::Integer(-1, 1 << 40),
        "Time after the first token from which on the end of a line ends the answer; 0 or -1 is off.",
    ),
    Field::new(
        "n_indent",
        Accepts::Integer(0, 1 << 16),
        "White space that begins each line but the first; a line with less ends the answer.",
    ),
    Field::new("stop", STOPS, "Texts that end the answer and are not part of it."),
    Field::new("seed", Accepts::Integer(-1, i64::MAX), "Seed of the random stream; -1 draws one."),
    Field::new(
        "temperature",
        Accepts::Number(0.0, 100.0),
        "Divides the logits; 0 takes the most likely token.",
    ),
    Field::new(
        "dynatemp_range",
        Accepts::Number(0.0, 100.0),
        "Range of the dynamic temperature; 0 is off.",
    ),
    Field::new(
        "dynatemp_exponent",
        Accepts::Number(0.0, 100.0),
        "Exponent of the dynamic temperature.",
    ),
    Field::new(
        "top_k",
        Accepts::Integer(-1, 1 << 24),
        "Keep the k most likely tokens; 0 or -1 keeps all.",
    ),
    Field::new("top_p", Accepts::Number(0.0, 1.0), "Keep the most likely tokens with this mass."),
    Field::new(
        "min_p",
        Accepts::Number(0.0, 1.0),
        "Keep tokens at least this share as likely as the best.",
    ),
    Field::new(
        "typical_p",
        Accepts::Number(0.0, 1.0),
        "Mass of locally typical sampling; 1 is off.",
    ),
    Field::new(
        "repeat_penalty",
        Accepts::Number(0.01, 100.0),
        "Penalty of recent tokens; 1 is off.",
    ),
    Field::new(
        "repeat_last_n",
        Accepts::Integer(-1, 1 << 24),
        "Tokens that penalties look back; -1 is all.",
    ),
    Field::new(
        "presence_penalty",
        Accepts::Number(-100.0, 100.0),
        "Subtracted from logits of recent tokens.",
    ),
    Field::new(
        "frequency_penalty",
        Accepts::Number(-100.0, 100.0),
        "Subtracted for each occurrence.",
    ),
    Field::new(
        "dry_multiplier",
        Accepts::Number(0.0, 100.0),
        "DRY: penalty of a repetition; 0 is off.",
    ),
    Field::new("dry_base", Accepts::Number(0.0, 100.0), "DRY: growth of the penalty per token."),
    Field::new(
        "dry_allowed_length",
        Accepts::Integer(0, 1 << 16),
        "DRY: repetition that costs nothing.",
    ),
    Field::new(
        "dry_penalty_last_n",
        Accepts::Integer(-1, 1 << 24),
        "DRY: tokens searched; -1 is all.",
    ),
    Field::new(
        "dry_sequence_breakers",
        Accepts::Texts(64, 64),
        "DRY: texts that end a repetition.",
    ),
    Field::new(
        "xtc_probability",
        Accepts::Number(0.0, 1.0),
        "XTC: chance that it applies; 0 is off.",
    ),
    Field::new(
        "xtc_threshold",
        Accepts::Number(0.0, 1.0),
        "XTC: tokens at least this likely are excluded.",
    ),
    Field::new(
        "top_n_sigma",
        Accepts::Number(-1e6, 1e6),
        "Keep logits within so many standard deviations of the highest; 0 or less is off.",
    ),
    Field::new(
        "adaptive_target",
        Accepts::Number(-1e6, 1.0),
        "Adaptive-p: probability of the tokens that are preferred; less than 0 is off.",
    ),
    Field::new(
        "adaptive_decay",
        Accepts::Number(0.0, 0.99),
        "Adaptive-p: decay per token of the mean that is held at the target.",
    ),
    Field::new("mirostat", Accepts::Integer(0, 2), "Mirostat version; 0 is off."),
    Field::new("mirostat_tau", Accepts::Number(0.0, 100.0), "Mirostat: target surprise in bits."),
    Field::new("mirostat_eta", Accepts::Number(0.0, 1.0), "Mirostat: learning rate."),
    Field::new(
        "logit_bias",
        Accepts::Any,
        "Object from token or text to bias, or list of [token, bias].",
    ),
    Field::new("ignore_eos", Accepts::Bool, "Continue after end-of-text tokens."),
    samplers::FIELD,
    Field::new(
        "cache_prompt",
        Accepts::Bool,
        "Reuse the KV cache of common prefixes; on by default.",
    ),
    Field::new(
        "id_slot",
        Accepts::Integer(-1, 1 << 16),
        "The slot whose sequence the request continues; by default any.",
    ),
    Field::new(
        "n_keep",
        Accepts::Integer(-1, 1 << 24),
        "First tokens that stay when a full context is shifted; -1 keeps the prompt.",
    ),
    Field::new(
        "n_discard",
        Accepts::Integer(0, 1 << 24),
        "Tokens that leave when a full context is shifted, an eighth of it at least; 0 is half of the others.",
    ),
    Field::new(
        "lora",
        Accepts::List(64),
        "LoRA adapters of the request: objects with `id` and `scale`; others are off.",
    ),
    Field::new("timings_per_token", Accepts::Bool, "Send timings with every chunk."),
    Field::new("return_progress", Accepts::Bool, "Send the progress of the prompt in a stream."),
    Field::new("return_tokens", Accepts::Bool, "Report token ids (`/completion`)."),
    Field::new("verbose", Accepts::Bool, "Add `__verbose` with the prompt to the answer."),
    Field::new("user", UNUSED, "Accepted and not used."),
    Field::new("grammar", Accepts::Text(256 << 10), "GBNF grammar that the answer must follow."),
    Field::new("json_schema", Accepts::Any, "JSON schema that the answer must follow."),
    Field::new("response_format", Accepts::Object, "`text`, `json_object` or `json_schema`."),
];

/// Fields that are read while an answer is made. Others, which may be large, are read before and dropped.
pub const LASTING: &[&str] = &[
    "best_of",
    "echo",
    "grammar",
    "logprobs",
    "n",
    "n_cmpl",
    "n_discard",
    "n_keep",
    "n_probs",
    "post_sampling_probs",
    "response_fields",
    "return_progress",
    "return_tokens",
    "stop",
    "stream",
    "timings_per_token",
    "verbose",
];

/// What the server takes where a request says nothing.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Sampling.
    pub sampling: Options,
    /// A fixed seed; `None` draws one for each request.
    pub seed: Option<u64>,
    /// Maximum tokens of an answer; `None` until it ends.
    pub predict: Option<usize>,
    /// Whether cached prefixes are reused.
    pub reuse: bool,
    /// Texts that end a DRY repetition.
    pub breakers: Vec<String>,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            sampling: Options::default(),
            seed: None,
            predict: None,
            reuse: true,
            breakers: BREAKERS.map(str::to_owned).to_vec(),
        }
    }
}

/// What a request asks of generation.
#[derive(Clone, Debug)]
pub struct Params {
    /// Sampling, seed included.
    pub sampling: Options,
    /// Maximum tokens of the answer.
    pub predict: Option<usize>,
    /// Time after the first token from which on the end of a line ends it.
    pub predict_time: Option<Duration>,
    /// White space that each line but the first begins with, or the answer ends.
    pub indent: usize,
    /// Texts that end it.
    pub stops: Vec<String>,
    /// Continue after end-of-text tokens.
    pub ignore_eos: bool,
    /// Texts that end a DRY repetition.
    pub breakers: Vec<String>,
    /// Number of answers.
    pub n: usize,
    /// Whether cached prefixes are reused.
    pub reuse: bool,
    /// The slot whose sequence is continued; `None` is any.
    pub slot: Option<u32>,
    /// LoRA adapters and their strengths.
    pub lora: Option<Value>,
    /// First tokens that stay when a full context is shifted; `None` is the prompt.
    keep: Option<usize>,
    /// Tokens that leave then; `None` is half of the others.
    discard: Option<usize>,
}

impl Params {
    /// Reads the fields of a body.
    ///
    /// # Errors
    /// A field that the tables cannot check is wrong.
    pub fn of(body: &Body, model: &Model, defaults: &Defaults) -> Result<Params, ApiError> {
        let mut sampling = Options { seed: seed(body, defaults), ..defaults.sampling.clone() };
        if let Some(biases) = logit_bias(body, model)? {
            sampling.logit_bias = biases;
        }
        for parameter in parameters() {
            set(&mut sampling, parameter, body);
        }
        sampling.turn_off_unused();
        let ignore_eos = body.flag("ignore_eos");
        if ignore_eos {
            let ends = model.tokenizer().ends().iter();
            sampling.logit_bias.extend(ends.map(|&id| (id, f32::NEG_INFINITY)));
        }
        if let Some(named) = samplers::named(body)? {
            sampling.samplers = Some(named);
        }
        sampling.set_infill(model.tokenizer());
        sampling.check(model.config().vocab).map_err(Engine::SamplingOptions)?;
        let mut breakers = body.texts("dry_sequence_breakers");
        if breakers.is_empty() {
            breakers = defaults.breakers.clone();
        }
        Ok(Params {
            sampling,
            predict: predict(body, defaults),
            predict_time: body
                .count("t_max_predict_ms")
                .filter(|&ms| ms > 0)
                .map(|ms| Duration::from_millis(ms as u64)),
            indent: body.count("n_indent").unwrap_or(0),
            stops: body.texts("stop").into_iter().filter(|stop| !stop.is_empty()).collect(),
            ignore_eos,
            breakers,
            n: answers(body),
            reuse: body.bool("cache_prompt").unwrap_or(defaults.reuse),
            slot: body.integer("id_slot").and_then(|slot| u32::try_from(slot).ok()),
            lora: body.get("lora").cloned(),
            keep: body.integer("n_keep").map_or(Some(0), |keep| usize::try_from(keep).ok()),
            discard: body.count("n_discard").filter(|&tokens| tokens > 0),
        })
    }

    /// How a full context is shifted if the prompt has so many tokens.
    pub fn shift(&self, prompt: usize) -> Shift {
        Shift { keep: self.keep.unwrap_or(prompt), discard: self.discard }
    }

    /// llama-server's `generation_settings`.
    pub fn settings(&self, body: &Body) -> Map<String, Value> {
        let s = &self.sampling;
        let bias = s.logit_bias.iter().map(
            |(token, bias)| json!({ "token": token, "bias": bias.is_finite().then_some(bias) }),
        );
        let predict = self.predict.map_or(-1, |most| most as i64);
        let mut settings: Map<String, Value> =
            parameters().map(|parameter| (api_name(parameter), shown(s, parameter))).collect();
        let others = json!({
            "seed": s.seed,
            "dry_sequence_breakers": self.breakers,
            "stop": self.stops,
            "max_tokens": predict,
            "n_predict": predict,
            "n_keep": body.integer("n_keep").unwrap_or(0),
            "n_discard": body.integer("n_discard").unwrap_or(0),
            "ignore_eos": self.ignore_eos,
            "stream": body.flag("stream"),
            "logit_bias": bias.collect::<Vec<_>>(),
            "n_probs": body.integer("n_probs").unwrap_or(0),
            "min_keep": 0,
            "grammar": body.text("grammar").unwrap_or_default(),
            "samplers": s.sampler_names(),
            "post_sampling_probs": body.flag("post_sampling_probs"),
            "timings_per_token": body.flag("timings_per_token"),
        });
        if let Value::Object(others) = others {
            settings.extend(others);
        }
        settings
    }
}

/// Sets a sampler's number if the body has it; -1 of a count is 0, of a window the whole context.
fn set(options: &mut Options, parameter: &Parameter, body: &Body) {
    let name = api_name(parameter);
    match parameter.field {
        sampling::Field::Real(_, set) => {
            body.number(&name).into_iter().for_each(|number| set(options, number));
        }
        sampling::Field::Count(_, set) => {
            let count = body.integer(&name).map(|count| usize::try_from(count).unwrap_or(0));
            count.into_iter().for_each(|count| set(options, count));
        }
        sampling::Field::Window(_, set) => {
            let window = body.integer(&name).map(|tokens| usize::try_from(tokens).ok());
            window.into_iter().for_each(|window| set(options, window));
        }
    }
}

/// A sampler's number as JSON, with the digits that 32 bits need.
fn shown(options: &Options, parameter: &Parameter) -> Value {
    match parameter.field {
        sampling::Field::Real(get, _) => {
            let number = get(options);
            number.to_string().parse::<f64>().map_or(json!(number), |short| json!(short))
        }
        sampling::Field::Count(get, _) => json!(get(options)),
        sampling::Field::Window(get, _) => json!(get(options).map_or(-1, |n| n as i64)),
    }
}

fn seed(body: &Body, defaults: &Defaults) -> u64 {
    let asked = body.integer("seed").map(|seed| u64::try_from(seed).ok());
    let fixed = asked.unwrap_or(defaults.seed);
    fixed.unwrap_or_else(new_seed)
}

/// Number of answers that a body asks for.
pub fn answers(body: &Body) -> usize {
    body.count("n_cmpl").or_else(|| body.count("n")).unwrap_or(1)
}

/// Whether a stream ends with a chunk that has the usage.
pub fn includes_usage(body: &Body) -> bool {
    let asked = body.within("stream_options", "include_usage");
    asked.and_then(Value::as_bool).unwrap_or(false)
}

/// What the request asks for, else what the server was started with.
fn predict(body: &Body, defaults: &Defaults) -> Option<usize> {
    let names = ["max_completion_tokens", "max_tokens", "n_predict"];
    let asked = names.iter().find_map(|name| body.integer(name));
    match asked {
        Some(asked) => usize::try_from(asked).ok(),
        None => defaults.predict,
    }
}

#[cfg(test)]
mod tests {
    use super::names::API_NAMES;
    use super::{Accepts, FIELDS, LASTING, api_name, parameters, sampling};
    use crate::api::{completions, native};

    #[test]
    fn fields_that_are_kept_with_an_answer_are_small() {
        for name in LASTING {
            let tables = [FIELDS, completions::FIELDS, native::FIELDS];
            let field = tables.iter().copied().flatten().find(|field| field.name == *name);
            let accepts = field.unwrap_or_else(|| panic!("{name} is no field")).accepts;
            let bytes = match accepts {
                Accepts::Bool | Accepts::Integer(..) | Accepts::Number(..) => 16,
                Accepts::Text(bytes) => bytes,
                Accepts::Texts(texts, bytes) => texts * bytes,
                _ => usize::MAX,
            };
            assert!(bytes <= 256 << 10, "{name}: {accepts:?}");
        }
    }

    #[test]
    fn every_number_of_a_sampler_is_a_field_of_its_type() {
        for parameter in parameters() {
            let name = api_name(parameter);
            let field = FIELDS.iter().find(|field| field.name == name);
            let accepts = field.unwrap_or_else(|| panic!("{name} is not in FIELDS")).accepts;
            let is_real = matches!(parameter.field, sampling::Field::Real(..));
            let fits = match accepts {
                Accepts::Number(..) => is_real,
                Accepts::Integer(..) => !is_real,
                _ => false,
            };
            assert!(fits, "{name}: {accepts:?}");
        }
        for (flag, _) in API_NAMES {
            assert!(parameters().any(|parameter| parameter.name == *flag), "{flag} is no flag");
        }
    }
}
