//! Flags of speculative decoding, named as llama.cpp's.

use std::path::PathBuf;

use bilayer_engine::generate::speculate::{Bounds, CHECKED_ROWS, DRAFT_MAX};
use bilayer_scheduler::Offload;
use clap::Args;

use super::placing::offload;

/// The source of draft tokens, and how many it drafts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculative decoding")]
pub struct DraftArgs {
    /// Draft model: a smaller one with the same vocabulary; its tokens are verified several at a time; short form -md
    #[arg(long, alias = "spec-draft-model", value_name = "PATH", env = "LLAMA_ARG_MODEL_DRAFT")]
    #[arg(conflicts_with = "lookup")]
    pub model_draft: Option<PathBuf>,
    /// Prompt lookup: draft the tokens that followed an earlier occurrence of the latest ones; needs no draft model
    #[arg(long)]
    pub lookup: bool,
    /// mtp: draft with the model's own block for multi-token prediction, if its file has one; a number is --draft-max
    #[arg(long, value_name = "mtp", value_parser = draft)]
    pub draft: Option<DraftKind>,
    /// llama.cpp's name for the source of drafts: none, draft-mtp, or one that begins with ngram, which is --lookup
    #[arg(long, value_name = "TYPE", env = "LLAMA_ARG_SPEC_TYPE", hide = true, value_parser = spec)]
    pub spec_type: Option<SpecType>,
    /// Most draft tokens at a time; up to 7, greedy answers on the CPU are bit for bit the same as without drafts
    #[arg(long, aliases = ["draft-n", "spec-draft-n-max"], value_name = "N")]
    #[arg(env = "LLAMA_ARG_DRAFT_MAX")]
    #[arg(default_value_t = CHECKED_ROWS as u32 - 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(DRAFT_MAX)))]
    pub draft_max: u32,
    /// Fewest draft tokens: --lookup drops shorter drafts, a draft model makes at least that many regardless of
    /// --draft-p-min
    #[arg(long, aliases = ["draft-n-min", "spec-draft-n-min"], value_name = "N")]
    #[arg(env = "LLAMA_ARG_DRAFT_MIN")]
    #[arg(default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=i64::from(DRAFT_MAX)))]
    pub draft_min: u32,
    /// Stop drafting when the draft model's best token is less probable than this
    #[arg(long, alias = "spec-draft-p-min", value_name = "X", default_value_t = 0.75)]
    #[arg(env = "LLAMA_ARG_DRAFT_P_MIN")]
    #[arg(value_parser = share)]
    pub draft_p_min: f32,
    /// Layers of the draft model on the GPUs, as -ngl; it is placed before the model; short form -ngld
    #[arg(long, visible_alias = "n-gpu-layers-draft", alias = "spec-draft-ngl", value_name = "N")]
    #[arg(default_value = "auto")]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS_DRAFT", value_parser = offload)]
    pub gpu_layers_draft: Offload,
}

/// A source of drafts by llama.cpp's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecType {
    /// No drafts, or those of the draft model given.
    None,
    /// Prompt lookup.
    Lookup,
    /// The model's block for multi-token prediction.
    Mtp,
}

/// The value of `--draft`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// The model's block for multi-token prediction.
    Mtp,
    /// Most draft tokens, as llama.cpp has it.
    Most(u32),
}

fn draft(given: &str) -> Result<DraftKind, String> {
    match (given, given.parse()) {
        ("mtp", _) => Ok(DraftKind::Mtp),
        (_, Ok(most @ 1..=DRAFT_MAX)) => Ok(DraftKind::Most(most)),
        _ => Err(format!("it must be mtp or a number from 1 to {DRAFT_MAX}")),
    }
}

fn spec(given: &str) -> Result<SpecType, String> {
    match given {
        "none" => Ok(SpecType::None),
        "draft-mtp" => Ok(SpecType::Mtp),
        _ if given.starts_with("ngram-") => Ok(SpecType::Lookup),
        _ => {
            Err("it must be none, draft-mtp or ngram-simple; -md MODEL drafts with a model"
                .to_owned())
        }
    }
}

impl DraftArgs {
    /// Whether drafts are looked up in the prompt and the answer.
    pub fn looks_up(&self) -> bool {
        self.lookup || self.spec_type == Some(SpecType::Lookup)
    }

    /// Whether the model's block for multi-token prediction drafts.
    pub fn is_mtp(&self) -> bool {
        self.draft == Some(DraftKind::Mtp) || self.spec_type == Some(SpecType::Mtp)
    }

    /// The bounds as the engine's settings.
    pub fn bounds(&self) -> Bounds {
        let draft_max = match self.draft {
            Some(DraftKind::Most(most)) => most,
            _ => self.draft_max,
        };
        Bounds {
            draft_max: draft_max as usize,
            draft_min: self.draft_min as usize,
            draft_p_min: self.draft_p_min,
            ..Bounds::default()
        }
    }
}

fn share(given: &str) -> Result<f32, String> {
    let number: Option<f32> = given.parse().ok();
    number
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "it must be between 0 and 1".to_owned())
}
