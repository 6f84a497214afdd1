//! `bilayer run`: generates text from a prompt.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use bilayer_engine::constrain::Constraint;
use bilayer_engine::generate::speculate::{Drafted, Drafts};
use bilayer_engine::generate::{self, Generation, Request, Statistics, Stop, Token};
use bilayer_engine::sampling::{Breakers, Options, Sampler};
use bilayer_engine::session::{CacheError, Session};
use bilayer_engine::{Error, Model};

use crate::args::RunArgs;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::npy::Npy;
use crate::{demo, output, progress, trace};

mod chat;
mod constraint;
pub mod drafting;
pub mod prompt;
mod prompt_cache;
mod report;
pub mod settings;

/// The request and its options.
struct Question {
    prompt: Vec<u32>,
    options: Options,
    /// What ends a DRY match.
    breakers: Arc<Breakers>,
    stops: Vec<String>,
    constraint: Option<Constraint>,
}

impl Question {
    /// The sampler for its answer in a session.
    fn sampler(&self, session: &Session) -> Result<Sampler, Error> {
        let options = self.options.clone();
        let mut sampler = Sampler::new(options, session.vocab(), session.context())?;
        sampler.set_breakers(self.breakers.clone());
        if let Some(constraint) = &self.constraint {
            sampler.set_constraint(constraint.clone());
        }
        Ok(sampler)
    }
}

/// An answer with its statistics.
struct Answer {
    text: String,
    tokens: Vec<Token>,
    stop: Stop,
    statistics: Statistics,
}

/// Loads, generates, reports.
pub fn execute(args: &RunArgs) -> Result<u8, Failure> {
    interrupt::catch();
    trace::check(args.trace.as_deref())?;
    prompt_cache::check(&args.prompt_cache)?;
    let began = Instant::now();
    match chat::wanted(args) {
        Some(wanted) => chat::execute(args, wanted, began),
        None => complete(args, began),
    }
}

/// Completes a text.
fn complete(args: &RunArgs, began: Instant) -> Result<u8, Failure> {
    note_chat_flags(args)?;
    let given = prompt::given(args)?;
    let waited = began.elapsed();
    let model = demo::open(&demo::Source { runs: true, ..args.model.source() })?;
    if model.config().encoder.is_some() {
        return Err(Error::NoDecoder { name: model.name() }.into());
    }
    if !args.json && chat::may_be_meant(args, &model)? {
        output::note(
            "note: the model has a chat template, but this is a plain completion; -cnv chats, -no-cnv hides this note",
        );
    }
    let question = Question {
        prompt: prompt::tokens(given, &model)?,
        options: settings::sampling(&args.sampling, &model)?,
        breakers: settings::breakers(args, &model)?,
        stops: settings::texts(args, &args.answer.stop)?,
        constraint: constraint::asked(args, &model)?,
    };
    let mut logits_file = logits_file(args, &model, question.prompt.len())?;
    let mut drafts = drafting::open(&args.draft, &args.model, &model, Drafted::ONE)?;
    let asked = settings::Asked {
        options: &question.options,
        prompt: question.prompt.len(),
        drafts: drafts.as_ref(),
    };
    let mut session = settings::session(args, &model, &asked)?;
    let load = began.elapsed() - waited;
    begin(&model, &mut session, question.prompt.len())?;
    if args.verbose_prompt {
        report::prompt(&model, &question.prompt);
    }
    if let Some((path, file)) = logits_file.take() {
        logits(&mut session, &question.prompt, file, path)?;
    }
    if args.echo && !args.json {
        output::text(&model.tokenizer().decode(&question.prompt))?;
    }
    let answer = answer(args, &model, (&mut session, drafts.as_mut()), &question)?;
    warn(&mut session);
    let code = if answer.stop == Stop::Interrupted { INTERRUPTED } else { 0 };
    if args.json {
        let report = report::Report {
            model: &model,
            session: &session,
            load,
            is_speculative: drafts.is_some(),
        };
        output::json(&report.document(&question, &answer))?;
    } else {
        output::text("\n")?;
    }
    note_full_context(&session, &answer);
    if !args.no_perf {
        times(&session, &answer.statistics);
    }
    if let Some(path) = &args.trace {
        trace::write(&session, path)?;
    }
    Ok(code)
}

/// Says which flags have no effect, since nothing is chatted.
fn note_chat_flags(args: &RunArgs) -> Result<(), Failure> {
    let has_variables = !args.chat.template.variables()?.is_empty();
    if args.chat.template.is_chosen() || has_variables {
        output::note("note: the chat template is ignored in a plain completion; -cnv chats");
    }
    if args.chat.reasoning.is_chosen() {
        output::note(
            "note: flags about reasoning have no effect in a plain completion; -cnv chats",
        );
    }
    Ok(())
}

