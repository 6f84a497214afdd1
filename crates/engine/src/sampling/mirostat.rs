//! Mirostat (Basu et al. 2021): truncates so that the text's surprise stays at a target.

use super::options::{Mirostat, above, outside};
use super::{Bound, Candidate, Field, Link, Listed, Parameter, Phase, by_logit, normalize};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "mirostat",
    listed: Listed::Never,
    aliases: &[],
    phase: Phase::Target,
    parameters: &[
        Parameter::new(
            "mirostat",
            "Mirostat version, 1 or 2; 0 is off",
            Field::Count(
                |o| o.mirostat.unwrap_or(Mirostat::OFF).version.into(),
                |o, x| {
                    o.mirostat.get_or_insert(Mirostat::OFF).version =
                        u8::try_from(x).unwrap_or(u8::MAX);
                },
            ),
        ),
        Parameter::new(
            "mirostat-ent",
            "Mirostat's target entropy in bits",
            Field::Real(
                |o| o.mirostat.unwrap_or(Mirostat::OFF).tau,
                |o, x| o.mirostat.get_or_insert(Mirostat::OFF).tau = x,
            ),
        ),
        Parameter::new(
            "mirostat-lr",
            "Mirostat's learning rate",
            Field::Real(
                |o| o.mirostat.unwrap_or(Mirostat::OFF).eta,
                |o, x| o.mirostat.get_or_insert(Mirostat::OFF).eta = x,
            ),
        ),
    ],
    check: |options, _| {
        let Some(mirostat) = &options.mirostat else { return Ok(()) };
        if !(1..=2).contains(&mirostat.version) {
            return Err(outside("mirostat", &mirostat.version, "0, 1 or 2"));
        }
        above("mirostat-ent", mirostat.tau, 0.0)?;
        above("mirostat-lr", mirostat.eta, 0.0)
    },
    is_on: |options| options.mirostat.is_some(),
    bound: |_| Bound::All,
    apply: |chain| {
        if let Some(mirostat) = &chain.options.mirostat {
            apply(chain.candidates, mirostat, chain.mirostat_mu);
        }
    },
};

/// Candidates the Zipf exponent is estimated from, as in the paper.
const ESTIMATED: usize = 100;

/// Keeps the candidates whose surprise is at most `mu` bits, one at least.
pub fn apply(candidates: &mut Vec<Candidate>, options: &Mirostat, mu: f32) {
    candidates.sort_unstable_by(by_logit);
    normalize(candidates);
    let keep = if options.version == 1 {
        kept_by_zipf(candidates, mu)
    } else {
        candidates.iter().take_while(|c| -c.p.log2() <= mu).count()
    };
    candidates.truncate(keep.max(1));
    normalize(candidates);
}

/// Moves `mu` towards the target by the surprise of the token that was chosen.
pub fn observe(candidates: &[Candidate], options: &Mirostat, mu: &mut f32, token: u32) {
    let chosen = candidates.iter().find(|c| c.id == token).map_or(1.0, |c| c.p);
    *mu -= options.eta * (-chosen.log2() - options.tau);
}

/// Top-k of version 1: the k whose expected surprise under Zipf's law with the estimated exponent is `mu`
/// (equations 27 to 30 of the paper).
fn kept_by_zipf(candidates: &[Candidate], mu: f32) -> usize {
    let (mut products, mut squares) = (0.0f64, 0.0f64);
    for (i, pair) in candidates.windows(2).take(ESTIMATED - 1).enumerate() {
        let t = ((i + 2) as f64 / (i + 1) as f64).ln();
        let b = f64::from(pair[0].p / pair[1].p.max(f32::MIN_POSITIVE)).ln();
        products += t * b;
        squares += t * t;
    }
    let s = if squares > 0.0 { products / squares } else { 1.0 };
    let epsilon = s - 1.0;
    let n = candidates.len() as f64;
    let k = (epsilon * f64::from(mu).exp2() / (1.0 - n.powf(-epsilon))).powf(1.0 / s);
    if k.is_finite() { (k.round() as usize).clamp(1, candidates.len()) } else { candidates.len() }
}
