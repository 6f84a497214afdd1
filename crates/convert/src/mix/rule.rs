//! Rules for the type of one kind of tensor by layer.

use bilayer_quant::Type;

use super::Facts;

/// Where a tensor is among those of its kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its layer, counted from 0.
    pub layer: usize,
    /// All layers.
    pub layers: usize,
}

/// A rule for one kind of tensor; layers it does not cover get the mix's base type.
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
    /// As `First`, but only without an importance matrix.
    Unweighted {
        parts: usize,
        then: Type,
        rest: Option<Type>,
    },
    /// The first eighth, with an importance matrix.
    Weighted(Type),
    /// The first `layers` layers.
    Early {
        layers: usize,
        then: Type,
        rest: Option<Type>,
    },
    /// The first eighth, the last, and every third between.
    More(Type),
    /// `first` in the first of `parts` equal parts of the layers, `more` in others of [`Rule::More`].
    FirstAndMore {
        parts: usize,
        first: Type,
        more: Type,
    },
    /// The first eighth; in models of eight experts as [`Rule::More`].
    FirstOrMoreOf8(Type),
    /// All but the first and the last eighth.
    Middle(Type),
    /// `grouped` if four or more query heads share a key-value head, otherwise `single`.
    Grouped {
        grouped: Type,
        single: Option<Type>,
    },
    /// As `Grouped`, with `single` only without an importance matrix.
    GroupedOrUnweighted {
        grouped: Type,
        single: Type,
    },
}

impl Rule {
    /// The type at a place in a mix with base type `base`.
    pub fn choose(self, base: Type, Place { layer, layers }: Place, facts: &Facts) -> Type {
        let first = layer < layers / 8;
        let more = first
            || layer >= 7 * layers / 8
            || (layer >= layers / 8 && (layer - layers / 8) % 3 == 2);
        let is_grouped = facts.heads / facts.kv_heads.max(1) >= 4;
        let (applies, then, rest) = match self {
            Rule::Base => return base,
            Rule::Always(ty) => (true, ty, None),
            Rule::Unweighted { .. } if facts.importance => return base,
            Rule::First { parts, then, rest } | Rule::Unweighted { parts, then, rest } => {
                (layer < layers / parts, then, rest)
            }
            Rule::Weighted(ty) => (first && facts.importance, ty, None),
            Rule::Early { layers, then, rest } => (layer < layers, then, rest),
            Rule::More(ty) => (more, ty, None),
            Rule::FirstAndMore { parts, first, more: others } => {
                (layer < layers / parts, first, more.then_some(others))
            }
            Rule::FirstOrMoreOf8(ty) => (first || facts.experts == 8 && more, ty, None),
            Rule::Middle(ty) => (!first && layer < 7 * layers / 8, ty, None),
            Rule::Grouped { grouped, single } => (is_grouped, grouped, single),
            Rule::GroupedOrUnweighted { grouped, single } => {
                (is_grouped, grouped, (!facts.importance).then_some(single))
            }
        };
        if applies { then } else { rest.unwrap_or(base) }
    }
}
