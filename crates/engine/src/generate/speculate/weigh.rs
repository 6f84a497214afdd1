//! Weighs a draft model against layers of its model where GPUs have no room for both, by times and acceptance.

use std::path::{Path, PathBuf};

use bilayer_files::hash::fnv;
use bilayer_scheduler::{Offload, Plan};
use serde::{Deserialize, Serialize};

use super::Text;
use crate::kept::Kept;
use crate::placement::{self, Placing};
use crate::session::Settings;
use crate::{Error, Model};

/// Drafts from which their acceptance says something.
const DRAFTS_MIN: u64 = 32;

/// Drafts from which earlier ones count half.
const DRAFTS_MAX: u64 = 4096;

/// Share of a draft model's time on the host below which it counts as apart from it: the embedding's.
const HOST_SHARE: f64 = 0.05;

/// Gain below which the draft model stays on the GPU: predictions are not that exact.
const WORTH: f64 = 0.02;

/// How many draft tokens a model has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// Drafts, with tokens or without.
    pub drafts: u64,
    /// Draft tokens.
    pub drafted: u64,
    /// Accepted draft tokens.
    pub accepted: u64,
    /// Drafts that were made while the model verified the one before, and used.
    #[serde(default)]
    pub ready: u64,
}

/// The acceptance of a pair of models, and where it is stored.
#[derive(Debug)]
pub(super) struct Record {
    kept: Option<(PathBuf, String)>,
    counted: Acceptance,
    /// The last draft, and the length of the text before it.
    draft: Vec<u32>,
    before: Option<usize>,
}

impl Record {
    /// A record that is stored in a folder, if there is one.
    pub fn new(folder: Option<&Path>, draft: &Model, model: &Model) -> Record {
        let kept = folder.map(|folder| (folder.to_owned(), name(draft, model)));
        Record { kept, counted: Acceptance::default(), draft: Vec::new(), before: None }
    }

    /// A record of the same pair for another answer.
    pub fn another(&self) -> Record {
        let kept = self.kept.clone();
        Record { kept, counted: Acceptance::default(), draft: Vec::new(), before: None }
    }

    /// Starts an answer.
    pub fn begin(&mut self) {
        self.before = None;
    }

    /// Counts what a text has accepted of the last draft.
    pub fn look(&mut self, text: Text<'_>) {
        if let Some(before) = self.before.take().filter(|before| *before < text.len()) {
            let pairs = self.draft.iter().zip(text.from(before));
            self.counted.drafts += 1;
            self.counted.drafted += self.draft.len() as u64;
            self.counted.accepted += pairs.take_while(|(a, b)| **a == *b).count() as u64;
        }
    }

    /// Counts a draft that was made while the model verified the one before.
    pub fn ready(&mut self) {
        self.counted.ready += 1;
    }

    /// Remembers a draft after a text.
    pub fn drafted(&mut self, text: Text<'_>, tokens: &[u32]) {
        self.draft.clear();
        self.draft.extend_from_slice(tokens);
        self.before = Some(text.len());
    }

    /// Adds what was counted to what is stored.
    pub fn store(&mut self) {
        let Some((folder, name)) = self.kept.as_ref().filter(|_| self.counted.drafts > 0) else {
            return;
        };
        add(folder, name, std::mem::take(&mut self.counted));
    }
}

/// Adds to what is stored under a name.
fn add(folder: &Path, name: &str, new: Acceptance) {
    let all = load(folder, name);
    let share = if all.drafts > DRAFTS_MAX { 2 } else { 1 };
    let all = Acceptance {
        drafts: all.drafts / share + new.drafts,
        drafted: all.drafted / share + new.drafted,
        accepted: all.accepted / share + new.accepted,
        ready: all.ready / share + new.ready,
    };
    if let Ok(text) = serde_json::to_vec(&all) {
        // It is learned again.
        let _ = Kept::new(folder).store(name, &text);
    }
}

/// The name of a pair's file.
fn name(draft: &Model, model: &Model) -> String {
    let of = |model: &Model| format!("{} {}", model.name(), model.graph().parameters());
    format!("drafts-{:016x}.json", fnv(format!("{}|{}", of(draft), of(model)).as_bytes()))
}

