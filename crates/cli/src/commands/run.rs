//! `bilayer run`: from a prompt to a text.

use std::sync::atomic::{AtomicBool, Ordering};

use bilayer_engine::generate::{Generation, Request, Statistics, Stop, Token};
use bilayer_engine::sampling::Sampler;
use bilayer_engine::session::{Run as StepRun, Session, Wanted};
use bilayer_engine::{Model, sampling};
use bilayer_text::Encode;
use clap::Parser;

use crate::args::{Cli, Command, Run};
use crate::failure::{Failure, INTERRUPTED};
use crate::npy::Npy;
use crate::{demo, output, progress};

mod report;
mod settings;

/// Set by Ctrl-C; the answer ends at the next token.
static INTERRUPT: AtomicBool = AtomicBool::new(false);

/// What `bilayer` alone stands for.
pub fn unasked() -> Result<Run, Failure> {
    let cli = Cli::try_parse_from(["bilayer", "run"]).map_err(Failure::Usage)?;
    match cli.command {
        Some(Command::Run(run)) => Ok(*run),
        _ => Err(Failure::Line(crate::failure::INTERNAL, "`run` did not parse as `run`".into())),
    }
}

/// An answer with all that is reported of it.
struct Answer {
    prompt_tokens: Vec<u32>,
    text: String,
    tokens: Vec<Token>,
    stop: Stop,
    statistics: Statistics,
}

/// Loads, generates, reports.
pub fn execute(args: &Run) -> Result<u8, Failure> {
    catch_interrupt();
    let model = demo::open(args.model.model.as_deref(), args.model.no_mmap)?;
    if args.model.mlock {
        model.file().lock().map_err(bilayer_engine::Error::File)?;
    }
    let prompt = prompt(args, &model)?;
    let seed = settings::seed(args.sampling.seed);
    let options = settings::sampling(&args.sampling, seed, &model)?;
    let mut session = settings::session(args, &model, prompt.len())?;
    eprintln!("{}", report::opening(&model, &session));
    if let Some(path) = &args.logits {
        logits(&mut session, &prompt, path)?;
    }
    if args.echo && !args.json {
        output::text(&model.tokenizer().decode(&prompt))?;
    }
    let answer = answer(args, &model, &mut session, prompt, options)?;
    if args.json {
        output::json(&report::document(&model, &session, &answer, seed))?;
    } else {
        output::text("\n")?;
    }
    eprintln!("{}", report::placement(&session));
    eprintln!("{}", report::statistics(&answer.statistics));
    Ok(if answer.stop == Stop::Interrupted { INTERRUPTED } else { 0 })
}

/// The first Ctrl-C ends the answer, the second the process.
fn catch_interrupt() {
    let handler = || {
        if INTERRUPT.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
    };
    // A handler may already be set when a test calls us twice: the first one serves.
    let _ = ctrlc::set_handler(handler);
}

/// The prompt's ids from wherever it was given.
fn prompt(args: &Run, model: &Model) -> Result<Vec<u32>, Failure> {
    let vocab = model.config().vocab;
    if !args.tokens.is_empty() {
        return match args.tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(bilayer_engine::Error::Token { token, vocab }.into()),
            None => Ok(args.tokens.clone()),
        };
    }
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => output::file(path)?,
        (None, None) => output::piped()?.unwrap_or_default(),
    };
    let demo = args.model.model.is_none();
    let text = if demo && text.is_empty() { demo::PROMPT.to_owned() } else { text };
    let options = Encode { add_special: true, parse_special: true };
    let tokens =
        model.tokenizer().encode(&text, options).map_err(bilayer_engine::Error::Text)?;
    if tokens.is_empty() {
        return Err(Failure::usage("no prompt: give -p TEXT, -f FILE, --tokens IDS, or pipe it in"));
    }
    Ok(tokens)
}

/// Runs the prompt once more, asking for every position, and writes the logits.
fn logits(session: &mut Session, prompt: &[u32], path: &std::path::Path) -> Result<(), Failure> {
    let vocab = session.vocab();
    let failed = |error: std::io::Error| Failure::output(path, &error);
    let mut file = Npy::create(path, prompt.len(), vocab).map_err(failed)?;
    let sequence = session.open()?;
    let rows = session.limits().outputs.min(session.limits().tokens);
    let bar = progress::tokens("logits", prompt.len());
    for tokens in prompt.chunks(rows) {
        let logits = session.step(&[StepRun { sequence, tokens, wanted: Wanted::All }])?;
        file.rows(logits).map_err(failed)?;
        bar.inc(tokens.len() as u64);
    }
    bar.finish_and_clear();
    session.close(sequence);
    file.finish().map_err(failed)
}

fn answer(
    args: &Run,
    model: &Model,
    session: &mut Session,
    prompt: Vec<u32>,
    options: sampling::Options,
) -> Result<Answer, Failure> {
    let breakers = settings::breakers(&args.sampling, model);
    let sampler = Sampler::new(options, model.config().vocab, session.context(), breakers)
        .map_err(bilayer_engine::Error::SamplingOptions)?;
    let request = Request {
        prompt: &prompt,
        predict: settings::predict(args),
        stops: args.stop.clone(),
        ignore_eos: args.ignore_eos,
        show_control: false,
        logprobs: args.logprobs,
    };
    let sequence = session.open()?;
    let mut generation =
        Generation::new(model, session, sequence, sampler, request, &INTERRUPT)?;
    let bar = progress::tokens("prompt", prompt.len());
    generation.prefill(&mut |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let mut show = |piece: &str| {
        text.push_str(piece);
        if args.json || piece.is_empty() { Ok(()) } else { output::text(piece) }
    };
    while let Some(token) = generation.next()? {
        show(&token.text)?;
        tokens.push(token);
    }
    show(&generation.finish())?;
    let stop = generation.stop().unwrap_or(Stop::Length);
    let statistics = generation.statistics();
    Ok(Answer { prompt_tokens: prompt, text, tokens, stop, statistics })
}
