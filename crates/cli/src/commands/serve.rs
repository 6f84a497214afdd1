//! `bilayer serve`: fills the server's configuration from flags and runs it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bilayer_engine::encode::texts_max;
use bilayer_engine::generate::speculate::{Drafted, Drafts};
use bilayer_engine::requests::ExecutorSettings;
use bilayer_engine::session::{Purpose, Session, Settings};
use bilayer_engine::{Error, Model};
use bilayer_files::is_same_file;
use bilayer_gguf::shard_paths;
use bilayer_hub::Folder;
use bilayer_models::Pooling;
use bilayer_server::config::{AtEnd, Config, Limits, Offer, Opened, Origins, Rescan, Switches};
use bilayer_server::{Defaults, Notice, Stopper, log};
use serde_json::{Map, Value};

use super::run::{drafting, settings};
use crate::args::{LogFormat, PoolingArg, Serve, Serving};
use crate::demo::{self, Applied, Source};
use crate::failure::{Failure, IO, USAGE};
use crate::{escapes, interrupt, output, trace};

/// Requests that run at once by default.
const PARALLEL: usize = 8;

/// Best tokens of each row that the head's device looks for: enough for top-k and penalties by default.
const BEST_TOKENS: usize = 128;

/// Longest step where nobody waits for the next token.
const LONG_STEP: Duration = Duration::from_secs(2);

/// Output rows of a step beside those of running answers: log-probabilities of prompts.
const PROMPT_ROWS: usize = 32;

/// Serves until the process is told to stop.
pub fn execute(args: &Serve) -> Result<u8, Failure> {
    let config = listening(args)?;
    if !config.needs_key() && !config.is_local() {
        output::warning(
            &"the server can be reached from other machines and needs no key; set --api-key",
        );
    }
    let mut written = Ok(());
    let mut urls = Vec::new();
    let result = bilayer_server::run(config, &Stopper::default(), |notice| match notice {
        Notice::Listening(found) => {
            // A download may have installed the handler that ends the process.
            interrupt::release();
            urls = found;
        }
        Notice::Ready { map } => {
            if let Some(map) = map {
                output::note(&format!("placement: {map}"));
            }
            for url in &urls {
                written = output::line(&format!("listening on {url}"));
            }
        }
        Notice::Draining => output::note("bilayer: stopping; running answers are finished first"),
    });
    written?;
    result.map_err(failure)?;
    Ok(0)
}

/// The exit code and the line of a server that did not start.
pub fn failure(error: bilayer_server::Error) -> Failure {
    use bilayer_server::Error;
    let line = error.to_string();
    match error {
        Error::Model { source: Some(source), .. } => {
            Failure::Line(source.exit_code() as u8, format!("{line}{}", source.advice()))
        }
        Error::Keys(_) | Error::Tls { .. } => Failure::Line(USAGE, line),
        _ => Failure::Line(IO, line),
    }
}

/// The configuration of a server that listens.
fn listening(args: &Serve) -> Result<Config, Failure> {
    let (listen, limits, steps) = (&args.listen, &args.limits, &args.steps);
    if let Some(path) = &listen.log_file {
        log::open(path).map_err(|error| Failure::output(path, &error))?;
    }
    log::set(match listen.log_format {
        _ if listen.log_jsonl => log::Log::Json,
        LogFormat::Off => log::Log::Quiet,
        LogFormat::Text => log::Log::Text,
        LogFormat::Json => log::Log::Json,
    });
    if let Some(folder) = &steps.slot_save_path {
        check_folder(folder)?;
    }
    let addresses = bilayer_server::addresses(&listen.host, listen.port)
        .map_err(|problem| Failure::usage(format!("--host is `{}`: {problem}", listen.host)))?;
    let keys = listen.api_key.iter().map(|key| key.trim());
    for path in [&listen.api_key_file, &listen.ssl_cert_file, &listen.ssl_key_file] {
        path.as_deref().map_or(Ok(()), output::check_input)?;
    }
    let base = config(&args.serving, listen.trace.as_deref())?;
    let rescan = rescan(&args.serving, listen.trace.as_deref(), &base)?;
    Ok(Config {
        rescan,
        addresses,
        executor: ExecutorSettings {
            waiting: limits.max_queue,
            waiting_per_key: limits.max_queue_per_key,
            step: Duration::from_millis(u64::from(steps.max_step_ms)),
            ..base.executor
        },
        limits: Limits {
            body_bytes: usize::from(limits.max_body) << 20,
            connections: limits.max_connections,
            connections_per_ip: limits.max_connections_per_ip,
            request: Duration::from_secs(limits.timeout),
            drain: Duration::from_secs(limits.drain_timeout),
            ping: Duration::from_secs(limits.sse_ping_interval),
            ..base.limits
        },
        keys: keys.filter(|key| !key.is_empty()).map(str::to_owned).collect(),
        key_file: listen.api_key_file.clone(),
        tls: listen.ssl_cert_file.clone().zip(listen.ssl_key_file.clone()),
        origins: origins(&listen.cors_origins),
        switches: Switches {
            metrics: listen.metrics,
            slots: !listen.no_slots,
            page: !listen.no_ui,
            verbose: listen.verbose,
            cache_per_key: steps.cache_per_key,
            ..base.switches
        },
        slot_folder: steps.slot_save_path.clone(),
        ..base
    })
}

