//! What a session is asked for, with the defaults.

use bilayer_cpu::level::Level;
use bilayer_graph::{Graph, Value};
use bilayer_models::{Encoder, Pooling};
use bilayer_quant::Type;

use crate::placement::Placing;
use crate::times::TimeDevice;
use crate::{Error, Model};

/// The context of a session that names none, unless the model's own is shorter.
pub const CONTEXT: usize = 8192;

/// What a session is prepared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The model's layers are timed on the devices, which takes about two seconds once for each kind of model.
    Measuring,
    /// Weights are handed to devices.
    Loading,
}

/// How far preparing a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is done.
    pub stage: Stage,
    /// Bytes of weights handed to devices.
    pub done_bytes: u64,
    /// Bytes of all weights.
    pub total_bytes: u64,
}

/// When a step is cut so that two devices work at the same time. A plan on one device has nothing to overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Never: each segment is waited for before the next begins.
    Off,
    /// Prompts always; steps of several sequences where both halves have at least 16 rows. Below that a step is
    /// bound by reading weights, which each half reads once more, and the cut would cost what it wins.
    #[default]
    Auto,
    /// Wherever a step has two rows.
    Always,
}

/// What a session gives for its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// What the model is for: a decoder's logits, an encoder's scores or, without a head, its hidden states.
    #[default]
    Own,
    /// An encoder's hidden states, as they are or one row a text; `None` is what its file says.
    Embed(Option<Pooling>),
    /// The scores of an encoder's head.
    Score,
}

impl Purpose {
    /// Makes an encoder's recording end as it says.
    pub(crate) fn apply(self, encoder: &mut Encoder) {
        if let Purpose::Embed(pooling) = self {
            encoder.scores = false;
            encoder.pooling = pooling.unwrap_or(encoder.pooling);
        }
    }
}

/// Settings of a session; names are the command line's.
pub struct Settings<'a> {
    /// Worker threads; `None` is one per physical core allowed to the process.
    pub threads: Option<usize>,
    /// Instruction level; `None` is the highest there is.
    pub cpu_level: Option<Level>,
    /// Tokens a sequence may have: `None` is the model's own but at most 8192, 0 the model's own.
    pub ctx_size: Option<usize>,
    /// What it gives.
    pub purpose: Purpose,
    /// Sequences at once.
    pub sequences: usize,
    /// Tokens in one step (the physical batch); an encoder's has room for a text as long as the context at least.
    pub ubatch_size: usize,
    /// Wanted rows in one step; `None` is one for each sequence.
    pub outputs: Option<usize>,
    /// How keys are stored.
    pub cache_type_k: Type,
    /// How values are stored.
    pub cache_type_v: Type,
    /// Whether backends may fuse ops.
    pub fuse: bool,
    /// Whether backends take every op's time.
    pub timings: bool,
    /// How many events to keep of what ran when ([`Session::trace`](super::Session::trace)); by default no trace is
    /// kept.
    pub trace_events: Option<usize>,
    /// What goes to the GPU; by default as much as is of use and fits. [`Placing::processor`] keeps all on the CPU.
    pub placing: Placing,
    /// When two devices work at the same time.
    pub overlap: Overlap,
    /// How many of the best tokens of each wanted row the head's device finds, if it can: what
    /// [`Session::step_top`](super::Session::step_top) then reads back instead of all logits.
    pub top_k: Option<usize>,
    /// Values of the graph that are kept of every step, for [`Session::watched`](super::Session::watched). They take
    /// memory twice, on their device and here, which no budget notices, and no devices work at the same time.
    pub watched: Vec<Value>,
    /// Measures how long the model's parts take on a device, where [`Placing::kept`] names a folder to store that in and it
    /// holds nothing of this model and machine yet. Without it plans are made by stored times, or by none.
    pub time_device: Option<TimeDevice>,
    /// Told while weights are loaded.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Settings {
            threads: None,
            cpu_level: None,
            ctx_size: None,
            purpose: Purpose::Own,
            sequences: 1,
            ubatch_size: 512,
            outputs: None,
            cache_type_k: Type::F16,
            cache_type_v: Type::F16,
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
    /// Tokens a sequence may have, for a model trained for `own` tokens.
    pub(crate) fn context(&self, own: usize) -> usize {
        match self.ctx_size {
            None => own.min(CONTEXT),
            Some(0) => own,
            Some(tokens) => tokens,
        }
    }

    /// The graph of a session.
    ///
    /// # Errors
    /// As [`Model::graph_for`].
    pub(crate) fn graph(&self, model: &Model) -> Result<Graph, Error> {
        model.graph_for(self.context(model.config().context), self.purpose)
    }

    /// Whether every setting is in range.
    pub(super) fn check(&self) -> Result<(), Error> {
        let bounds = [
            ("threads", self.threads.unwrap_or(1), 1, 512),
            ("ctx-size", self.ctx_size.unwrap_or(0), 0, 1 << 24),
            ("parallel", self.sequences, 1, 256),
            ("ubatch-size", self.ubatch_size, 1, 1 << 16),
        ];
        for (name, found, low, high) in bounds {
            if !(low..=high).contains(&found) {
                let expected = format!("between {low} and {high}");
                return Err(Error::Setting { name, found: found.to_string(), expected });
            }
        }
        let types = [("cache-type-k", self.cache_type_k), ("cache-type-v", self.cache_type_v)];
        for (name, ty) in types {
            if !kv_types().contains(&ty) {
                let expected = "f16, f32 or q8_0".to_owned();
                return Err(Error::Setting { name, found: ty.to_string(), expected });
            }
        }
        Ok(())
    }
}

/// The types keys and values may have.
pub fn kv_types() -> [Type; 3] {
    [Type::F16, Type::F32, Type::Q8_0]
}
