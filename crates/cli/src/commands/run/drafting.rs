//! The source of draft tokens of a run, from its flags.

use bilayer_engine::generate::speculate::{
    Bounds, DraftModel, Drafter, DrafterSource, Lookup, MtpDrafter, Weighed, weigh,
};
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Purpose, Session, Settings, Warning};
use bilayer_engine::{Error, Model, placement};
use bilayer_graph::PAGE_TOKENS;
use bilayer_scheduler::{ExpertCache, Offload};

use super::{report, settings};
use crate::args::{DraftArgs, ModelArgs};
use crate::demo::{self, Source};
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
    /// The model's block for multi-token prediction, which is loaded first.
    Mtp {
        drafter: Box<MtpDrafter>,
        /// Free memory of the GPUs before the block was loaded.
        memory_bytes: Vec<u64>,
    },
}

/// The answers that are drafted at once.
#[derive(Clone, Copy, Debug)]
pub struct Drafted {
    /// Their number.
    pub answers: usize,
    /// The context of one, and the tokens that the model's KV cache has room for over all; `None` for a single answer in the
    /// context that the flags give.
    pub room: Option<(usize, usize)>,
}

impl Drafted {
    /// A single answer.
    pub const ONE: Drafted = Drafted { answers: 1, room: None };

    /// The settings of a draft model, which holds the text of each answer and drafts behind it.
    fn settings<'s>(&self, settings: Settings<'s>, bounds: &Bounds) -> Settings<'s> {
        let Some((context, all)) = self.room else { return settings };
        // A draft, and one made ahead behind it.
        let behind = (2 * (bounds.draft_max + 1)).next_multiple_of(PAGE_TOKENS);
        Settings {
            // Besides the answers' drafters there is the one that makes them.
            sequences: self.answers + 1,
            ctx_size: Some(context),
            // Answers that share a prompt share its pages in the model's cache, but not in this one: those without room are
            // not drafted.
            kv_tokens: Some((all + self.answers * behind).min((self.answers + 1) * context)),
            ..settings
        }
    }
}

impl DraftSource {
    /// Reads the flags, for these answers. A draft model is loaded and placed before `model`, which gets the
    /// remaining GPU memory: a small draft model on the GPU usually gains more than the few layers it displaces. If earlier
    /// answers have shown that it does not, it runs on the CPU.
    pub fn open(
        flags: &DraftArgs,
        shared: &ModelArgs,
        model: &Model,
        drafted: Drafted,
    ) -> Result<Option<DraftSource>, Error> {
        let bounds = flags.bounds();
        if flags.is_mtp() && (flags.looks_up() || flags.model_draft.is_some()) {
            let expected = "the only source of drafts, without --lookup and -md".to_owned();
            return Err(Error::Setting { name: "draft", found: "mtp".to_owned(), expected });
        }
        if flags.looks_up() {
            return Ok(Some(DraftSource::Lookup(Lookup::new(bounds))));
        }
        if flags.is_mtp() {
            return DraftSource::mtp(flags, shared, model, drafted).map(Some);
        }
        let Some(path) = &flags.model_draft else { return Ok(None) };
        let settings = settings::checked(shared)?;
        let memory_bytes = placement::gpu_bytes(&settings.placing);
        let draft =
            demo::model(&Source { map: !shared.no_mmap, runs: true, ..Source::plain(Some(path)) })?;
        let placing = placing(flags, shared);
        // The draft model needs no larger context than the model.
        let own = model.config().context;
        let ctx_size = match settings.ctx_size {
            Some(0) => Some(own.min(draft.config().context)),
            asked => asked,
        };
        let mut settings =
            drafted.settings(Settings { placing, ctx_size, ..settings }, &flags.bounds());
        if shared.ctx_size.is_none_or(|asked| asked == 0) {
            settings.ctx_size = settings.ctx_size.map(|size| size.min(draft.config().context));
        }
        if flags.gpu_layers_draft == Offload::Auto {
            let own = settings::checked(shared)?;
            if let Some(Weighed { gpu_layers, why }) = weigh((&draft, &settings), (model, &own))? {
                output::note(&format!("draft: note: {why}"));
                settings.placing.gpu_layers = gpu_layers;
            }
        }
        let drafter = progress::loading_as("loading the draft model", |tell| {
            DraftModel::new(&draft, model, Settings { progress: Some(tell), ..settings }, bounds)
        });
        let drafter = Box::new(drafter?);
        output::note(&format!("draft: {}", report::opening(&draft, &drafter.session())));
        note_placement(&mut drafter.session());
        Ok(Some(DraftSource::Model { drafter, memory_bytes }))
    }