/// Whether slots can be saved in a folder.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    let found = std::fs::metadata(folder).map_err(|error| Failure::input(folder, &error))?;
    if found.is_dir() {
        return Ok(());
    }
    let line = format!("--slot-save-path is {}, which is not a folder", folder.display());
    Err(Failure::Line(IO, line))
}

/// The configuration of what answers requests, with nothing to listen on.
pub fn config(args: &Serving, trace: Option<&Path>) -> Result<Config, Failure> {
    let parallel = args.requests.parallel().unwrap_or(PARALLEL);
    settings::model(&args.model)?;
    let sampling = settings::options(&args.sampling)?;
    // Tokens are checked with each model's vocabulary.
    let checked = sampling.check(usize::MAX);
    checked.map_err(|error| Failure::usage(format!("--{error}")))?;
    let breakers = args.sampling.dry_sequence_breaker.iter().map(|text| escapes::resolve(text));
    let breakers = settings::breaker_texts(breakers.collect::<Result<_, _>>()?);
    Ok(Config {
        addresses: Vec::new(),
        models: offers(args, trace, parallel)?,
        rescan: None,
        models_max: args.offer.models_max,
        models_bytes: args.offer.models_memory.unwrap_or(u64::MAX),
        defaults: Defaults {
            seed: u64::try_from(args.sampling.seed).ok(),
            predict: usize::try_from(args.requests.n_predict).ok(),
            reuse: !args.requests.no_cache_prompt,
            sampling,
            breakers,
        },
        slots: parallel,
        executor: ExecutorSettings {
            waiting: usize::MAX,
            waiting_per_key: usize::MAX,
            step: LONG_STEP,
            deterministic: args.requests.deterministic,
        },
        limits: Limits { request: Duration::MAX, ..Limits::default() },
        keys: Vec::new(),
        key_file: None,
        tls: None,
        origins: Origins::Closed,
        switches: Switches { context_shift: args.requests.context_shift, ..Switches::default() },
        slot_folder: None,
        template_variables: variables(args)?,
        splits_reasoning: args.reasoning.splits().unwrap_or(true),
        build: format!("b{}", env!("CARGO_PKG_VERSION")),
    })
}

fn origins(given: &str) -> Origins {
    match given {
        "none" | "" => Origins::Closed,
        "localhost" => Origins::Localhost,
        "*" => Origins::Any,
        list => {
            let each = list.split(',').map(|origin| origin.trim().trim_end_matches('/').to_owned());
            Origins::List(each.collect())
        }
    }
}

fn variables(args: &Serving) -> Result<Map<String, Value>, Failure> {
    let mut variables = args.template.variables()?;
    args.reasoning.add_to(&mut variables);
    Ok(variables)
}

/// The models that are offered, by the names given to them or that of their file; `None` is the demo model.
pub fn models(args: &Serving) -> Result<Vec<(String, Option<PathBuf>)>, Failure> {
    let given = given(args);
    let found = found(args, &given)?;
    if given.is_empty() && found.is_empty() {
        return Ok(vec![(demo::NAME.to_owned(), None)]);
    }
    Ok(given.into_iter().chain(found).map(|(name, path)| (name, Some(path))).collect())
}

