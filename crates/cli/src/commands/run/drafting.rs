//! The source of draft tokens of a run, from its flags.

use bilayer_engine::generate::speculate::{DraftModel, Drafter, Lookup};
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Progress, Session, Settings};
use bilayer_engine::{Model, placement};

use super::{report, settings};
use crate::args::RunArgs;
use crate::demo::{self, Source};
use crate::failure::Failure;
use crate::{output, progress};

/// A source of draft tokens.
pub enum DraftSource {
    /// Prompt lookup: the text itself.
    Lookup(Lookup),
    /// A draft model, which is loaded first.
    Model {
        drafter: Box<DraftModel>,
        /// Free memory of the GPUs before the draft model was loaded.
        memory_bytes: Vec<u64>,
    },
}

impl DraftSource {
    /// Reads the flags. A draft model is loaded and placed before `model`, which gets the remaining GPU memory: a small
    /// draft model on the GPU gains more than the few layers it displaces.
    pub fn new(args: &RunArgs, model: &Model) -> Result<Option<DraftSource>, Failure> {
        let bounds = args.draft.bounds();
        if args.draft.lookup {
            return Ok(Some(DraftSource::Lookup(Lookup::new(bounds))));
        }
        let Some(path) = &args.draft.model_draft else { return Ok(None) };
        let settings = settings::model(&args.model)?;
        let placing = args.model.placing.clone();
        let memory_bytes = placement::gpu_bytes(&settings.placing);
        let draft = demo::open(&Source { path: Some(path), map: !args.model.no_mmap, runs: true })?;
        let placing = Placing {
            // Rules for tensors and experts apply to the other model.
            overrides: Vec::new(),
            cpu_moe_layers: 0,
            ..placing.adapter.placing(args.draft.gpu_layers_draft, 0, placing.no_kv_offload.into())
        };
        let bar = progress::bytes("loading the draft model");
        let mut tell = |p: Progress| progress::prepare(&bar, p);
        // The draft model needs no larger context than the model.
        let own = model.config().context;
        let ctx_size = match settings.ctx_size {
            Some(0) => Some(own.min(draft.config().context)),
            asked => asked,
        };
        let progress: Option<&mut dyn FnMut(Progress)> = Some(&mut tell);
        let settings = Settings { placing, ctx_size, progress, ..settings };
        let drafter = DraftModel::new(&draft, model, settings, bounds);
        bar.finish_and_clear();
        let drafter = Box::new(drafter?);
        output::note(&format!("draft: {}", report::opening(&draft, drafter.session())));
        for note in &drafter.session().plan().notes {
            output::note(&format!("draft: note: {note}"));
        }
        output::note(&format!("draft: {}", report::placement(drafter.session())));
        Ok(Some(DraftSource::Model { drafter, memory_bytes }))
    }

    /// The placement of the model next to the draft model.
    pub fn beside(&self, placing: Placing) -> Placing {
        match self {
            DraftSource::Lookup(_) => placing,
            DraftSource::Model { drafter, memory_bytes } => {
                placing.beside(drafter.session().plan(), memory_bytes.clone())
            }
        }
    }

    /// The engine's drafter.
    pub fn drafter(&mut self) -> &mut dyn Drafter {
        match self {
            DraftSource::Lookup(lookup) => lookup,
            DraftSource::Model { drafter, .. } => drafter.as_mut(),
        }
    }

    /// Its session, if it has one.
    pub fn session_mut(&mut self) -> Option<&mut Session> {
        match self {
            DraftSource::Lookup(_) => None,
            DraftSource::Model { drafter, .. } => Some(drafter.session_mut()),
        }
    }
}
