//! The rules that say in which layers a kind of tensor gets which type.

use bilayer_quant::Type;

use super::Facts;

/// A rule for one kind of tensor; without another word the type is the mix's base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rule {
    Base,
    Always(Type),
    /// The first of `parts` equal parts of the layers.
    First {
        parts: usize,
        then: Type,
        rest: Option<Type>,
    },
    /// The same, without an importance matrix.
    Unweighted {
        parts: usize,
        then: Type,
        rest: Option<Type>,
    },
    /// The first eighth, with an importance matrix.
    Weighted(Type),
    /// The first layers by count.
    Early {
        layers: usize,
        then: Type,
        rest: Option<Type>,
    },
    /// The first eighth, the last, and every third between.
    More(Type),
    /// The first eighth; of eight experts also where [`Rule::More`] says.
    FirstOrMoreOf8(Type),
    /// All but the first and the last eighth.
    Middle(Type),
    /// Where four heads or more share keys and values, and where not.
    Grouped {
        grouped: Type,
        single: Option<Type>,
    },
    /// The same, `single` only without an importance matrix.
    GroupedOrUnweighted {
        grouped: Type,
        single: Type,
    },
}

impl Rule {
    /// The type in `layer`, where the mix's is `base`.
    pub fn choose(self, base: Type, layer: usize, facts: &Facts) -> Type {
        let layers = facts.layers;
        let first = layer < layers / 8;
        let more = first
            || layer >= 7 * layers / 8
            || (layer >= layers / 8 && (layer - layers / 8) % 3 == 2);
        let is_grouped = facts.heads / facts.kv_heads.max(1) >= 4;
        let found = match self {
            Rule::Base => None,
            Rule::Always(ty) => Some(ty),
            Rule::First { parts, then, rest } => pick(layer < layers / parts, then, rest),
            Rule::Unweighted { parts, then, rest } => {
                (!facts.importance).then(|| pick(layer < layers / parts, then, rest)).flatten()
            }
            Rule::Weighted(ty) => pick(first && facts.importance, ty, None),
            Rule::Early { layers, then, rest } => pick(layer < layers, then, rest),
            Rule::More(ty) => pick(more, ty, None),
            Rule::FirstOrMoreOf8(ty) => pick(first || facts.experts == 8 && more, ty, None),
            Rule::Middle(ty) => pick(!first && layer < 7 * layers / 8, ty, None),
            Rule::Grouped { grouped, single } => pick(is_grouped, grouped, single),
            Rule::GroupedOrUnweighted { grouped, single } => {
                pick(is_grouped, grouped, (!facts.importance).then_some(single))
            }
        };
        found.unwrap_or(base)
    }
}

fn pick(first: bool, then: Type, rest: Option<Type>) -> Option<Type> {
    if first { Some(then) } else { rest }
}
