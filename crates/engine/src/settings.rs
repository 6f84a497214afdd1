//! Settings of a session, with defaults, and the limits of its steps that follow from them.

use std::ops::ControlFlow;

use bilayer_cpu::level::Level;
use bilayer_cpu::numa::Numa;
use bilayer_graph::{CacheInfo, Graph, Limits, PAGE_TOKENS, Value};
use bilayer_models::Pooling;
use bilayer_quant::cache::Form;
use bilayer_quant::{Type, cache};
use bilayer_scheduler::{Budget, ExpertCache};
use bilayer_settings::{Phrase, Setting};

use crate::placing::Placing;
use crate::purpose::Purpose;
use crate::times::TimeDevice;
use crate::{Error, Model};

/// Default context, unless the model's own is shorter.
pub const CONTEXT: usize = 8192;

/// Default number of checkpoints: those of a few answers, and of as many draft tokens as are verified at once.
pub const CHECKPOINTS: usize = 16;

/// Rows of a micro-batch, at most, where experts may be resident: the results of all of a row's experts are kept for each
/// layer.
const EXPERT_CACHE_ROWS: usize = 128;

/// Rows of a step, at most: as many as a GPU has groups of threads in one dimension.
const STEP_ROWS: usize = 65_535;

/// Stages of preparing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The model's layers are timed on the devices, which takes about two seconds once per kind of model.
    Measuring,
    /// Weights are loaded to devices.
    Loading,
}

/// Progress of preparing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current stage.
    pub stage: Stage,
    /// Bytes of weights loaded so far.
    pub done_bytes: u64,
    /// Bytes of all weights.
    pub total_bytes: u64,
}

/// When a step is split so that two devices work at the same time. A plan on one device has nothing to overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Never: each segment is waited for before the next begins.
    Off,
    /// In prefill always; in a step of several sequences if both halves have at least 16 rows; and groups of sequences in
    /// turn ([`Session::groups`](crate::session::Session::groups)) where that is predicted to take less time. Fewer rows
    /// are bound by reading weights, which each part repeats, so the split would cost what it gains.
    #[default]
    Auto,
    /// Whenever a step or several sequences have two rows.
    Always,
}