/// The models that are given by their paths, that of -m first. One that is given twice is one model.
fn given(args: &Serving) -> Vec<(String, PathBuf)> {
    let own = args.model.model.iter().map(|path| (stem(path), path.clone()));
    let added = args.offer.add_model.iter().map(|added| (added.name.clone(), added.path.clone()));
    let mut models: Vec<(String, PathBuf)> = Vec::new();
    for (name, path) in own.chain(added) {
        if !models.iter().any(|(other, at)| *other == name && is_same(at, &path)) {
            models.push((name, path));
        }
    }
    models
}

fn is_same(a: &Path, b: &Path) -> bool {
    a == b || is_same_file(a, b)
}

/// The models of --models-dir beside those that are given.
fn found(args: &Serving, given: &[(String, PathBuf)]) -> Result<Vec<(String, PathBuf)>, Failure> {
    let Some(path) = &args.offer.models_dir else { return Ok(Vec::new()) };
    let failed = |error| Failure::input(path, &error);
    if bilayer_hub::in_folder(path).map_err(failed)?.is_empty() {
        let line = format!("--models-dir {} has no .gguf files", path.display());
        return Err(Failure::usage(line));
    }
    let mut folder = Folder::new(path.clone(), taken(args, given), Vec::new());
    folder.read(|path| is_given(given, path)).map_err(failed)
}

/// The names of the models that are given.
fn taken(args: &Serving, given: &[(String, PathBuf)]) -> Vec<String> {
    let aliases = args.offer.alias.as_deref().filter(|_| args.model.model.is_some());
    let others = given.iter().skip(usize::from(aliases.is_some()));
    let names = others.map(|(name, _)| name.clone());
    aliases.map(list).unwrap_or_default().into_iter().chain(names).collect()
}

/// Whether a file of the folder is also given by its path, and so is one model. A file that is given with a name of its own
/// is offered by both names.
fn is_given(given: &[(String, PathBuf)], path: &Path) -> bool {
    given.iter().any(|(name, at)| *name == stem(path) && is_same(at, path))
}

/// The models: that of -m, or the demo model where nothing else is offered, then the others.
fn offers(args: &Serving, trace: Option<&Path>, parallel: usize) -> Result<Vec<Offer>, Failure> {
    let listed = models(args)?;
    // Those of the folder are behind them.
    let given = given(args).len();
    let (is_only, trace) = (listed.len() == 1, trace.map(Path::to_owned));
    let opener = Opener { args: Arc::new(args.clone()), trace, parallel, is_only };
    let shared = Shared::new(args)?;
    let own = args.model.model.is_some()
        || (args.offer.add_model.is_empty() && args.offer.models_dir.is_none());
    // The first model is loaded at the start, unless it is merely one of a folder.
    let is_required = own || !args.offer.add_model.is_empty();
    if args.offer.alias.is_some() && !own {
        output::note("note: --alias names the model of -m and has no effect without one");
    }
    let mut offers: Vec<Offer> = Vec::new();
    for (number, (name, path)) in listed.into_iter().enumerate() {
        let aliases = args.offer.alias.as_deref().filter(|_| own && number == 0);
        let names = aliases.map_or_else(|| vec![name], list);
        let is_of_folder = number >= given && path.is_some();
        let offer = Offer { is_required, is_of_folder, ..shared.with(opener.offer(path, names)) };
        let twice = offer.names.iter().find_map(|name| Some((name, find(&offers, name)?)));
        if let Some((name, other)) = twice {
            let line = format!(
                "two models are named `{name}`: {other} and {}; give each a name with -m NAME=PATH",
                offer.path
            );
            return Err(Failure::usage(line));
        }
        offers.push(offer);
    }
    Ok(offers)
}

/// The file of the model of this name.
fn find<'o>(offers: &'o [Offer], name: &str) -> Option<&'o str> {
    let offer = offers.iter().find(|offer| offer.names.iter().any(|other| other == name))?;
    Some(&offer.path)
}