fn load(folder: &Path, name: &str) -> Acceptance {
    let stored = Kept::new(folder).load(name);
    stored.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

impl Acceptance {
    /// What earlier answers have recorded in a folder for two models.
    pub fn known(folder: &Path, draft: &Model, model: &Model) -> Acceptance {
        load(folder, &name(draft, model))
    }

    /// Adds to what is recorded in a folder for two models.
    pub fn record(self, folder: &Path, draft: &Model, model: &Model) {
        add(folder, &name(draft, model), self);
    }

    /// Milliseconds per token of an answer: drafts on one plan, steps that verify them on the other. `None` without
    /// predicted times.
    pub fn token_ms(&self, draft: &Plan, model: &Plan) -> Option<f64> {
        let (draft, model) = (draft.predicted.as_ref()?, model.predicted.as_ref()?);
        let each = |count: u64| count as f64 / self.drafts as f64;
        let step_ms = model.step_ms(1.0 + each(self.drafted));
        let draft_ms = each(self.drafted) * draft.decode_ms;
        // Beside the host's part of a step the next draft is made, after a token that stands for the model's own.
        let hidden_ms = match draft.devices_ms.first() {
            Some(host_ms) if *host_ms < HOST_SHARE * draft.decode_ms => {
                let host_ms = step_ms * model.devices_ms.first()? / model.decode_ms;
                let ahead_ms = (draft_ms + draft.decode_ms).min(host_ms);
                each(self.ready) * (ahead_ms - draft.decode_ms).clamp(0.0, draft_ms)
            }
            _ => 0.0,
        };
        Some((draft_ms - hidden_ms + step_ms) / (1.0 + each(self.accepted)))
    }
}

/// Where a draft model gives the fastest answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Weighed {
    /// How much of the draft model is offloaded.
    pub gpu_layers: Offload,
    /// The reason, as a sentence.
    pub why: String,
}

/// Weighs a draft model with its settings on a GPU against layers of the model with its own. `None` where the draft model
/// takes no layer of the model's, where nothing is predicted, or before earlier answers have shown how many draft tokens are accepted.
///
/// # Errors
/// Those of [`placement::plan`].
pub fn weigh(
    draft: (&Model, &Settings<'_>),
    model: (&Model, &Settings<'_>),
) -> Result<Option<Weighed>, Error> {
    let Some(folder) = draft.1.placing.kept.as_deref() else { return Ok(None) };
    let acceptance = Acceptance::known(folder, draft.0, model.0);
    if acceptance.drafts < DRAFTS_MIN {
        return Ok(None);
    }
    let plan = |(model, settings): (&Model, &Settings<'_>), placing: Placing| {
        let settings = Settings { placing, watched: Vec::new(), progress: None, ..*settings };
        placement::plan(model, &settings, None)
    };
    let with_draft = plan(draft, draft.1.placing.clone())?;
    let memory_bytes = placement::gpu_bytes(&draft.1.placing);
    let beside = model.1.placing.clone().beside(&with_draft, memory_bytes);
    // A model that does not fit beside the draft model is refused later.
    let Ok(beside) = plan(model, beside) else { return Ok(None) };
    let on_cpu = plan(draft, Placing { gpu_layers: Offload::Count(0), ..draft.1.placing.clone() })?;
    let alone = plan(model, model.1.placing.clone())?;
    if beside.gpu_layers >= alone.gpu_layers {
        return Ok(None);
    }
    let times = acceptance.token_ms(&with_draft, &beside).zip(acceptance.token_ms(&on_cpu, &alone));
    let Some((gpu_ms, cpu_ms)) = times else { return Ok(None) };
    let accepted = acceptance.accepted as f64 / acceptance.drafts as f64;
    let layers = alone.gpu_layers - beside.gpu_layers;
    let mut why = format!(
        "{gpu_ms:.1} ms a token with the draft model on the GPU, {cpu_ms:.1} with it on the CPU and {layers} more \
         layers of the model on the GPU ({accepted:.1} draft tokens accepted per step so far)"
    );
    let best_ms = gpu_ms.min(cpu_ms);
    if let Some(none) = alone.predicted.filter(|none| none.decode_ms < best_ms * (1.0 - WORTH)) {
        why += &format!("; without a draft model {:.1}", none.decode_ms);
    }
    let gpu_layers = match cpu_ms < gpu_ms * (1.0 - WORTH) {
        true => Offload::Count(0),
        false => draft.1.placing.gpu_layers,
    };
    Ok(Some(Weighed { gpu_layers, why }))
}
