//! The type of each tensor in a mix: llama.cpp's rules as a table and a pure function.
//!
//! A mix such as Q4_K_M stores most matrices in one type and the few most sensitive ones in better types. Files
//! of one name have one composition, whoever made them. Source: `llama-quant.cpp` of llama.cpp;
//! `mix/recorded.txt` records the choices of its quantizer, and the tests compare.

use bilayer_quant::Type;

use crate::Error;

mod rule;
#[cfg(test)]
mod tests;

use rule::Place;
use rule::Rule::{
    self, Always, Base, Early, First, FirstAndMore, FirstOrMoreOf8, Grouped, GroupedOrUnweighted,
    Middle, More, Unweighted, Weighted,
};

/// The properties of a model that the rules depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Layers of the model.
    pub layers: usize,
    /// Query heads of a layer.
    pub heads: usize,
    /// Key-value heads of a layer.
    pub kv_heads: usize,
    /// Experts of a layer, 0 if dense.
    pub experts: usize,
    /// Layers that have values of attention ([`attention`]), in order: fewer than all in hybrid models.
    pub attention: Vec<usize>,
    /// Whether the architecture is Falcon, which has rules of its own.
    pub is_falcon: bool,
    /// Whether the embedding is also the output head.
    pub tied: bool,
    /// Whether an importance matrix is available.
    pub importance: bool,
}

/// Tensors that hold the values of attention, alone or with queries and keys.
const ATTENTION: [&str; 3] = ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"];

/// The layers of the tensors that hold the values of attention, in order.
pub fn attention<'n>(names: impl Iterator<Item = &'n str>) -> Vec<usize> {
    let names = names.filter(|name| ATTENTION.into_iter().any(|part| name.contains(part)));
    let mut layers: Vec<usize> = names.map(layer).collect();
    layers.sort_unstable();
    layers
}

/// The layer of a tensor, 0 of one outside of layers.
fn layer(name: &str) -> usize {
    bilayer_models::numbered(name).map_or(0, |(_, layer, _)| layer)
}

/// A named composition of types.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Its name in file names and on command lines.
    pub name: &'static str,
    /// `general.file_type` of its files; `None` if llama.cpp has no such file type.
    pub file_type: Option<u32>,
    /// The type of most matrices.
    pub base: Type,
    /// Whether all matrices have the base type.
    pub pure: bool,
    /// Type of the output head, and of the embedding if it is the head.
    head: Type,
    embedding: Rule,
    attn_v: Rule,
    /// Queries and keys.
    attn_qk: Rule,
    attn_output: Rule,
    ffn_down: Rule,
    ffn_gate_up: Rule,
    /// `attn_output` in models of eight experts, where attention is a small part.
    attn_output_of_8: Rule,
    /// Whether attention gets Q4_K at most, as in mixes below three bits.
    low: bool,
    /// Whether experts have the base type and everything else Q8_0.
    experts_only: bool,
    /// Whether every tensor keeps its type.
    pub copies: bool,
    /// Whether the base type requires an importance matrix in this mix.
    weighted: bool,
}

/// A mix of one type for everything but the head.
const fn plain(name: &'static str, file_type: u32, base: Type) -> Mix {
    Mix {
        name,
        file_type: Some(file_type),
        base,
        pure: false,
        head: Type::Q6_K,
        embedding: Base,
        attn_v: Base,
        attn_qk: Base,
        attn_output: Base,
        ffn_down: Base,
        ffn_gate_up: Base,
        attn_output_of_8: Base,
        low: false,
        experts_only: false,
        copies: false,
        weighted: false,
    }
}

/// [`plain`] with Q5_K in the attention outputs of models of eight experts.
const fn eight(name: &'static str, file_type: u32, base: Type) -> Mix {
    Mix { attn_output_of_8: Always(Type::Q5_K), ..plain(name, file_type, base) }
}

/// A mix below three bits; `better` is the type of the more sensitive tensors.
const fn low(name: &'static str, file_type: u32, base: Type, better: Type) -> Mix {
    Mix {
        head: Type::Q5_K,
        embedding: Always(better),
        attn_v: Grouped { grouped: Type::Q4_K, single: Some(better) },
        ffn_down: First { parts: 8, then: better, rest: None },
        low: true,
        ..eight(name, file_type, base)
    }
}

