//! Repeat (Keskar et al. 2019), presence and frequency penalties on recent tokens.

use super::options::{above, finite};
use super::{Bound, Candidate, Field, Link, Listed, Options, Parameter, Phase, find};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "penalties",
    listed: Listed::Usual('e'),
    aliases: &[],
    phase: Phase::Logits,
    parameters: &[
        Parameter::new(
            "repeat-last-n",
            "Window of the penalties in tokens; -1 is the context, 0 is off",
            Field::Window(|o| o.repeat_last_n, |o, x| o.repeat_last_n = x),
        ),
        Parameter::new(
            "repeat-penalty",
            "Penalty on repeated tokens; 1 is off",
            Field::Real(|o| o.repeat_penalty, |o, x| o.repeat_penalty = x),
        ),
        Parameter::new(
            "presence-penalty",
            "Subtracted from the logit of each token that occurred in the window; 0 is off",
            Field::Real(|o| o.presence_penalty, |o, x| o.presence_penalty = x),
        ),
        Parameter::new(
            "frequency-penalty",
            "Subtracted from a token's logit for each occurrence in the window; 0 is off",
            Field::Real(|o| o.frequency_penalty, |o, x| o.frequency_penalty = x),
        ),
    ],
    check: |options, _| {
        above("repeat-penalty", options.repeat_penalty, 0.0)?;
        finite("presence-penalty", options.presence_penalty)?;
        finite("frequency-penalty", options.frequency_penalty)
    },
    is_on: |options| {
        options.repeat_last_n != Some(0)
            && (options.repeat_penalty != 1.0
                || options.presence_penalty != 0.0
                || options.frequency_penalty != 0.0)
    },
    bound: |options| {
        let raises = options.repeat_penalty < 1.0
            || options.presence_penalty < 0.0
            || options.frequency_penalty < 0.0;
        let window = options.repeat_last_n.filter(|_| !raises);
        window.map_or(Bound::All, Bound::Lowers)
    },
    apply: |chain| apply(chain.candidates, chain.history, chain.options),
};

/// Lowers the logits of candidates among the last `repeat_last_n` of `history`. Candidates are by rising id, their `p` is 0.
///
/// For a token seen `n` times: `logit / repeat` (times `repeat` when not positive), then
/// `- n * frequency - presence`.
pub fn apply(candidates: &mut [Candidate], history: &[u32], options: &Options) {
    let Options { repeat_penalty, presence_penalty, frequency_penalty, .. } = *options;
    if repeat_penalty == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
        return;
    }
    let window = options.repeat_last_n.unwrap_or(history.len()).min(history.len());
    let recent = &history[history.len() - window..];
    // `p` is 0 for samplers that find tokens: here it marks those that were already penalised.
    for &id in recent {
        let Some(c) = find(candidates, id) else { continue };
        if c.p == 0.0 {
            let positive = c.logit > 0.0;
            c.logit = if positive { c.logit / repeat_penalty } else { c.logit * repeat_penalty };
            c.logit -= presence_penalty;
            c.p = 1.0;
        }
        c.logit -= frequency_penalty;
    }
    for &id in recent {
        if let Some(c) = find(candidates, id) {
            c.p = 0.0;
        }
    }
}
