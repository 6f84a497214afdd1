//! Asks a model all cases.

use std::time::Instant;

use bilayer_engine::encode::{Encoder, Excess, Input};
use bilayer_engine::generate::{Batch, Request, Token};
use bilayer_engine::sampling::{self, Sampler};
use bilayer_engine::session::{Clock, Session, Settings};
use bilayer_engine::{Error as Engine, Model, chat_templates, constrain::Grammar};

use super::cases::{Case, Expected, Question};
use super::judge::{Verdict, text};
use super::{Conversation, Evaluated, Instruments, Options, Outcome};
use crate::power::metered;
use crate::{Error, cosine};

/// An answer, or what there is of it.
#[derive(Default)]
struct Answer {
    text: String,
    tokens: usize,
    first_ms: Option<f64>,
    /// `None` until something was computed.
    ms: Option<f64>,
}

/// An answer in the making.
struct Asked {
    /// Number of the case.
    case: usize,
    began: Instant,
    answer: Answer,
}

impl Asked {
    fn take(&mut self, token: &Token, clock: &Clock) {
        let ms = self.ms(clock);
        let answer = &mut self.answer;
        answer.ms = Some(ms);
        answer.first_ms.get_or_insert(ms);
        answer.text += &token.text;
        answer.tokens += 1;
    }

    /// Ends an answer, which may have no token.
    fn end(&mut self, clock: &Clock) {
        self.answer.ms = self.answer.ms.or_else(|| Some(self.ms(clock)));
    }

    fn ms(&self, clock: &Clock) -> f64 {
        1e3 * clock.since(self.began).as_secs_f64()
    }
}

/// A question as the engine takes it.
struct Prepared {
    tokens: Vec<u32>,
    stops: Vec<String>,
    sampler: Sampler,
    max_tokens: usize,
}