/// All mixes of llama.cpp, and NVFP4.
static MIXES: [Mix; 35] = [
    plain("F32", 0, Type::F32),
    plain("F16", 1, Type::F16),
    plain("BF16", 32, Type::BF16),
    Mix { head: Type::Q8_0, ..plain("Q8_0", 7, Type::Q8_0) },
    Mix { ffn_down: Weighted(Type::Q4_1), ..plain("Q4_0", 2, Type::Q4_0) },
    plain("Q4_1", 3, Type::Q4_1),
    Mix { ffn_down: Weighted(Type::Q5_1), ..plain("Q5_0", 8, Type::Q5_0) },
    plain("Q5_1", 9, Type::Q5_1),
    Mix {
        attn_v: Grouped { grouped: Type::Q4_K, single: Some(Type::Q3_K) },
        attn_output: Always(Type::Q3_K),
        ffn_down: Always(Type::Q3_K),
        ..eight("Q2_K", 10, Type::Q2_K)
    },
    Mix {
        attn_v: Grouped { grouped: Type::Q4_K, single: None },
        ffn_down: First { parts: 8, then: Type::Q4_K, rest: None },
        weighted: true,
        ..plain("Q2_K_S", 21, Type::Q2_K)
    },
    eight("Q3_K_S", 11, Type::Q3_K),
    Mix {
        attn_v: Early { layers: 2, then: Type::Q5_K, rest: Some(Type::Q4_K) },
        attn_output: Always(Type::Q4_K),
        ffn_down: First { parts: 16, then: Type::Q5_K, rest: Some(Type::Q4_K) },
        ..eight("Q3_K_M", 12, Type::Q3_K)
    },
    Mix {
        attn_v: Always(Type::Q5_K),
        attn_output: Always(Type::Q5_K),
        ffn_down: Always(Type::Q5_K),
        ..plain("Q3_K_L", 13, Type::Q3_K)
    },
    Mix {
        attn_v: Early { layers: 4, then: Type::Q5_K, rest: None },
        ffn_down: First { parts: 8, then: Type::Q5_K, rest: None },
        ..eight("Q4_K_S", 14, Type::Q4_K)
    },
    Mix { attn_v: More(Type::Q6_K), ffn_down: More(Type::Q6_K), ..eight("Q4_K_M", 15, Type::Q4_K) },
    plain("Q5_K_S", 16, Type::Q5_K),
    Mix { attn_v: More(Type::Q6_K), ffn_down: More(Type::Q6_K), ..plain("Q5_K_M", 17, Type::Q5_K) },
    plain("Q6_K", 18, Type::Q6_K),
    Mix { attn_output: Always(Type::IQ2_XXS), ..low("IQ1_S", 24, Type::IQ1_S, Type::Q2_K) },
    Mix { attn_output: Always(Type::IQ2_XXS), ..low("IQ1_M", 31, Type::IQ1_M, Type::Q2_K) },
    low("IQ2_XXS", 19, Type::IQ2_XXS, Type::Q2_K),
    low("IQ2_XS", 20, Type::IQ2_XS, Type::Q2_K),
    Mix { attn_output: Always(Type::IQ3_S), ..low("IQ2_S", 28, Type::IQ2_XS, Type::IQ3_S) },
    Mix { attn_output: Always(Type::IQ3_S), ..low("IQ2_M", 29, Type::IQ2_S, Type::IQ3_S) },
    Mix {
        head: Type::Q5_K,
        embedding: Always(Type::IQ3_S),
        attn_v: GroupedOrUnweighted { grouped: Type::Q4_K, single: Type::IQ3_S },
        attn_qk: Always(Type::IQ2_S),
        attn_output: Always(Type::IQ3_S),
        ffn_down: Unweighted { parts: 8, then: Type::Q4_K, rest: Some(Type::Q3_K) },
        ..eight("IQ3_XXS", 23, Type::IQ3_XXS)
    },
    Mix {
        attn_v: Grouped { grouped: Type::Q4_K, single: None },
        attn_qk: Always(Type::IQ3_XXS),
        ffn_gate_up: Middle(Type::IQ3_XXS),
        ..eight("IQ3_XS", 22, Type::IQ3_S)
    },
    Mix {
        attn_v: Grouped { grouped: Type::Q4_K, single: None },
        ..eight("IQ3_S", 26, Type::IQ3_S)
    },
    Mix {
        attn_v: Always(Type::Q4_K),
        attn_output: Always(Type::Q4_K),
        ffn_down: FirstOrMoreOf8(Type::Q4_K),
        ..eight("IQ3_M", 27, Type::IQ3_S)
    },
    Mix {
        attn_v: Grouped { grouped: Type::Q5_K, single: None },
        ffn_down: Unweighted { parts: 8, then: Type::Q5_K, rest: None },
        ..eight("IQ4_NL", 25, Type::IQ4_NL)
    },
    Mix {
        attn_v: Grouped { grouped: Type::Q5_K, single: None },
        ffn_down: Unweighted { parts: 8, then: Type::Q5_K, rest: None },
        ..eight("IQ4_XS", 30, Type::IQ4_XS)
    },
    Mix { embedding: Always(Type::Q4_K), ..plain("TQ1_0", 36, Type::TQ1_0) },
    Mix { embedding: Always(Type::Q4_K), ..plain("TQ2_0", 37, Type::TQ2_0) },
    Mix { head: Type::Q8_0, experts_only: true, ..plain("MXFP4_MOE", 38, Type::MXFP4) },
    // Its scales have too few bits for the small weights of an embedding.
    Mix { head: Type::Q8_0, embedding: Always(Type::Q8_0), ..plain("NVFP4", 39, Type::NVFP4) },
    Mix { file_type: None, copies: true, ..plain("COPY", 0, Type::F32) },
];

