//! Converts flags to the engine's settings.

use std::sync::Arc;

use bilayer_cpu::level::Level;
use bilayer_engine::generate::Shift;
use bilayer_engine::generate::speculate::Drafts;
use bilayer_engine::sampling::{BREAKERS, Breakers, Options};
use bilayer_engine::session::{Session, Settings};
use bilayer_engine::{Error, Model, new_seed};

use crate::args::{AnswerArgs, FlashAttn, ModelArgs, RunArgs, SamplingArgs};
use crate::failure::Failure;
use crate::{demo, escapes, progress};

/// Number of tokens to generate; `None` is unlimited.
pub fn predict(args: &RunArgs) -> Option<usize> {
    let unasked = args.model.model.is_none();
    match args.answer.n_predict {
        Some(tokens) => usize::try_from(tokens).ok(),
        None => unasked.then_some(demo::PREDICT),
    }
}

/// How a completion goes on when the context is full, as in llama.cpp: a token that begins the text stays beside those of
/// --keep.
pub fn shift(args: &AnswerArgs, prompt: &[u32], model: &Model) -> Option<Shift> {
    if !args.context_shift {
        return None;
    }
    let begins = model.tokenizer().bos().is_some_and(|bos| prompt.first() == Some(&bos));
    let keep = args.keep.unwrap_or(0);
    let keep = usize::try_from(keep).ok().filter(|&keep| keep <= prompt.len());
    Some(Shift {
        keep: keep.map_or(prompt.len(), |keep| keep + usize::from(begins)),
        discard: None,
    })
}

/// How an answer in a chat goes on when the context is full: the `opening` tokens, with the system prompt, stay unless
/// --keep says otherwise.
pub fn chat_shift(args: &AnswerArgs, prompt: &[u32], opening: usize) -> Option<Shift> {
    let keep = args.keep.map_or(opening, |keep| {
        usize::try_from(keep).map_or(prompt.len(), |keep| keep.min(prompt.len()))
    });
    (!args.no_context_shift).then_some(Shift { keep, discard: None })
}

/// The samplers' options, checked for a model's vocabulary.
pub fn sampling(args: &SamplingArgs, model: &Model) -> Result<Options, Failure> {
    let mut options = options(args)?;
    options.set_infill(model.tokenizer());
    let checked = options.check(model.config().vocab);
    checked.map_err(|error| Failure::usage(format!("--{error}")))?;
    Ok(options)
}

/// The samplers' options.
pub fn options(args: &SamplingArgs) -> Result<Options, Failure> {
    let given = args.numbers.options();
    Ok(Options {
        seed: u64::try_from(args.seed).unwrap_or_else(|_| new_seed()),
        logit_bias: args.logit_bias.iter().map(|b| bias(b)).collect::<Result<_, _>>()?,
        ..given.map_err(|error| Failure::usage(format!("--{error}")))?
    })
}

/// `TOKEN+BIAS` or `TOKEN-BIAS`.
fn bias(given: &str) -> Result<(u32, f32), Failure> {
    let parsed = given.find(['+', '-']).and_then(|at| {
        let (token, bias) = given.split_at(at);
        Some((token.parse().ok()?, bias.parse().ok()?))
    });
    parsed.ok_or_else(|| {
        Failure::usage(format!("--logit-bias is `{given}`; it must be TOKEN+BIAS or TOKEN-BIAS, such as 15043+1.5 or 2-inf"))
    })
}

/// Texts from the command line with escapes resolved.
pub fn texts(args: &RunArgs, given: &[String]) -> Result<Vec<String>, Failure> {
    match args.answer.no_escape {
        true => Ok(given.to_vec()),
        false => given.iter().map(|text| escapes::resolve(text)).collect(),
    }
}

/// What ends a DRY match.
pub fn breakers(args: &RunArgs, model: &Model) -> Result<Arc<Breakers>, Failure> {
    if !args.sampling.numbers.options().is_ok_and(|options| options.dry.is_some()) {
        return Ok(Arc::default());
    }
    let given = texts(args, &args.sampling.dry_sequence_breaker)?;
    Ok(Arc::new(model.dry_breakers(&breaker_texts(given))))
}

/// The texts that end a DRY match: the given ones without `none`, or the default ones.
pub fn breaker_texts(mut given: Vec<String>) -> Vec<String> {
    if given.is_empty() {
        return BREAKERS.map(str::to_owned).to_vec();
    }
    given.retain(|text| text != "none");
    given
}

/// A session's settings from the flags shared by all commands that load a model.
pub fn model(flags: &ModelArgs) -> Result<Settings<'static>, Failure> {
    if flags.batch_size == 0 {
        return Err(Failure::usage("batch-size is 0; it must be at least 1"));
    }
    Ok(checked(flags)?)
}

/// As [`model`], for flags that it has checked.
pub fn checked(flags: &ModelArgs) -> Result<Settings<'static>, Error> {
    let level = flags.cpu_level.as_deref().map(str::parse::<Level>).transpose();
    Ok(Settings {
        threads: crate::args::threads(flags.threads),
        cpu_level: level.map_err(|error| Error::Cpu(error.into()))?,
        fast_prefill: flags.fast_prefill,
        numa: flags.numa,
        ctx_size: flags.ctx_size,
        checkpoints: flags.ctx_checkpoints,
        ubatch_size: flags.ubatch_size.min(flags.batch_size),
        cache_type_k: flags.cache_type_k,
        cache_type_v: flags.cache_type_v,
        hadamard_keys: flags.k_cache_hadamard,
        fuse: flags.flash_attn != FlashAttn::Off,
        placing: flags.placing.placing(),
        overlap: flags.placing.adapter.overlap,
        time_device: Some(bilayer_measure::timing::device),
        ..Settings::default()
    })
}

/// The purpose of a session.
pub struct Asked<'a> {
    /// Sampling options.
    pub options: &'a Options,
    /// Number of prompt tokens.
    pub prompt: usize,
    /// The source of draft tokens.
    pub drafts: Option<&'a Drafts>,
}

/// Prepares a session for the flags.
pub fn session(args: &RunArgs, model: &Model, asked: &Asked<'_>) -> Result<Session, Failure> {
    let settings = self::model(&args.model)?;
    // A GPU then returns a few candidates instead of a row as wide as the vocabulary.
    let top_k = asked.options.needs().filter(|_| !args.grammar.is_given());
    let outputs = args.logits.as_ref().map(|_| settings.ubatch_size.min(asked.prompt));
    let trace_events = args.trace.as_ref().map(|_| crate::trace::EVENTS);
    let own = Settings { outputs, top_k, trace_events, ..settings };
    let settings = match asked.drafts {
        Some(drafts) => drafts.beside(own),
        None => own,
    };
    Ok(progress::loading(|tell| {
        Session::new(model, Settings { progress: Some(tell), ..settings })
    })?)
}