/// Says that the context was full, and what was done about it.
fn note_full_context(session: &Session, answer: &Answer) {
    if answer.stop == Stop::Context {
        let context = session.context();
        output::note(&format!(
            "note: the context of {context} tokens is full; -c sets a larger one, --context-shift goes on"
        ));
    }
    if answer.statistics.shifted > 0 {
        output::note(&format!("note: {}", report::shifted(answer.statistics.shifted)));
    }
}

/// Prints the model, its devices, and what is unusual about them.
fn introduce(model: &Model, session: &mut Session) {
    output::note(&report::opening(model, session));
    for note in &session.plan().notes {
        output::note(&format!("note: {note}"));
    }
    let (context, trained) = (session.context(), model.config().context);
    if context > trained {
        output::note(&format!(
            "note: -c is {context}, but the model was trained for {trained} tokens; answers get worse beyond them"
        ));
    }
    warn(session);
    report::details(session);
}

/// Prints the closing lines.
fn times(session: &Session, statistics: &Statistics) {
    output::note(&report::placement(session));
    output::note(&report::statistics(statistics));
    if let Some(line) = report::experts(session) {
        output::note(&line);
    }
    if let Some(line) = report::prediction(session, statistics) {
        output::note(&line);
    }
}

/// Prints the placement, once it is known that the prompt fits.
fn begin(model: &Model, session: &mut Session, needed: usize) -> Result<(), Failure> {
    let context = session.context();
    if needed > context {
        return Err(Error::from(CacheError::Context { needed, context }).into());
    }
    introduce(model, session);
    interrupt::answering();
    Ok(())
}

pub use report::{details, devices, placement};

/// Prints the session's warnings.
pub fn warn(session: &mut Session) {
    for warning in session.take_warnings() {
        output::warning(&warning);
    }
}

/// The file of `--logits`, opened before the work so that an unwritable path is reported at once.
fn logits_file<'a>(
    args: &'a RunArgs,
    model: &Model,
    rows: usize,
) -> Result<Option<(&'a Path, Npy)>, Failure> {
    let Some(path) = &args.logits else { return Ok(None) };
    let file = Npy::create(path, rows, model.config().vocab);
    Ok(Some((path, file.map_err(|error| Failure::output(path, &error))?)))
}

/// Runs the prompt in a new sequence with logits at every position, and writes them.
fn logits(
    session: &mut Session,
    prompt: &[u32],
    mut file: Npy,
    path: &Path,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::output(path, &error);
    let bar = progress::tokens("logits", prompt.len());
    let width = session.vocab();
    let is_whole = generate::logits(session, prompt, &mut |rows| {
        file.rows(rows).map_err(failed)?;
        bar.inc((rows.len() / width) as u64);
        Ok::<bool, Failure>(!interrupt::is_set())
    })?;
    bar.finish_and_clear();
    if !is_whole {
        let line = format!("interrupted; {} was not written", path.display());
        return Err(Failure::Line(INTERRUPTED, line));
    }
    file.finish().map_err(failed)
}

/// Generates the answer and streams it, unless the output is one document.
fn answer(
    args: &RunArgs,
    model: &Model,
    (session, drafts): (&mut Session, Option<&mut Drafts>),
    question: &Question,
) -> Result<Answer, Failure> {
    let sampler = question.sampler(session)?;
    let (sequence, held) =
        prompt_cache::open(&args.prompt_cache, model, session, &question.prompt)?;
    let request = Request {
        predict: settings::predict(args),
        stops: question.stops.clone().into(),
        ignore_eos: args.answer.ignore_eos,
        show_control: args.answer.special,
        logprobs: args.logprobs,
        cancel: interrupt::handle().clone(),
        shift: settings::shift(&args.answer, &question.prompt, model),
        ..Request::new(&question.prompt[held..])
    };
    let mut generation = Generation::new(model, session, sequence, sampler, request)?;
    if let Some(drafts) = drafts {
        generation = generation.with_drafter(drafts.drafter())?;
    }
    let answer = streamed(args, generation, question.prompt.len() - held, &mut output::text)?;
    // After a shift the sequence does not begin with the prompt.
    if answer.statistics.shifted == 0 {
        prompt_cache::keep(&args.prompt_cache, session, sequence, question.prompt.len())?;
    }
    Ok(answer)
}

/// Runs a prompt of `prompt` tokens and generates the answer, which is printed piece by piece unless the output is one
/// document.
fn streamed(
    args: &RunArgs,
    mut generation: Generation<'_>,
    prompt: usize,
    print: &mut dyn FnMut(&str) -> Result<(), Failure>,
) -> Result<Answer, Failure> {
    let bar = progress::tokens("prompt", prompt);
    generation.prefill(&mut |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let mut show = |piece: &str| {
        text.push_str(piece);
        if args.json || piece.is_empty() { Ok(()) } else { print(piece) }
    };
    while let Some(token) = generation.next()? {
        show(&token.text)?;
        tokens.push(token);
    }
    show(&generation.finish())?;
    let stop = generation.stop().unwrap_or(Stop::Length);
    let statistics = generation.statistics();
    Ok(Answer { text, tokens, stop, statistics })
}