/// Settings of a session; names are the command line's.
pub struct Settings<'a> {
    /// Worker threads; `None` is one per physical core allowed to the process.
    pub threads: Option<usize>,
    /// Instruction level; `None` is the highest available.
    pub cpu_level: Option<Level>,
    /// Whether the CPU may round weights to eight bits, with one scale per 256 columns of a row, in the products of
    /// prompts of many tokens where that is faster.
    pub fast_prefill: bool,
    /// How the CPU's threads and weights are divided among its NUMA nodes.
    pub numa: Numa,
    /// Maximum tokens per sequence: `None` is the model's own but at most 8192, 0 the model's own.
    pub ctx_size: Option<usize>,
    /// The output.
    pub purpose: Purpose,
    /// Maximum number of sequences in a step.
    pub sequences: usize,
    /// Further sequences that may be open beside them without taking part in a step, for reuse of their prefixes.
    pub cached_sequences: usize,
    /// Tokens that the KV cache of a decoder has room for, over all sequences; `None` is the context of each of
    /// `sequences`. At least one context.
    pub kv_tokens: Option<usize>,
    /// Slots for checkpoints of the states of sequences, over all sequences, if the model has states: a sequence can
    /// return to the length of any of its checkpoints, and what lies behind the last usable one is computed again.
    pub checkpoints: usize,
    /// Maximum tokens per step (the physical batch); an encoder's is at least its context.
    pub ubatch_size: usize,
    /// Maximum output rows per step; `None` is one per sequence.
    pub outputs: Option<usize>,
    /// Type of stored keys.
    pub cache_type_k: Type,
    /// Type of stored values.
    pub cache_type_v: Type,
    /// Whether keys in blocks are stored after the Hadamard transform of every 32 elements of a head, which rounds keys
    /// with a few large elements less.
    pub hadamard_keys: bool,
    /// Whether backends may fuse ops.
    pub fuse: bool,
    /// Whether backends time every op.
    pub timings: bool,
    /// Capacity of the trace in events ([`Session::trace`](crate::session::Session::trace)); by default there is no trace.
    pub trace_events: Option<usize>,
    /// The placement; by default as much as is useful and fits goes to the GPU.
    pub placing: Placing,
    /// When two devices work at the same time.
    pub overlap: Overlap,
    /// Most best tokens of each requested row that the head's device can be asked for, if it can find them:
    /// a step whose sequences need no more for sampling then reads these instead of all logits, and the device searches only
    /// for as many as they need.
    pub top_k: Option<usize>,
    /// Graph values stored in every step, for [`Session::watched`](crate::session::Session::watched). They take memory on
    /// their device and here that is not budgeted, and devices do not work at the same time.
    pub watched: Vec<Value>,
    /// Measures the times of the model's parts on a device, if [`Placing::kept`] names a folder to store them in that
    /// does not contain them for this model and machine, and there is a GPU or [`Placing::remeasure`] asks for them. Without
    /// it, plans use stored times, or none.
    pub time_device: Option<TimeDevice>,
    /// Called before devices are measured and after each weight that is loaded. If it breaks, the session is not prepared:
    /// [`Error::Interrupted`].
    pub progress: Option<&'a mut dyn FnMut(Progress) -> ControlFlow<()>>,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Settings {
            threads: None,
            cpu_level: None,
            fast_prefill: false,
            numa: Numa::Off,
            ctx_size: None,
            purpose: Purpose::Own,
            sequences: 1,
            cached_sequences: 0,
            kv_tokens: None,
            checkpoints: CHECKPOINTS,
            ubatch_size: 512,
            outputs: None,
            cache_type_k: Type::F16,
            cache_type_v: Type::F16,
            hadamard_keys: false,
            fuse: true,
            timings: false,
            trace_events: None,
            placing: Placing::default(),
            overlap: Overlap::Auto,
            top_k: None,
            watched: Vec::new(),
            time_device: None,
            progress: None,
        }
    }
}

impl Settings<'_> {
    /// Reports progress, if that is asked for.
    pub(crate) fn tell(&mut self, progress: Progress) -> ControlFlow<()> {
        self.progress.as_mut().map_or(ControlFlow::Continue(()), |told| told(progress))
    }

    /// The options of the CPU backend.
    #[must_use]
    pub fn cpu_options(&self) -> bilayer_cpu::Options {
        bilayer_cpu::Options {
            threads: self.threads,
            level: self.cpu_level,
            fast_prefill: self.fast_prefill,
            numa: self.numa,
        }
    }

    /// Maximum tokens per sequence, for a model trained for `own` tokens.
    pub(crate) fn context(&self, own: usize) -> usize {
        match self.ctx_size {
            None => own.min(CONTEXT),
            Some(0) => own,
            Some(tokens) => tokens,
        }
    }

    /// Number of sequences that may be open.
    pub(crate) fn open_sequences(&self) -> usize {
        self.sequences + self.cached_sequences
    }

    /// The graph of a session.
    ///
    /// # Errors
    /// Those of [`Model::graph_for`]; keys are to be transformed and cannot be.
    pub(crate) fn graph(&self, model: &Model) -> Result<Graph, Error> {
        let graph = model.graph_for(self.context(model.config().context), self.purpose)?;
        let not_transformed = graph.caches.iter().find_map(CacheInfo::no_hadamard);
        match not_transformed.filter(|_| self.hadamard_keys) {
            Some(what) => Err(hadamard(&what, "off for this model")),
            None => Ok(graph),
        }
    }

    /// Checks that every setting is in range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bounds = [
            (Setting::Threads, self.threads.unwrap_or(1), 1, 512),
            (Setting::Context, self.ctx_size.unwrap_or(0), 0, 1 << 24),
            (Setting::Parallel, self.sequences, 1, 256),
            (Setting::UbatchSize, self.ubatch_size, 1, 1 << 16),
            (Setting::Checkpoints, self.checkpoints, 0, 1 << 12),
        ];
        for (setting, found, low, high) in bounds {
            if !(low..=high).contains(&found) {
                return Err(Error::setting(setting, found, format!("between {low} and {high}")));
            }
        }
        let types =
            [(Setting::CacheTypeK, self.cache_type_k), (Setting::CacheTypeV, self.cache_type_v)];
        for (setting, ty) in types {
            if !kv_types().any(|known| known == ty) {
                return Err(Error::setting(setting, ty.name.to_lowercase(), cache::names()));
            }
        }
        let is_in_blocks = |ty| matches!(cache::form(ty), Some(Form::Blocks(_)));
        if self.hadamard_keys && !is_in_blocks(self.cache_type_k) {
            let name = |ty: Type| ty.name.to_lowercase();
            let blocks: Vec<_> = kv_types().filter(|ty| is_in_blocks(*ty)).map(name).collect();
            let expected = Phrase::from("off, or ").subject(Setting::CacheTypeK);
            let expected = expected.text(&format!(" one of {}", blocks.join(", ")));
            return Err(hadamard(&format!("{} keys", name(self.cache_type_k)), expected));
        }
        Ok(())
    }
}