    /// The model's block for multi-token prediction, placed as a draft model is.
    fn mtp(
        flags: &DraftArgs,
        shared: &ModelArgs,
        model: &Model,
        drafted: Drafted,
    ) -> Result<DraftSource, Error> {
        let settings = settings::checked(shared)?;
        let memory_bytes = placement::gpu_bytes(&settings.placing);
        let bounds = flags.bounds();
        let settings =
            drafted.settings(Settings { placing: placing(flags, shared), ..settings }, &bounds);
        let drafter = Box::new(MtpDrafter::new(model, settings, bounds)?);
        note_placement(&mut drafter.session());
        Ok(DraftSource::Mtp { drafter, memory_bytes })
    }

    /// The purpose of the model's session.
    pub fn purpose(&self) -> Purpose {
        match self {
            DraftSource::Mtp { .. } => Purpose::WithHidden,
            DraftSource::Lookup(_) | DraftSource::Model { .. } => Purpose::Own,
        }
    }

    /// The placement of the model next to the draft model.
    pub fn beside(&self, placing: Placing) -> Placing {
        match self {
            DraftSource::Lookup(_) => placing,
            DraftSource::Model { drafter, memory_bytes } => {
                placing.beside(drafter.session().plan(), memory_bytes.clone())
            }
            DraftSource::Mtp { drafter, memory_bytes } => {
                placing.beside(drafter.session().plan(), memory_bytes.clone())
            }
        }
    }

    /// The engine's drafter.
    pub fn drafter(&mut self) -> &mut dyn Drafter {
        match self {
            DraftSource::Lookup(lookup) => lookup,
            DraftSource::Model { drafter, .. } => drafter.as_mut(),
            DraftSource::Mtp { drafter, .. } => drafter.as_mut(),
        }
    }

    /// Drafters for several answers.
    pub fn into_drafters(self) -> Box<dyn DrafterSource> {
        match self {
            DraftSource::Lookup(lookup) => Box::new(lookup),
            DraftSource::Model { drafter, .. } => drafter,
            DraftSource::Mtp { drafter, .. } => drafter,
        }
    }
}

/// Where drafts are computed.
fn placing(flags: &DraftArgs, shared: &ModelArgs) -> Placing {
    let placing = &shared.placing;
    Placing {
        // Rules for tensors and experts apply to the model.
        overrides: Vec::new(),
        cpu_moe_layers: 0,
        expert_cache: ExpertCache::Off,
        ..placing.adapter.placing(flags.gpu_layers_draft, 0, placing.no_kv_offload.into())
    }
}

fn note_placement(session: &mut Session) {
    for note in &session.plan().notes {
        output::note(&format!("draft: note: {note}"));
    }
    for warning in session.take_warnings() {
        output::warning(&Warning::Draft(Box::new(warning)));
    }
    output::note(&format!("draft: {}", report::placement(session)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server's draft model has a KV cache for as many whole texts as are drafted at once, or for as many tokens as the model's,
    /// and for what is drafted behind each answer.
    #[test]
    fn the_answers_of_a_server_share_the_room_of_its_draft_model() {
        let settings = |answers, room| {
            let bounds = Bounds { draft_max: 16, ..Bounds::default() };
            let of_server = Drafted { answers, room: Some(room) };
            let found = of_server.settings(Settings::default(), &bounds);
            (found.sequences, found.ctx_size, found.kv_tokens)
        };
        let behind = 34usize.next_multiple_of(PAGE_TOKENS);
        assert_eq!(settings(8, (16_384, 16_384)), (9, Some(16_384), Some(16_384 + 8 * behind)));
        assert_eq!(settings(8, (2048, 16_384)), (9, Some(2048), Some(16_384 + 8 * behind)));
        assert_eq!(settings(4, (32, 128)), (5, Some(32), Some(160)));
        let one = Drafted::ONE.settings(Settings::default(), &Bounds::default());
        assert_eq!((one.sequences, one.ctx_size, one.kv_tokens), (1, None, None));
    }
}
