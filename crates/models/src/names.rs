//! Tensor names: GGUF's and the checkpoint's, in groups of which each architecture has some, for conversion.

/// One kind of tensor under both its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// GGUF's stem; `{}` stands for the layer. `.weight` or `.bias` follows in both.
    pub gguf: &'static str,
    /// The checkpoint's stem.
    pub checkpoint: &'static str,
    /// What makes GGUF's tensor of it.
    pub change: Change,
}

/// What happens to a tensor on its way from the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// In each head, the two halves of rows become interleaved ([`interleaved_source`]).
    Interleaved,
    /// A matrix is transposed; a vector stays as it is.
    Transposed,
    /// 1 is added to every element: a gain that the checkpoint has as its distance from 1.
    OneMore,
}

impl Name {
    /// As most tensors are.
    pub const fn kept(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::None }
    }

    /// Queries and keys of an architecture whose GGUF files rotate interleaved pairs.
    pub const fn interleaved(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Interleaved }
    }

    /// A matrix that the checkpoint has as `[cols, rows]`, and its bias.
    pub const fn transposed(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Transposed }
    }

    /// A gain that the checkpoint has as its distance from 1.
    pub const fn one_more(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::OneMore }
    }
}

/// Embedding and head.
pub(crate) const ENDS: &[Name] =
    &[Name::kept("token_embd", "model.embed_tokens"), Name::kept("output", "lm_head")];

/// Queries, keys, values and what comes of them, where halves of a head rotate together.
pub(crate) const ATTENTION: &[Name] = &[
    Name::kept("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    Name::kept("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    Name::kept("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
];

/// The same where GGUF has queries and keys in interleaved pairs.
pub(crate) const ATTENTION_IN_PAIRS: &[Name] = &[
    Name::interleaved("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    Name::interleaved("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    Name::kept("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
];

/// Norms of queries and keys.
pub(crate) const QK_NORMS: &[Name] = &[
    Name::kept("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    Name::kept("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
];

/// A gated feed-forward.
pub(crate) const GATED: &[Name] = &[
    Name::kept("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"),
    Name::kept("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"),
    Name::kept("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
];

/// Norms before both parts of a layer and before the head.
pub(crate) const NORMS: &[Name] = &[
    Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    Name::kept("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
    Name::kept("output_norm", "model.norm"),
];

/// Norms around both parts of a layer and before the head, their gains stored as the distance from 1.
pub(crate) const NORMS_AROUND: &[Name] = &[
    Name::one_more("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    Name::one_more("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
    Name::one_more("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    Name::one_more("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
    Name::one_more("output_norm", "model.norm"),
];

/// GGUF's name of a checkpoint's tensor, and its table line; `None` where no group has it. A checkpoint of a model
/// without its head lacks the first component (`model.`) of each name.
///
/// ```
/// use bilayer_models::{find, translate};
///
/// let names = find("llama")?.names;
/// let (name, _) = translate(names, "model.layers.12.mlp.up_proj.weight").expect("it is in the table");
/// assert_eq!(name, "blk.12.ffn_up.weight");
/// # Ok::<(), bilayer_models::Error>(())
/// ```
pub fn translate<'n>(groups: &[&'n [Name]], checkpoint: &str) -> Option<(String, &'n Name)> {
    let (stem, suffix) = checkpoint.rsplit_once('.')?;
    if !["weight", "bias"].contains(&suffix) {
        return None;
    }
    groups.iter().copied().flatten().find_map(|name| {
        let short = name.checkpoint.split_once('.').map(|(_, rest)| rest);
        let gguf = [Some(name.checkpoint), short]
            .into_iter()
            .flatten()
            .find_map(|pattern| filled(name.gguf, pattern, stem))?;
        Some((format!("{gguf}.{suffix}"), name))
    })
}

/// `gguf` with the layer for which `stem` matches `pattern`.
fn filled(gguf: &str, pattern: &str, stem: &str) -> Option<String> {
    let Some((before, after)) = pattern.split_once("{}") else {
        return (stem == pattern).then(|| gguf.to_owned());
    };
    let layer = stem.strip_prefix(before)?.strip_suffix(after)?;
    let number = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
    number.then(|| gguf.replace("{}", layer))
}

/// The checkpoint's row that becomes row `row` when the first `dims` rows of each head of `head_dim` go from
/// halves `(i, i + dims / 2)` to interleaved pairs `(2 i, 2 i + 1)`.
pub fn interleaved_source(row: usize, head_dim: usize, dims: usize) -> usize {
    let (head, place) = (row / head_dim, row % head_dim);
    if place >= dims {
        return row;
    }
    head * head_dim + place % 2 * (dims / 2) + place / 2
}

#[cfg(test)]
mod tests {
    use super::{Name, interleaved_source, translate};

    #[test]
    fn layers_are_numbers_and_suffixes_are_kept() {
        let groups: [&[Name]; 2] =
            [&[Name::kept("blk.{}.a", "model.{}.x")], &[Name::kept("out", "head")]];
        let found = |checkpoint| translate(&groups, checkpoint).map(|(name, _)| name);
        assert_eq!(found("model.7.x.bias").as_deref(), Some("blk.7.a.bias"));
        assert_eq!(found("7.x.bias").as_deref(), Some("blk.7.a.bias"));
        assert_eq!(found("head.weight").as_deref(), Some("out.weight"));
        for strange in
            ["model..x.weight", "model.a.x.weight", "model.7.y.weight", "head.scale", "head"]
        {
            assert_eq!(found(strange), None, "{strange}");
        }
    }

    #[test]
    fn halves_become_pairs_head_by_head() {
        let sources: Vec<_> = (0..16).map(|row| interleaved_source(row, 8, 8)).collect();
        assert_eq!(sources, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
        let partial: Vec<_> = (0..8).map(|row| interleaved_source(row, 8, 4)).collect();
        assert_eq!(partial, [0, 2, 1, 3, 4, 5, 6, 7]);
    }
}