fn hadamard(what: &str, expected: impl Into<Phrase>) -> Error {
    Error::setting(Setting::HadamardKeys, format!("on with {what}"), expected)
}

/// The types of keys and values.
pub fn kv_types() -> impl Iterator<Item = Type> {
    cache::TYPES.iter().map(|(ty, _)| *ty)
}

/// The memory requirements of a session with these settings.
///
/// # Errors
/// A setting out of range.
pub fn budget_of(model: &Model, settings: &Settings<'_>) -> Result<Budget, Error> {
    settings.check()?;
    Ok(Budget::of(&limits_of(settings, model)))
}

/// The limits of every step, from the settings.
pub(crate) fn limits_of(settings: &Settings<'_>, model: &Model) -> Limits {
    let context = settings.context(model.config().context);
    let most = context * settings.sequences;
    let (sequences, mut outputs) = (settings.sequences, settings.sequences);
    let is_decoder = model.config().encoder.is_none();
    let table = context.div_ceil(PAGE_TOKENS);
    let ubatch = match settings.placing.expert_cache {
        ExpertCache::Off => settings.ubatch_size,
        _ => settings.ubatch_size.min(EXPERT_CACHE_ROWS),
    };
    let (tokens, pages) = match model.config().encoder.clone() {
        None => {
            let pages = settings.kv_tokens.map(|all| all.max(context).div_ceil(PAGE_TOKENS));
            (ubatch.min(most).min(STEP_ROWS), pages.unwrap_or(table * sequences))
        }
        // Nothing of an encoder's text is stored for the next, and most encoders need all of it in one step.
        Some(mut encoder) => {
            settings.purpose.apply(&mut encoder);
            let least = if encoder.takes_whole_texts() { context } else { 1 };
            let tokens = ubatch.max(least).min(most).min(STEP_ROWS);
            if encoder.pooling_recorded() == Pooling::None {
                outputs = tokens;
            }
            (tokens, tokens.max(context) / PAGE_TOKENS + sequences)
        }
    };
    Limits {
        tokens,
        outputs: settings.outputs.unwrap_or(outputs),
        sequences,
        pages,
        // Sequences with a common prefix share its pages, but each has them in its table.
        page_entries: pages.max(if is_decoder { table * sequences } else { 0 }),
        states: match model.graph().states.is_empty() || settings.purpose == Purpose::Mtp {
            true => 0,
            // The states before and after a step remain until it is done. Of an encoder's texts none is before, but of one that
            // is longer than a step.
            false if is_decoder => settings.open_sequences() + sequences + settings.checkpoints,
            false => settings.open_sequences() + 1,
        },
        key_type: settings.cache_type_k,
        value_type: settings.cache_type_v,
        hadamard_keys: settings.hadamard_keys,
        fuse: settings.fuse,
        timings: settings.timings || settings.trace_events.is_some(),
        check: false,
    }
}
