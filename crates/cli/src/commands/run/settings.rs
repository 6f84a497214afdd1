//! From flags to what the engine is asked.

use std::time::{SystemTime, UNIX_EPOCH};

use bilayer_engine::Model;
use bilayer_engine::sampling::{Dry, Mirostat, Options, Xtc};
use bilayer_engine::session::{Session, Settings};
use bilayer_quant::Type;

use crate::args::{ModelArgs, Run, SamplingArgs};
use crate::failure::{Failure, USAGE};
use crate::{demo, progress};

/// Tokens that end a DRY sequence when the user names none; llama.cpp's.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The given seed, or one from the clock.
pub fn seed(given: i64) -> u64 {
    u64::try_from(given).unwrap_or_else(|_| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::from(now.subsec_nanos()) ^ (now.as_secs() << 20) & u64::from(u32::MAX)
    })
}

/// How many tokens to generate; `None` is no limit of its own.
pub fn predict(args: &Run) -> Option<usize> {
    let unasked = args.model.model.is_none();
    match args.n_predict {
        Some(n) => usize::try_from(n).ok(),
        None => unasked.then_some(demo::PREDICT),
    }
}

/// The samplers' options.
pub fn sampling(args: &SamplingArgs, seed: u64, model: &Model) -> Result<Options, Failure> {
    let vocab = model.config().vocab;
    let options = Options {
        seed,
        temperature: args.temp,
        dynatemp_range: args.dynatemp_range,
        dynatemp_exponent: args.dynatemp_exp,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        typical: args.typical,
        repeat_penalty: args.repeat_penalty,
        repeat_last_n: look_back("repeat-last-n", args.repeat_last_n)?,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        dry: (args.dry_multiplier != 0.0)
            .then(|| {
                let last_n = look_back("dry-penalty-last-n", args.dry_penalty_last_n)?;
                Ok::<_, Failure>(Dry {
                    multiplier: args.dry_multiplier,
                    base: args.dry_base,
                    allowed_length: args.dry_allowed_length,
                    last_n,
                })
            })
            .transpose()?,
        xtc: (args.xtc_probability != 0.0)
            .then_some(Xtc { probability: args.xtc_probability, threshold: args.xtc_threshold }),
        mirostat: (args.mirostat != 0).then_some(Mirostat {
            version: args.mirostat,
            tau: args.mirostat_ent,
            eta: args.mirostat_lr,
        }),
        logit_bias: args.logit_bias.iter().map(|b| bias(b)).collect::<Result<_, _>>()?,
    };
    options.check(vocab).map_err(|error| Failure::usage(format!("--{error}")))?;
    Ok(options)
}

/// -1 is the whole context.
fn look_back(name: &str, tokens: i64) -> Result<Option<usize>, Failure> {
    match tokens {
        -1 => Ok(None),
        n => usize::try_from(n)
            .map(Some)
            .map_err(|_| Failure::usage(format!("--{name} is {n}; it must be at least -1"))),
    }
}

/// `TOKEN+BIAS` or `TOKEN-BIAS`.
fn bias(given: &str) -> Result<(u32, f32), Failure> {
    let wrong =
        || Failure::usage(format!("--logit-bias is `{given}`; it must be like 15043+1.5 or 2-inf"));
    let at = given.find(['+', '-']).ok_or_else(wrong)?;
    let token = given[..at].parse().map_err(|_| wrong())?;
    let number = given[at..].parse().map_err(|_| wrong())?;
    Ok((token, number))
}

/// Which tokens end a DRY sequence: those that contain one of the breaker texts.
pub fn breakers(args: &SamplingArgs, model: &Model) -> Vec<bool> {
    if args.dry_multiplier == 0.0 {
        return Vec::new();
    }
    let given: Vec<&[u8]> = if args.dry_sequence_breaker.is_empty() {
        BREAKERS.iter().map(|text| text.as_bytes()).collect()
    } else {
        args.dry_sequence_breaker.iter().map(|text| text.as_bytes()).collect()
    };
    let breaks = |piece: &[u8]| {
        given.iter().any(|b| !b.is_empty() && piece.windows(b.len()).any(|window| window == *b))
    };
    let tokenizer = model.tokenizer();
    (0..model.config().vocab as u32)
        .map(|id| tokenizer.piece(id).is_some_and(breaks) || tokenizer.is_control(id))
        .collect()
}

/// A session for the flags; `prompt` tokens must fit.
pub fn session(args: &Run, model: &Model, prompt: usize) -> Result<Session, Failure> {
    let flags = &args.model;
    let bar = progress::bytes("loading");
    let mut tell =
        |p: bilayer_engine::session::Progress| progress::set(&bar, p.done_bytes, p.total_bytes);
    let ubatch_size = flags.ubatch_size.min(flags.batch_size);
    let settings = Settings {
        threads: flags.threads,
        cpu_level: flags.cpu_level.as_deref().map(str::parse).transpose().map_err(
            |error: bilayer_cpu::level::LevelError| bilayer_engine::Error::Level(error),
        )?,
        ctx_size: flags.ctx_size,
        ubatch_size,
        outputs: args.logits.as_ref().map(|_| ubatch_size.min(prompt)),
        cache_type_k: kv_type("cache-type-k", &flags.cache_type_k)?,
        cache_type_v: kv_type("cache-type-v", &flags.cache_type_v)?,
        fuse: fuse(flags),
        progress: Some(&mut tell),
        ..Settings::default()
    };
    let session = Session::new(model, settings);
    bar.finish_and_clear();
    Ok(session?)
}

fn fuse(flags: &ModelArgs) -> bool {
    flags.flash_attn != "off"
}

fn kv_type(name: &str, given: &str) -> Result<Type, Failure> {
    bilayer_engine::session::kv_types()
        .into_iter()
        .find(|ty| ty.name.eq_ignore_ascii_case(given))
        .ok_or_else(|| {
            Failure::Line(USAGE, format!("--{name} is `{given}`; it must be f16, f32 or q8_0"))
        })
}