/// Mixes that have other rules in Falcon, whose head is always Q8_0: for `ffn_down` and `attn_output`.
static FALCON: [(&str, Rule, Rule); 7] = [
    ("Q2_K", Always(Type::Q3_K), Base),
    ("Q3_K_M", FirstAndMore { parts: 16, first: Type::Q5_K, more: Type::Q4_K }, Base),
    ("Q3_K_L", Always(Type::Q4_K), Always(Type::Q4_K)),
    ("Q4_K_S", Base, Base),
    ("Q4_K_M", FirstAndMore { parts: 16, first: Type::Q6_K, more: Type::Q5_K }, Base),
    ("IQ3_XXS", Unweighted { parts: 8, then: Type::Q4_K, rest: Some(Type::Q3_K) }, Base),
    ("IQ3_M", FirstOrMoreOf8(Type::Q4_K), Base),
];

/// Types below 2.6 bits, which llama.cpp writes only with an importance matrix: without, the result is useless.
const WEIGHTED: &[Type] = &[Type::IQ1_S, Type::IQ1_M, Type::IQ2_XXS, Type::IQ2_XS, Type::IQ2_S];

/// Tensors that may have any type without an importance matrix.
const UNWEIGHTED: &[&str] = &["token_embd.weight", "per_layer_token_embd.weight", "output.weight"];

/// Whether a type is written only with an importance matrix, whatever the mix.
pub(crate) fn is_weighted(ty: Type) -> bool {
    WEIGHTED.contains(&ty)
}

/// Substrings of tensor names that keep full precision in every mix: norm gains, routers, positions, and small
/// tensors of other architectures.
const FULL_PRECISION: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "position_embd",
    "token_types.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "attn_rel_b.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
];

/// Whether a tensor of `shape` (`[.., rows, cols]`) is a matrix that may be quantized: it is none of those that keep full
/// precision in every mix.
pub(crate) fn is_quantized(name: &str, shape: &[u64]) -> bool {
    let matrix = shape.iter().skip_while(|size| **size == 1).count() >= 2;
    matrix && name.ends_with("weight") && !FULL_PRECISION.iter().any(|part| name.contains(part))
}

/// Types whose quantizers do not look at importance: every weight is rounded to nearest by a fixed scale.
const IMPORTANCE_BLIND: [Type; 5] = [Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::W8A8];

/// Whether importance changes what the quantizer of a type writes.
#[must_use]
pub fn takes_importance(ty: Type) -> bool {
    !IMPORTANCE_BLIND.contains(&ty)
}

