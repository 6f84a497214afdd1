//! Evaluates models on a team's own cases: how many answers are as expected, how fast they come, what energy they take.
//!
//! [`parse`] reads the cases. [`run()`] answers all of them with one model: a decoder generates greedily, several answers at
//! once if asked for; an encoder classifies or compares texts. A case that a model cannot be asked (a label that it does not
//! know, a conversation without a chat template) is an error before anything runs; a prompt that is too long is a failed case.

use bilayer_engine::conversation::Conversation;
use bilayer_engine::encode::Encoder;
use bilayer_engine::session::Settings;
use bilayer_engine::{Cancel, Model, chat_templates};
use serde::Serialize;
use serde_json::Value;

use crate::power::{self, Energy, Meter};

mod cases;
pub(crate) mod error;
mod judge;
mod run;
mod unique;

pub use cases::{ANSWER_TOKENS, AT_LEAST, Case, Expected, Question, parse};
pub use error::Error;
pub use judge::Verdict;

/// How cases are run.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The chat template in place of the model's own.
    pub chat_template: Option<&'a str>,
    /// Answers in the making at once, or texts in a step of an encoder.
    pub parallel: usize,
    /// Whether there is an encoder to compare answers with expected ones.
    pub compares: bool,
    /// Ends the run.
    pub cancel: Cancel,
}

/// What a run uses beside the model.
pub struct Instruments<'a> {
    /// Embeds answers to compare them with expected ones.
    pub encoder: Option<&'a mut Encoder>,
    /// Counts energy.
    pub meter: Option<&'a mut Meter>,
    /// Is told how many cases are done.
    pub told: &'a mut dyn FnMut(usize),
}

/// A case's answer and what it is worth.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Line of the case.
    pub line: usize,
    /// The user's id.
    pub id: Option<Value>,
    /// The text generated, or the likeliest label; empty for a comparison of texts.
    pub answer: String,
    /// Whether it is as expected.
    pub passed: bool,
    /// From 0 to 1.
    pub score: f64,
    /// What is wrong, or what was found.
    pub note: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// From the request to the first token, milliseconds; `None` without generation.
    pub first_token_ms: Option<f64>,
    /// From the request to the end of the answer, milliseconds; `None` if the prompt was too long to run.
    pub ms: Option<f64>,
}

/// A model's run over all cases.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluated {
    /// The placement, as `run` prints it.
    pub placement: String,
    /// Each case in order.
    pub outcomes: Vec<Outcome>,
    /// Cases that passed.
    pub passed: usize,
    /// Passed cases as a share of all.
    pub quality: f64,
    /// Bounds that hold the true share with 95 % probability, by Wilson's formula.
    pub interval: [f64; 2],
    /// Mean of the scores.
    pub score: f64,
    /// Wall-clock time of all cases.
    pub seconds: f64,
    /// Tokens of all prompts that ran.
    pub prompt_tokens: usize,
    /// Tokens of all answers.
    pub generated_tokens: usize,
    /// Median and 95th percentile of the time to the first token, milliseconds.
    pub first_token_ms: Option<[f64; 2]>,
    /// Median and 95th percentile of the time of the cases that ran, milliseconds.
    pub case_ms: Option<[f64; 2]>,
    /// Energy of the run, joules, if it was measured.
    pub joules: Option<f64>,
    /// Why energy is unknown although there is a meter: a counter failed during the run.
    #[serde(skip)]
    pub energy_error: Option<String>,
    /// Whether the model is an encoder, which generates no tokens.
    #[serde(skip)]
    pub is_encoder: bool,
}

impl Evaluated {
    /// Cases per second, of those that ran.
    pub fn rate(&self) -> f64 {
        self.outcomes.iter().filter(|outcome| outcome.ms.is_some()).count() as f64 / self.seconds
    }

    /// Generated tokens per second, the time of prompts included; of an encoder, tokens read per second.
    pub fn tokens_per_second(&self) -> f64 {
        let tokens = if self.is_encoder { self.prompt_tokens } else { self.generated_tokens };
        tokens as f64 / self.seconds
    }
}

/// Checks that a model can be asked every case.
///
/// # Errors
/// [`Error::Case`], which names what the model lacks.
pub fn check(model: &Model, cases: &[Case], options: &Options<'_>) -> Result<(), crate::Error> {
    let config = model.config();
    let labels = config.encoder.as_ref().filter(|encoder| encoder.scores);
    let labels = labels.map(|encoder| &encoder.head.labels[..]);
    let name = model.name();
    for case in cases {
        let wrong = |field: &str, problem: String| {
            Err(Error::Case { line: case.line, field: field.to_owned(), problem }.into())
        };
        let field = case.expected.field();
        match (&case.expected, labels, config.encoder.is_some()) {
            (Expected::Similar { .. }, _, false) if !options.compares => {
                let problem = "it takes an encoder to compare texts".to_owned();
                return wrong(field, problem);
            }
            (_, _, false) => {}
            (Expected::Label(label), Some(labels), true) if labels.contains(label) => {}
            (Expected::Label(label), Some(labels), true) => {
                let labels = labels.join(", ");
                return wrong(field, format!("{name} has no label `{label}`; it has {labels}"));
            }
            (Expected::Similar { .. }, None, true) => {}
            (_, Some(_), true) => return wrong(field, format!("{name} only gives labels")),
            (_, None, true) => return wrong(field, format!("{name} only embeds; give `similar`")),
        }
        if let Question::Messages(_) = case.question {
            if config.encoder.is_some() {
                return wrong("messages", format!("{name} is an encoder; give `prompt`"));
            }
            let metadata = model.file().metadata();
            let templates = chat_templates(metadata).map_err(bilayer_engine::Error::File)?;
            if let Err(error) = templates.find(options.chat_template) {
                return wrong("messages", format!("{name}: {error}"));
            }
        }
    }
    Ok(())
}