/// The parts of a list, in the order in which llama-server sorts them.
fn list(given: &str) -> Vec<String> {
    let parts = given.split(',').map(str::trim).filter(|part| !part.is_empty());
    let mut parts: Vec<String> = parts.map(str::to_owned).collect();
    parts.sort();
    parts
}

fn stem(path: &Path) -> String {
    bilayer_hub::stem(&path.file_name().unwrap_or_default().to_string_lossy())
}

/// Lists the models of --models-dir as they are when it is called; those that are offered keep their names.
fn rescan(
    args: &Serving,
    trace: Option<&Path>,
    base: &Config,
) -> Result<Option<Arc<Rescan>>, Failure> {
    let Some(path) = args.offer.models_dir.clone() else { return Ok(None) };
    let given = given(args);
    let known = base.models.iter().filter(|offer| offer.is_of_folder);
    let known = known.map(|offer| (offer.names[0].clone(), PathBuf::from(&offer.path))).collect();
    let folder = Mutex::new(Folder::new(path.clone(), taken(args, &given), known));
    let (args, trace) = (Arc::new(args.clone()), trace.map(Path::to_owned));
    let opener = Opener { args, trace, parallel: base.slots, is_only: false };
    let shared = Shared::new(&opener.args)?;
    Ok(Some(Arc::new(move || {
        let mut folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
        let found = folder.read(|path| is_given(&given, path)).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        let offers = found.into_iter().map(|(name, path)| {
            let offer = shared.with(opener.offer(Some(path), vec![name]));
            Offer { is_of_folder: true, ..offer }
        });
        Ok(offers.collect())
    })))
}

/// What all models of a server have.
struct Shared {
    chat_template: Option<String>,
    tags: Vec<String>,
}

impl Shared {
    fn new(args: &Serving) -> Result<Shared, Failure> {
        let chat_template = match &args.template.chat_template_file {
            Some(path) => Some(output::file(path)?),
            None => args.template.chat_template.clone(),
        };
        let tags = args.offer.tags.as_deref().map(list).unwrap_or_default();
        Ok(Shared { chat_template, tags })
    }

    fn with(&self, offer: Offer) -> Offer {
        Offer { chat_template: self.chat_template.clone(), tags: self.tags.clone(), ..offer }
    }
}

/// How models are opened.
#[derive(Clone)]
struct Opener {
    args: Arc<Serving>,
    /// Where a timeline is written at the end.
    trace: Option<PathBuf>,
    parallel: usize,
    /// Whether no other model is offered.
    is_only: bool,
}

impl Opener {
    fn offer(&self, path: Option<PathBuf>, names: Vec<String>) -> Offer {
        let bytes = match path.as_deref() {
            Some(path) => bilayer_hub::Found::at(path).map_or(0, |found| found.bytes),
            None => demo::len_bytes(),
        };
        let shown =
            path.as_deref().map_or("demo.gguf".to_owned(), |path| path.display().to_string());
        let (opener, inspector) = (self.clone(), self.clone());
        let files = self.files(path.as_deref());
        let inspected = path.clone();
        Offer {
            names,
            tags: Vec::new(),
            path: shown,
            files,
            bytes,
            chat_template: None,
            is_pooled: self.pooling().is_some(),
            is_of_folder: false,
            is_required: true,
            inspect: Arc::new(move || {
                let source = inspector.source(inspected.as_deref());
                demo::model(&Source { map: true, lock: false, ..source })
            }),
            open: Arc::new(move || {
                let model = demo::model(&opener.source(path.as_deref()))?;
                if model.config().encoder.is_none() {
                    opener.check_encoding(&model.name())?;
                }
                opener.opened(&model)
            }),
        }
    }

    fn source<'a>(&'a self, path: Option<&'a Path>) -> Source<'a> {
        let applied = match self.args.offer.lora_init_without_apply {
            true => Applied::WhenAsked,
            false => Applied::BySequence,
        };
        Source { path, applied, pooling: self.pooling(), ..self.args.model.source() }
    }

    /// How the rows of a decoder become one vector, if they shall.
    fn pooling(&self) -> Option<Pooling> {
        let pooling = self.args.offer.pooling.filter(|_| self.is_only);
        pooling.and_then(PoolingArg::pooling)
    }