impl Mix {
    /// Finds a mix by name, case-insensitively. The name of a type that is not a mix gives that type for all
    /// matrices; a sparse type only for those of the layers, as embedding and head lose most by pruning.
    ///
    /// # Errors
    /// [`Error::UnknownType`], which lists the known names; [`Error::NotForWeights`].
    pub fn find(name: &str) -> Result<Mix, Error> {
        if let Some(mix) = MIXES.iter().find(|mix| mix.name.eq_ignore_ascii_case(name)) {
            return Ok(*mix);
        }
        let unknown = |_| Error::UnknownType { name: name.to_owned(), known: Mix::names() };
        let ty = bilayer_quant::by_name(name).map_err(unknown)?;
        match ty.kept_of_64() {
            None => Mix::pure(ty),
            Some(_) => {
                Ok(Mix { file_type: None, embedding: Always(Type::Q6_K), ..plain(ty.name, 0, ty) })
            }
        }
    }

    /// One type for all matrices.
    ///
    /// # Errors
    /// [`Error::NotForWeights`] for integers and double precision.
    pub fn pure(ty: Type) -> Result<Mix, Error> {
        // Types that cannot be quantized and have one weight per block are for tables and indices.
        if ty.block_weights == 1 && ty.quantize.is_none() {
            return Err(Error::NotForWeights { ty: ty.name });
        }
        // The number of the type's mix, and of its medium one if there are several, as llama.cpp derives it from tensors.
        let names = [ty.name.to_owned(), format!("{}_M", ty.name), format!("{}_MOE", ty.name)];
        let mix = names.iter().find_map(|name| MIXES.iter().find(|mix| mix.name == *name));
        let file_type = mix.and_then(|mix| mix.file_type);
        Ok(Mix { file_type, pure: true, head: ty, ..plain(ty.name, 0, ty) })
    }

    /// The base type for all matrices, under the mix's `general.file_type`.
    ///
    /// # Errors
    /// Those of [`Mix::pure`].
    pub fn purely(&self) -> Result<Mix, Error> {
        Ok(Mix { file_type: self.file_type, ..Mix::pure(self.base)? })
    }

    /// Every mix.
    pub fn all() -> &'static [Mix] {
        &MIXES
    }

    /// The names that [`Mix::find`] accepts, separated by commas.
    pub fn names() -> String {
        let mixes = MIXES.iter().map(|mix| mix.name);
        let others = bilayer_quant::all()
            .iter()
            .map(|ty| ty.name)
            .filter(|name| MIXES.iter().all(|mix| mix.name != *name) && Mix::find(name).is_ok());
        mixes.chain(others).collect::<Vec<_>>().join(", ")
    }

    /// The type of the tensor `name` of `shape` (`[.., rows, cols]`), or `None` if it keeps full precision:
    /// vectors, norm gains, routers.
    ///
    /// The layer is the number in the name; for values of attention, layers without any do not count. If a row is not a whole number of blocks, a type of smaller blocks is chosen, F16 as a
    /// last resort.
    pub fn tensor(&self, name: &str, shape: &[u64], facts: &Facts) -> Option<Type> {
        if self.copies || !is_quantized(name, shape) {
            return None;
        }
        Some(fitting(self.preferred(name, shape, facts), shape.last().copied().unwrap_or_default()))
    }

    /// Whether the tensor `name` gets the type `ty` only with an importance matrix, which has no entries for embeddings, and
    /// mostly none for the head.
    pub(crate) fn is_weighted(&self, name: &str, ty: Type) -> bool {
        let is_base = self.weighted && ty == self.base;
        !UNWEIGHTED.contains(&name) && (is_base || is_weighted(ty))
    }

    /// The type that the mix assigns to a tensor, regardless of whether its rows fit the type's blocks.
    pub(crate) fn preferred(&self, name: &str, shape: &[u64], facts: &Facts) -> Type {
        if self.pure || self.base.block_weights == 1 {
            return self.base;
        }
        match facts.is_falcon {
            true => self.of_falcon().choose(name, shape, facts),
            false => self.choose(name, shape, facts),
        }
    }

    /// The mix with the rules for Falcon.
    fn of_falcon(&self) -> Mix {
        let mix = Mix { head: Type::Q8_0, ..*self };
        match FALCON.iter().find(|(name, ..)| *name == self.name) {
            Some(&(_, ffn_down, attn_output)) => Mix { ffn_down, attn_output, ..mix },
            None => mix,
        }
    }

    fn choose(&self, name: &str, shape: &[u64], facts: &Facts) -> Type {
        let layer = layer(name);
        let place = Place { layer, layers: facts.layers };
        let by = |rule: Rule| rule.choose(self.base, place, facts);
        let is_embedding = ["token_embd.weight", "per_layer_token_embd.weight"].contains(&name);
        let of_8 = facts.experts == 8;
        if name == "output.weight" || is_embedding && facts.tied {
            let cols = shape.last().copied().unwrap_or_default();
            return if fits(self.base, cols) { self.head } else { Type::Q8_0 };
        }
        if self.experts_only {
            let is_stacked = shape.len() > 2 && shape[shape.len() - 3] > 1;
            return if is_stacked { self.base } else { Type::Q8_0 };
        }
        let has = |part: &str| name.contains(part);
        if is_embedding {
            by(self.embedding)
        } else if ATTENTION.into_iter().any(has) {
            let before = facts.attention.partition_point(|other| *other < layer);
            let place = Place { layer: before, layers: facts.attention.len() };
            self.attn_v(self.attn_v.choose(self.base, place, facts), facts)
        } else if has("attn_k.weight") {
            match (of_8, self.low) {
                (true, true) => Type::Q4_K,
                (true, false) => Type::Q8_0,
                (false, _) => by(self.attn_qk),
            }
        } else if has("attn_q.weight") {
            by(self.attn_qk)
        } else if has("attn_output.weight") {
            by(if of_8 { self.attn_output_of_8 } else { self.attn_output })
        } else if has("ffn_down") {
            by(self.ffn_down)
        } else if has("ffn_up") || has("ffn_gate") {
            by(self.ffn_gate_up)
        } else {
            self.base
        }
    }

    /// With grouped-query attention the value matrices are small, so better types cost little.
    fn attn_v(&self, chosen: Type, facts: &Facts) -> Type {
        if self.low {
            return if facts.experts >= 4 { Type::Q4_K } else { chosen };
        }
        if facts.experts == 8 {
            return Type::Q8_0;
        }
        // llama.cpp's criterion for the 70B: eighty layers with grouped heads.
        let is_70b = facts.layers == 80 && facts.heads != facts.kv_heads;
        if is_70b && [Type::Q3_K, Type::Q4_K].contains(&chosen) { Type::Q5_K } else { chosen }
    }
}