/// Answers and judges all cases with a model. `None` if cancelled.
///
/// # Errors
/// Those of [`check`] and of running the model.
pub fn run(
    model: &Model,
    settings: Settings<'_>,
    cases: &[Case],
    options: &Options<'_>,
    instruments: Instruments<'_>,
) -> Result<Option<Evaluated>, crate::Error> {
    check(model, cases, options)?;
    match model.config().encoder {
        Some(_) => run::encoder(model, settings, cases, options, instruments),
        None => run::decoder(model, settings, cases, options, instruments),
    }
}

impl Expected {
    /// The field of a case that gives it.
    pub fn field(&self) -> &'static str {
        match self {
            Expected::Exact(_) => "exact",
            Expected::Regex(_) => "regex",
            Expected::Fields(_) => "fields",
            Expected::Label(_) => "label",
            Expected::Similar { .. } => "similar",
        }
    }
}

/// Wilson's interval of a share with 95 % confidence.
fn interval(passed: usize, cases: usize) -> [f64; 2] {
    const Z: f64 = 1.959964;
    let n = cases.max(1) as f64;
    let share = passed as f64 / n;
    let middle = (share + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    [(middle - half).max(0.0), (middle + half).min(1.0)]
}

/// Median and 95th percentile, by the nearest rank; `None` of nothing.
fn percentiles(mut all: Vec<f64>) -> Option<[f64; 2]> {
    all.sort_by(f64::total_cmp);
    let at = |share: f64| all[(share * all.len() as f64).ceil() as usize - 1];
    (!all.is_empty()).then(|| [at(0.5), at(0.95)])
}

impl Evaluated {
    /// Sums outcomes up.
    fn of(
        outcomes: Vec<Outcome>,
        placement: String,
        seconds: f64,
        energy: Option<Result<Energy, power::Error>>,
    ) -> Self {
        let (energy, energy_error) = match energy.transpose() {
            Ok(energy) => (energy, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let passed = outcomes.iter().filter(|outcome| outcome.passed).count();
        let count = outcomes.len().max(1) as f64;
        let ran = || outcomes.iter().filter(|outcome| outcome.ms.is_some());
        Evaluated {
            passed,
            quality: passed as f64 / count,
            interval: interval(passed, outcomes.len()),
            score: outcomes.iter().map(|outcome| outcome.score).sum::<f64>() / count,
            prompt_tokens: ran().map(|outcome| outcome.prompt_tokens).sum(),
            generated_tokens: outcomes.iter().map(|outcome| outcome.generated_tokens).sum(),
            first_token_ms: percentiles(
                outcomes.iter().filter_map(|outcome| outcome.first_token_ms).collect(),
            ),
            case_ms: percentiles(outcomes.iter().filter_map(|outcome| outcome.ms).collect()),
            seconds: seconds.max(f64::MIN_POSITIVE),
            placement,
            outcomes,
            joules: energy.map(|energy| energy.joules),
            energy_error,
            is_encoder: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Evaluated, Outcome, interval, percentiles};

    #[test]
    fn the_speed_of_a_decoder_is_that_of_its_answers() {
        let empty = Outcome {
            line: 1,
            id: None,
            answer: String::new(),
            passed: true,
            score: 1.0,
            note: None,
            prompt_tokens: 30,
            generated_tokens: 0,
            first_token_ms: None,
            ms: Some(1.0),
        };
        let decoder = Evaluated::of(vec![empty], String::new(), 2.0, None);
        assert_eq!(decoder.tokens_per_second(), 0.0);
        assert_eq!(Evaluated { is_encoder: true, ..decoder }.tokens_per_second(), 15.0);
    }

    #[test]
    fn shares_have_intervals_and_times_percentiles() {
        // Values of Wilson's interval for 9 of 10, and at the ends.
        let [low, high] = interval(9, 10);
        assert!((low - 0.5958).abs() < 1e-3 && (high - 0.9821).abs() < 1e-3, "{low} {high}");
        assert!(interval(0, 5)[0].abs() < 1e-9);
        assert!((interval(5, 5)[1] - 1.0).abs() < 1e-9);
        assert_eq!(percentiles((1..=100).rev().map(f64::from).collect()), Some([50.0, 95.0]));
        assert_eq!(percentiles(vec![3.0]), Some([3.0, 3.0]));
        assert_eq!(percentiles(Vec::new()), None);
    }
}
