//! Asks a model all cases.

use std::time::Instant;

use bilayer_engine::encode::{Encoder, Excess, Input, probabilities};
use bilayer_engine::generate::{Batch, Request};
use bilayer_engine::sampling::{self, Sampler};
use bilayer_engine::session::{Session, Settings};
use bilayer_engine::{Error as Engine, Model, chat_templates, constrain::Grammar};

use super::cases::{Case, Expected, Question};
use super::judge::{Verdict, cosine, text};
use super::{Conversation, Evaluated, Instruments, Options, Outcome};
use crate::Error;
use crate::power::Meter;

/// Energy so far; a counter must be read now and then.
struct Energy<'a> {
    meter: Option<&'a mut Meter>,
    joules: Option<f64>,
    read: Instant,
}

impl<'a> Energy<'a> {
    fn begin(mut meter: Option<&'a mut Meter>) -> Energy<'a> {
        let joules = meter.as_mut().and_then(|meter| meter.joules().ok()).map(|_| 0.0);
        Energy { meter, joules, read: Instant::now() }
    }

    /// Reads the counters, at most once a second.
    fn tick(&mut self) {
        if self.read.elapsed().as_secs() >= 1 {
            self.read();
        }
    }

    fn read(&mut self) -> Option<f64> {
        self.read = Instant::now();
        // A counter that fails makes the sum unknown.
        let more = self.meter.as_mut().and_then(|meter| meter.joules().ok());
        self.joules = self.joules.zip(more).map(|(sum, more)| sum + more);
        self.joules
    }
}

/// An answer in the making.
struct Asked {
    /// Number of the case.
    case: usize,
    began: Instant,
    first_ms: Option<f64>,
    ms: f64,
    text: String,
    tokens: usize,
}

impl Asked {
    fn new(case: usize) -> Asked {
        let (began, text) = (Instant::now(), String::new());
        Asked { case, began, first_ms: None, ms: 0.0, text, tokens: 0 }
    }
}

/// A question as the engine takes it.
struct Prepared {
    tokens: Vec<u32>,
    stops: Vec<String>,
    sampler: Sampler,
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
    let context = session.context();
    let Instruments { encoder, meter, told } = instruments;
    let mut energy = Energy::begin(meter);
    let began = Instant::now();
    let mut batch = Batch::new(model, &mut session);
    let mut waiting = cases.iter().zip(prepared).enumerate().peekable();
    let mut asked: Vec<Asked> = Vec::new();
    let mut refused = vec![None; cases.len()];
    let mut ended = 0;
    loop {
        while asked.len() < ended + parallel
            && let Some((number, (case, prepared))) = waiting.next()
        {
            if prepared.tokens.len() >= context {
                let tokens = prepared.tokens.len();
                refused[number] =
                    Some(format!("a prompt of {tokens} tokens; the context has {context}"));
                continue;
            }
            let request = Request {
                predict: Some(case.max_tokens),
                stops: prepared.stops,
                cancel: options.cancel.clone(),
                ..Request::new(prepared.tokens)
            };
            batch.push(request, prepared.sampler)?;
            asked.push(Asked::new(number));
        }
        let next = batch.next()?;
        energy.tick();
        if options.cancel.is_cancelled() {
            return Ok(None);
        }
        let Some((number, token)) = next else {
            ended = asked.len();
            told(ended);
            if waiting.peek().is_none() {
                break;
            }
            continue;
        };
        let of = &mut asked[number];
        of.ms = 1e3 * of.began.elapsed().as_secs_f64();
        of.first_ms.get_or_insert(of.ms);
        of.text += &token.text;
        of.tokens += 1;
        let over = (0..asked.len()).filter(|&number| batch.stop(number).is_some()).count();
        if over > ended {
            ended = over;
            told(ended);
        }
    }
    let (seconds, joules) = (began.elapsed().as_secs_f64(), energy.read());
    let judged = judge(cases, asked, &refused, encoder)?;
    let outcomes = judged.into_iter().zip(prompts);
    let outcomes =
        outcomes.map(|(outcome, prompt_tokens)| Outcome { prompt_tokens, ..outcome }).collect();
    Ok(Some(Evaluated::of(outcomes, placement, seconds, joules)))
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
    let sampler = Sampler::new(greedy, session.vocab(), session.context(), Vec::new());
    let mut sampler = sampler.map_err(Engine::SamplingOptions)?;
    if let Some(schema) = &case.schema {
        let constraint = model.constraint(&Grammar::json_schema(schema));
        sampler.set_constraint(constraint.map_err(|error| super::Error::Case {
            line: case.line,
            field: "schema".to_owned(),
            problem: error.to_string(),
        })?);
    }
    Ok(Prepared { tokens, stops, sampler })
}

/// Judges generated answers, in the order of the cases.
fn judge(
    cases: &[Case],
    asked: Vec<Asked>,
    refused: &[Option<String>],
    mut encoder: Option<&mut Encoder>,
) -> Result<Vec<Outcome>, Error> {
    let mut asked = asked.into_iter().peekable();
    let mut outcomes = Vec::with_capacity(cases.len());
    for (number, case) in cases.iter().enumerate() {
        let Some(of) = asked.next_if(|asked| asked.case == number) else {
            let note = refused[number].clone().unwrap_or_default();
            let none = Asked { ms: 0.0, ..Asked::new(number) };
            outcomes.push(outcome(case, none, Verdict::failed(note)));
            continue;
        };
        let verdict = match (text(&case.expected, &of.text), &case.expected, &mut encoder) {
            (Some(verdict), ..) => verdict,
            (None, Expected::Similar { text, at_least }, Some(encoder)) => {
                let similarity = similarities(encoder, &[(of.text.trim(), text)])?;
                Verdict::similar(similarity[0], *at_least)
            }
            (None, ..) => Verdict::failed("there is no encoder to compare texts".to_owned()),
        };
        outcomes.push(outcome(case, of, verdict));
    }
    Ok(outcomes)
}

fn outcome(case: &Case, asked: Asked, verdict: Verdict) -> Outcome {
    Outcome {
        line: case.line,
        id: case.id.clone(),
        answer: asked.text,
        passed: verdict.passed,
        score: verdict.score,
        note: verdict.note,
        prompt_tokens: 0,
        generated_tokens: asked.tokens,
        first_token_ms: asked.first_ms,
        ms: asked.ms,
    }
}

/// Cosines of pairs of texts, which are truncated to what the encoder takes.
fn similarities(encoder: &mut Encoder, pairs: &[(&str, &str)]) -> Result<Vec<f32>, Error> {
    let texts = pairs.iter().flat_map(|(a, b)| [*a, *b]);
    let tokens = texts
        .map(|text| encoder.tokens(Input { text, pair: None }, Excess::Truncate))
        .collect::<Result<Vec<_>, Engine>>()?;
    let mut rows: Vec<Vec<f32>> = Vec::new();
    encoder.run(tokens.into_iter().map(Ok::<_, Engine>), &mut |_, _, row| {
        rows.push(row.to_vec());
        Ok(())
    })?;
    Ok(rows.chunks_exact(2).map(|pair| cosine(&pair[0], &pair[1])).collect())
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
    let mut energy = Energy::begin(meter);
    let began = Instant::now();
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    for group in cases.chunks(parallel) {
        if options.cancel.is_cancelled() {
            return Ok(None);
        }
        let since = Instant::now();
        let mut judged = self::group(&mut encoder, group)?;
        let ms = 1e3 * since.elapsed().as_secs_f64();
        judged.iter_mut().for_each(|outcome| outcome.ms = ms);
        outcomes.extend(judged);
        energy.tick();
        told(outcomes.len());
    }
    let (seconds, joules) = (began.elapsed().as_secs_f64(), energy.read());
    Ok(Some(Evaluated::of(outcomes, placement, seconds, joules)))
}

/// Runs a few texts in as few steps as possible.
fn group(encoder: &mut Encoder, cases: &[Case]) -> Result<Vec<Outcome>, Error> {
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
        let mut made = outcome(case, Asked::new(number), Verdict::of(false));
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
    for ((case, outcome), rows) in cases.iter().zip(&mut outcomes).zip(rows) {
        let (answer, verdict) = match (&case.expected, &rows[..]) {
            (Expected::Label(label), [row]) => labelled(encoder.labels(), row, label),
            (Expected::Similar { at_least, .. }, [a, b]) => {
                (String::new(), Verdict::similar(cosine(a, b), *at_least))
            }
            _ => continue,
        };
        outcome.answer = answer;
        (outcome.passed, outcome.score) = (verdict.passed, verdict.score);
        outcome.note = verdict.note;
    }
    Ok(outcomes)
}

/// The likeliest label, judged.
fn labelled(labels: &[String], row: &[f32], expected: &str) -> (String, Verdict) {
    let all = labels.iter().zip(probabilities(row));
    let best = all.reduce(|best, next| if next.1 > best.1 { next } else { best });
    let Some((label, probability)) = best else {
        return (String::new(), Verdict::of(false));
    };
    let note = Some(format!("probability {probability:.3}"));
    (label.clone(), Verdict { note, ..Verdict::of(label == expected) })
}