/// The longest rows of W8A8. A product is one sum of i32 over the row, to which a column adds at most 255 · 127: some levels
/// shift weights to 0 to 255.
pub const W8A8_COLS: u64 = 1 << 16;

/// Why rows of `cols` weights cannot have a type; `None` if they can.
#[must_use]
pub fn misfit(ty: Type, cols: u64) -> Option<String> {
    let block = ty.block_weights as u64;
    if !cols.is_multiple_of(block) {
        return Some(format!("rows of {cols} are not a multiple of {ty}'s block of {block}"));
    }
    let is_long = ty == Type::W8A8 && cols > W8A8_COLS;
    is_long.then(|| {
        format!(
            "rows of {cols} are longer than {W8A8_COLS}, with which the sums of {ty} fit 32 bits"
        )
    })
}

fn fits(ty: Type, cols: u64) -> bool {
    misfit(ty, cols).is_none()
}

/// `ty`, or its substitute for rows that it does not fit ([`misfit`]). F16 where llama.cpp has no substitute and
/// refuses the model.
pub fn fitting(ty: Type, cols: u64) -> Type {
    if fits(ty, cols) {
        return ty;
    }
    // By the precision of a block of 32 weights: codebook types go to codebook types, the others to a type of
    // similar bits.
    let smaller = [
        (Type::IQ4_NL, &[Type::IQ1_S, Type::IQ1_M, Type::IQ2_XXS, Type::IQ2_XS, Type::IQ2_S][..]),
        (Type::IQ4_NL, &[Type::IQ3_XXS, Type::IQ3_S, Type::IQ4_XS]),
        (Type::Q4_0, &[Type::Q2_K, Type::Q3_K, Type::TQ1_0, Type::TQ2_0]),
        (Type::Q5_0, &[Type::Q4_K]),
        (Type::Q5_1, &[Type::Q5_K]),
        (Type::Q8_0, &[Type::Q6_K, Type::W8A8]),
    ];
    let found = smaller.into_iter().find(|(_, types)| types.contains(&ty)).map(|(small, _)| small);
    found.filter(|small| fits(*small, cols)).unwrap_or(Type::F16)
}
