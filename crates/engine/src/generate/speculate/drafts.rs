//! Opens the source of draft tokens that goes with a model, and places it before the model.

use std::sync::MutexGuard;

use bilayer_graph::PAGE_TOKENS;
use bilayer_scheduler::{ExpertCache, Offload};

use super::{
    Bounds, DraftModel, Drafter, DrafterSource, Lookup, MtpDrafter, Weighed, weigh::weigh,
};
use crate::placement::{self, Placing};
use crate::session::{Purpose, Session, Settings};
use crate::{Error, Model};

/// Where draft tokens come from.
#[derive(Clone, Copy)]
pub enum Source<'m> {
    /// Prompt lookup: the text itself.
    Lookup,
    /// The model's own block for multi-token prediction.
    Mtp,
    /// A draft model: a smaller one with the same vocabulary.
    Model(&'m Model),
}

/// The answers that are drafted at once.
#[derive(Clone, Copy, Debug)]
pub struct Drafted {
    /// Their number.
    pub answers: usize,
    /// The context of one, and the tokens that the model's KV cache has room for over all; `None` for a single answer in the
    /// context of the settings.
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

/// What drafts, how much, where, and for which answers.
pub struct DraftSettings<'m> {
    /// The source of draft tokens.
    pub source: Source<'m>,
    /// How many there are.
    pub bounds: Bounds,
    /// How much of a draft model is offloaded, or of the block for multi-token prediction.
    pub gpu_layers: Offload,
    /// The answers.
    pub drafted: Drafted,
}

impl DraftSettings<'_> {
    /// The settings of the session of `draft`, for a model trained for `own` tokens that has these settings.
    fn settings<'s>(&self, draft: &Model, own: usize, settings: Settings<'s>) -> Settings<'s> {
        let most = own.min(draft.config().context);
        let is_asked = settings.ctx_size.is_some_and(|tokens| tokens > 0);
        let placing = Placing {
            gpu_layers: self.gpu_layers,
            // Rules for tensors and experts apply to the model.
            overrides: Vec::new(),
            cpu_moe_layers: 0,
            expert_cache: ExpertCache::Off,
            expert_uses: None,
            ..settings.placing
        };
        let ctx_size = match settings.ctx_size {
            // The draft model needs no larger context than the model.
            Some(0) => Some(most),
            asked => asked,
        };
        let settings = Settings { placing, ctx_size, sequences: 1, outputs: None, ..settings };
        let mut settings = self.drafted.settings(settings, &self.bounds);
        if !is_asked {
            settings.ctx_size = settings.ctx_size.map(|tokens| tokens.min(draft.config().context));
        }
        settings
    }
}

/// A source of draft tokens that is open.
pub struct Drafts {
    opened: Opened,
    bounds: Bounds,
    /// Memory of the GPUs before the source was loaded, bytes.
    memory_bytes: Vec<u64>,
    weighed: Option<String>,
}

enum Opened {
    Lookup(Lookup),
    Mtp(Box<MtpDrafter>),
    Model(Box<DraftModel>),
}

impl Drafts {
    /// Opens a source of draft tokens for a model that has these settings. A draft model is loaded and placed before the
    /// model, which gets the remaining GPU memory: a small draft model on the GPU usually gains more than the few layers
    /// that it displaces. If [`Offload::Auto`] places it and earlier answers have shown that it does not, it runs on the CPU.
    ///
    /// # Errors
    /// [`Error::NoDecoder`] for an encoder; those of [`Bounds::check`], [`DraftModel::new`] and [`MtpDrafter::new`].
    pub fn open(
        asked: &DraftSettings<'_>,
        model: &Model,
        settings: Settings<'_>,
    ) -> Result<Drafts, Error> {
        let &DraftSettings { source, bounds, .. } = asked;
        let draft = match source {
            Source::Lookup | Source::Mtp => model,
            Source::Model(draft) => draft,
        };
        if let Some(encoder) = [model, draft].into_iter().find(|of| of.config().encoder.is_some()) {
            return Err(Error::NoDecoder { name: encoder.name() });
        }
        bounds.check()?;
        let memory_bytes = match source {
            Source::Lookup => Vec::new(),
            Source::Mtp | Source::Model(_) => placement::gpu_bytes(&settings.placing),
        };
        let mut weighed = None;
        let own_context = model.config().context;
        let opened = match source {
            Source::Lookup => Opened::Lookup(Lookup::new(bounds)),
            Source::Mtp => {
                let settings = asked.settings(model, own_context, settings);
                Opened::Mtp(Box::new(MtpDrafter::new(model, settings, bounds)?))
            }
            Source::Model(draft) => {
                let placing = settings.placing.clone();
                let own = Settings { placing, watched: Vec::new(), progress: None, ..settings };
                let mut settings = asked.settings(draft, own_context, settings);
                if asked.gpu_layers == Offload::Auto
                    && let Some(Weighed { gpu_layers, why }) =
                        weigh((draft, &settings), (model, &own))?
                {
                    settings.placing.gpu_layers = gpu_layers;
                    weighed = Some(why);
                }
                Opened::Model(Box::new(DraftModel::new(draft, model, settings, bounds)?))
            }
        };
        Ok(Drafts { opened, bounds, memory_bytes, weighed })
    }

    /// The session of the draft model or of the block for multi-token prediction, for its placement and its warnings.
    pub fn session(&self) -> Option<MutexGuard<'_, Session>> {
        match &self.opened {
            Opened::Lookup(_) => None,
            Opened::Mtp(drafter) => Some(drafter.session()),
            Opened::Model(drafter) => Some(drafter.session()),
        }
    }

    /// Why a draft model is where it is, if it was weighed against layers of the model.
    pub fn weighed(&self) -> Option<&str> {
        self.weighed.as_deref()
    }

    /// The settings of the model's session beside the source: the memory that is left, the purpose, and an output row for
    /// each draft token.
    #[must_use]
    pub fn beside<'s>(&self, settings: Settings<'s>) -> Settings<'s> {
        let placing = match self.session() {
            Some(session) => settings.placing.beside(session.plan(), self.memory_bytes.clone()),
            None => settings.placing,
        };
        let purpose = match self.opened {
            Opened::Mtp(_) => Purpose::WithHidden,
            Opened::Lookup(_) | Opened::Model(_) => settings.purpose,
        };
        let outputs = settings.outputs.unwrap_or(settings.sequences).max(self.bounds.draft_max + 1);
        Settings { placing, purpose, outputs: Some(outputs), ..settings }
    }

    /// The drafter of one answer after the other.
    pub fn drafter(&mut self) -> &mut dyn Drafter {
        match &mut self.opened {
            Opened::Lookup(lookup) => lookup,
            Opened::Mtp(drafter) => drafter.as_mut(),
            Opened::Model(drafter) => drafter.as_mut(),
        }
    }

    /// [`Drafts::drafter`] alone.
    pub fn into_drafter(self) -> Box<dyn Drafter> {
        match self.opened {
            Opened::Lookup(lookup) => Box::new(lookup),
            Opened::Mtp(drafter) => drafter,
            Opened::Model(drafter) => drafter,
        }
    }

    /// Makes drafters for several answers.
    pub fn into_source(self) -> Box<dyn DrafterSource> {
        match self.opened {
            Opened::Lookup(lookup) => Box::new(lookup),
            Opened::Mtp(drafter) => drafter,
            Opened::Model(drafter) => drafter,
        }
    }
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