    /// The files that the model at a path is opened from.
    fn files(&self, path: Option<&Path>) -> Vec<PathBuf> {
        let (lora, draft) = (&self.args.model.lora, &self.args.draft.model_draft);
        let models = path.into_iter().chain(draft.as_deref()).flat_map(shard_paths);
        models.chain(lora.files().cloned()).collect()
    }

    /// Refuses what is asked of encoders if the only model, of this name, is a decoder; of several, others may be encoders.
    fn check_encoding(&self, name: &str) -> Result<(), Error> {
        let offer = &self.args.offer;
        let asked = [
            ("embedding", offer.embedding),
            ("reranking", offer.reranking),
            ("pooling", offer.pooling.is_some()),
        ];
        let Some((flag, _)) = asked.into_iter().find(|(_, is_given)| *is_given) else {
            return Ok(());
        };
        let why = format!("{name} generates text, and only encoders make embeddings and scores");
        if self.is_only {
            let instead = match flag {
                "embedding" => "; --pooling last or mean makes embeddings of its last layer",
                _ => "",
            };
            return Err(Error::setting(flag, "given", format!("left out: {why}{instead}")));
        }
        output::warning(&format!("--{flag} changes nothing for one model: {why}"));
        Ok(())
    }

    /// A session for a server: a decoder's sequences share the KV cache, an encoder takes many texts at once. A decoder's
    /// answers may be drafted.
    fn opened(&self, model: &Model) -> Result<Opened, Error> {
        let Opener { args, trace, parallel, .. } = self;
        let parallel = *parallel;
        let is_decoder = model.config().encoder.is_none();
        let mut settings = settings::checked(&args.model)?;
        let all = settings.ctx_size.filter(|&tokens| tokens > 0);
        let all = all.unwrap_or_else(|| own_context(args, model));
        let is_unified = args.requests.is_unified();
        let context = if is_unified { all } else { (all / parallel).max(1) };
        let drafted = Drafted { answers: parallel, room: Some((context, all)) };
        let drafts = match is_decoder {
            true => drafting::open(&args.draft, &args.model, model, drafted)?,
            false => None,
        };
        settings.trace_events = trace.as_ref().map(|_| trace::EVENTS);
        let wanted = match model.config().encoder.as_ref() {
            Some(encoder) => {
                let embeds =
                    args.offer.embedding || args.offer.pooling.is_some() || !encoder.scores;
                let ranks = args.offer.pooling == Some(PoolingArg::Rank);
                let purpose = match args.offer.reranking || ranks {
                    true => Purpose::Score,
                    false if embeds => {
                        let pooling = args.offer.pooling.and_then(PoolingArg::pooling);
                        Purpose::Embed(pooling)
                    }
                    false => Purpose::Own,
                };
                // A text cannot be longer than the positions that the model has learned.
                let most = model.config().positions.unwrap_or(usize::MAX);
                let ctx_size = settings.ctx_size.map(|tokens| tokens.min(most));
                Settings { purpose, sequences: texts_max(model), ctx_size, ..settings }
            }
            None => {
                settings.ctx_size = Some(context);
                Settings {
                    kv_tokens: Some(all),
                    sequences: parallel,
                    cached_sequences: 2 * parallel + 8,
                    outputs: Some(parallel.max(PROMPT_ROWS)),
                    top_k: Some(BEST_TOKENS),
                    ..settings
                }
            }
        };
        let wanted = match &drafts {
            Some(drafts) => drafts.beside(wanted),
            None => wanted,
        };
        let session = crate::progress::loading(|tell| {
            Session::new(model, Settings { progress: Some(tell), ..wanted })
        })?;
        let at_end = trace.clone().map(|path| -> AtEnd {
            Box::new(move |session| {
                if let Err(Failure::Line(_, line)) = trace::write(session, &path) {
                    output::note(&format!("bilayer: {line}"));
                }
            })
        });
        Ok(Opened { session, drafters: drafts.map(Drafts::into_source), at_end })
    }
}

/// Tokens of the whole KV cache where -c does not say.
fn own_context(args: &Serving, model: &Model) -> usize {
    match args.model.ctx_size {
        Some(0) => model.config().context,
        _ => model.config().context.min(8192),
    }
}