impl Prepared {
    fn request(&self, options: &Options<'_>) -> Request<'static> {
        Request {
            predict: Some(self.max_tokens),
            stops: self.stops.clone().into(),
            cancel: options.cancel.clone(),
            ..Request::new(self.tokens.clone())
        }
    }
}

/// Generates all answers, as many at once as asked for.
pub fn decoder(
    model: &Model,
    settings: Settings<'_>,
    cases: &[Case],
    options: &Options<'_>,
    instruments: Instruments<'_>,
) -> Result<Option<Evaluated>, Error> {
    let parallel = options.parallel.max(1);
    let outputs = Some(settings.outputs.unwrap_or(parallel).max(parallel));
    let mut session = Session::new(model, Settings { sequences: parallel, outputs, ..settings })?;
    let placement = session.plan().map.clone();
    let prepared: Vec<Prepared> = cases
        .iter()
        .map(|case| prepare(model, &mut session, case, options))
        .collect::<Result<_, Error>>()?;
    let prompts: Vec<usize> = prepared.iter().map(|prepared| prepared.tokens.len()).collect();
    let Instruments { encoder, meter, told } = instruments;
    let clock = session.clock().clone();
    let ((answers, seconds), energy) = metered(meter, || {
        let began = clock.now();
        let answers = answers(model, &mut session, prepared, options, told);
        (answers, clock.since(began).as_secs_f64())
    });
    let Some(answers) = answers? else { return Ok(None) };
    let mut outcomes = judge(cases, answers, encoder)?;
    for (outcome, prompt_tokens) in outcomes.iter_mut().zip(prompts) {
        outcome.prompt_tokens = prompt_tokens;
    }
    Ok(Some(Evaluated::of(outcomes, placement, seconds, energy)))
}

/// The answer to each case, or why there is none; `None` if cancelled. `told` is told after every token how many are done.
fn answers(
    model: &Model,
    session: &mut Session,
    prepared: Vec<Prepared>,
    options: &Options<'_>,
    told: &mut dyn FnMut(usize),
) -> Result<Option<Vec<Result<Answer, String>>>, Error> {
    let (parallel, context) = (options.parallel.max(1), session.context());
    let clock = session.clock().clone();
    let mut batch = Batch::new(model, session);
    // Requests of the batch, by number, and the cases that none is made for.
    let (mut asked, mut refused): (Vec<Asked>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
    let mut ended = 0;
    let mut waiting = prepared.into_iter().enumerate().peekable();
    loop {
        while asked.len() < ended + parallel
            && let Some((case, prepared)) = waiting.next()
        {
            let tokens = prepared.tokens.len();
            if tokens >= context {
                let note = format!("a prompt of {tokens} tokens; the context has {context}");
                refused.push((case, note));
                continue;
            }
            batch.push(prepared.request(options), prepared.sampler)?;
            asked.push(Asked { case, began: clock.now(), answer: Answer::default() });
        }
        let next = batch.next()?;
        if options.cancel.is_cancelled() {
            return Ok(None);
        }
        if let Some((number, token)) = &next {
            asked[*number].take(token, &clock);
        }
        let stopped = (0..asked.len()).filter(|&number| batch.stop(number).is_some());
        ended = stopped.map(|number| asked[number].end(&clock)).count();
        if next.is_none() && waiting.peek().is_none() {
            break;
        }
        told(ended + refused.len());
    }
    let mut all: Vec<(usize, Result<Answer, String>)> =
        asked.into_iter().map(|asked| (asked.case, Ok(asked.answer))).collect();
    all.extend(refused.into_iter().map(|(case, note)| (case, Err(note))));
    all.sort_by_key(|(case, _)| *case);
    Ok(Some(all.into_iter().map(|(_, answer)| answer).collect()))
}

/// Tokens, stops and sampler of a case.
fn prepare(
    model: &Model,
    session: &mut Session,
    case: &Case,
    options: &Options<'_>,
) -> Result<Prepared, Error> {
    let mut stops = case.stops.clone();
    let tokens = match &case.question {
        Question::Text(text) => model.prompt_tokens(text)?,
        Question::Messages(messages) => {
            let templates = chat_templates(model.file().metadata()).map_err(Engine::File)?;
            let template = templates.find(options.chat_template).map_err(Engine::Text)?;
            stops.extend(template.stops(model.tokenizer()));
            let sequence = session.open()?;
            let mut chat = Conversation::over(sequence, template);
            chat.replace(messages.clone());
            let turn = chat.turn(model, session);
            session.close(sequence);
            match turn {
                // Judged as any prompt that is too long.
                Err(Engine::Cache(bilayer_engine::session::CacheError::Context {
                    needed, ..
                })) => vec![0; needed],
                turn => turn?.tokens,
            }
        }
    };
    if tokens.is_empty() {
        let problem = "it has no tokens; give a text".to_owned();
        let (line, field) = (case.line, "prompt".to_owned());
        return Err(super::Error::Case { line, field, problem }.into());
    }
    let greedy = sampling::Options { temperature: 0.0, ..sampling::Options::default() };
    let sampler = Sampler::new(greedy, session.vocab(), session.context());
    let mut sampler = sampler.map_err(Engine::SamplingOptions)?;
    if let Some(schema) = &case.schema {
        let constraint = model.constraint(&Grammar::json_schema(schema));
        sampler.set_constraint(constraint.map_err(|error| super::Error::Case {
            line: case.line,
            field: "schema".to_owned(),
            problem: error.to_string(),
        })?);
    }
    Ok(Prepared { tokens, stops, sampler, max_tokens: case.max_tokens })
}

/// Judges generated answers, in the order of the cases.
fn judge(
    cases: &[Case],
    answers: Vec<Result<Answer, String>>,
    mut encoder: Option<&mut Encoder>,
) -> Result<Vec<Outcome>, Error> {
    let judged = cases.iter().zip(answers).map(|(case, answer)| {
        let of = match answer {
            Ok(of) => of,
            Err(note) => return Ok(outcome(case, Answer::default(), Verdict::failed(note))),
        };
        let verdict = match (text(&case.expected, &of.text), &case.expected, &mut encoder) {
            (Some(verdict), ..) => verdict,
            (None, Expected::Similar { text, at_least }, Some(encoder)) => {
                Verdict::similar(similarity(encoder, of.text.trim(), text)?, *at_least)
            }
            (None, ..) => Verdict::failed("there is no encoder to compare texts".to_owned()),
        };
        Ok(outcome(case, of, verdict))
    });
    judged.collect()
}

fn outcome(case: &Case, answer: Answer, verdict: Verdict) -> Outcome {
    Outcome {
        line: case.line,
        id: case.id.clone(),
        answer: answer.text,
        passed: verdict.passed,
        score: verdict.score,
        note: verdict.note,
        prompt_tokens: 0,
        generated_tokens: answer.tokens,
        first_token_ms: answer.first_ms,
        ms: answer.ms,
    }
}

/// Cosine of two texts, which are truncated to what the encoder takes.
fn similarity(encoder: &mut Encoder, a: &str, b: &str) -> Result<f32, Error> {
    let tokens = [a, b]
        .map(|text| encoder.tokens(Input { text, pair: None }, Excess::Truncate))
        .into_iter()
        .collect::<Result<Vec<_>, Engine>>()?;
    let mut rows: Vec<Vec<f32>> = Vec::new();
    encoder.run(tokens.into_iter().map(Ok::<_, Engine>), &mut |_, _, row| {
        rows.push(row.to_vec());
        Ok(())
    })?;
    Ok(cosine(&rows[0], &rows[1]) as f32)
}

/// Classifies or compares all texts, some in each step.
pub fn encoder(
    model: &Model,
    settings: Settings<'_>,
    cases: &[Case],
    options: &Options<'_>,
    instruments: Instruments<'_>,
) -> Result<Option<Evaluated>, Error> {
    let Instruments { meter, told, .. } = instruments;
    let parallel = options.parallel.max(1);
    // Two texts are compared.
    let settings = Settings { sequences: (2 * parallel).min(64), ..settings };
    let mut encoder = Encoder::new(model, settings)?;
    let placement = encoder.session().plan().map.clone();
    let clock = encoder.session().clock().clone();
    let ((outcomes, seconds), energy) = metered(meter, || {
        let began = clock.now();
        let outcomes = classified(&mut encoder, cases, options, told);
        (outcomes, clock.since(began).as_secs_f64())
    });
    let Some(outcomes) = outcomes? else { return Ok(None) };
    let evaluated = Evaluated::of(outcomes, placement, seconds, energy);
    Ok(Some(Evaluated { is_encoder: true, ..evaluated }))
}

/// The outcome of each case of an encoder; `None` if cancelled. `told` is told after every step how many are done.
fn classified(
    encoder: &mut Encoder,
    cases: &[Case],
    options: &Options<'_>,
    told: &mut dyn FnMut(usize),
) -> Result<Option<Vec<Outcome>>, Error> {
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    for group in cases.chunks(options.parallel.max(1)) {
        if options.cancel.is_cancelled() {
            return Ok(None);
        }
        outcomes.extend(self::group(encoder, group)?);
        told(outcomes.len());
    }
    Ok(Some(outcomes))
}

/// Runs a few texts in as few steps as possible.
fn group(encoder: &mut Encoder, cases: &[Case]) -> Result<Vec<Outcome>, Error> {
    let clock = encoder.session().clock().clone();
    let began = clock.now();
    let mut runs: Vec<(usize, Vec<u32>)> = Vec::new();
    let mut outcomes = Vec::with_capacity(cases.len());
    for (number, case) in cases.iter().enumerate() {
        let Question::Text(question) = &case.question else { continue };
        let second = match &case.expected {
            Expected::Similar { text, .. } => Some(text),
            _ => None,
        };
        let texts = std::iter::once(question).chain(second);
        let tokens: Result<Vec<_>, Engine> =
            texts.map(|text| encoder.tokens(Input { text, pair: None }, Excess::Refuse)).collect();
        let mut made = outcome(case, Answer::default(), Verdict::from(false));
        match tokens {
            Ok(all) => {
                made.prompt_tokens = all.iter().map(Vec::len).sum();
                runs.extend(all.into_iter().map(|tokens| (number, tokens)));
            }
            Err(error @ Engine::TooLong { .. }) => made.note = Some(error.to_string()),
            Err(error) => return Err(error.into()),
        }
        outcomes.push(made);
    }
    let (numbers, tokens): (Vec<usize>, Vec<Vec<u32>>) = runs.into_iter().unzip();
    let mut rows: Vec<Vec<Vec<f32>>> = vec![Vec::new(); cases.len()];
    encoder.run(tokens.into_iter().map(Ok::<_, Engine>), &mut |at, _, row| {
        rows[numbers[at]].push(row.to_vec());
        Ok(())
    })?;
    let ms = 1e3 * clock.since(began).as_secs_f64();
    for ((case, outcome), rows) in cases.iter().zip(&mut outcomes).zip(rows) {
        let (answer, verdict) = match (&case.expected, &rows[..]) {
            (Expected::Label(label), [row]) => {
                let probabilities = encoder.labelling().probabilities(row);
                labelled(encoder.text_labels()?, &probabilities, label)
            }
            (Expected::Similar { at_least, .. }, [a, b]) => {
                (String::new(), Verdict::similar(cosine(a, b) as f32, *at_least))
            }
            _ => continue,
        };
        outcome.answer = answer;
        outcome.ms = Some(ms);
        (outcome.passed, outcome.score) = (verdict.passed, verdict.score);
        outcome.note = verdict.note;
    }
    Ok(outcomes)
}

/// The likeliest label, judged.
fn labelled(labels: &[String], probabilities: &[f32], expected: &str) -> (String, Verdict) {
    let all = labels.iter().zip(probabilities);
    let best = all.reduce(|best, next| if next.1 > best.1 { next } else { best });
    let Some((label, probability)) = best else {
        return (String::new(), Verdict::from(false));
    };
    let note = Some(format!("probability {probability:.3}"));
    (label.clone(), Verdict { note, ..Verdict::from(label == expected) })
}
