//! Tensor names in GGUF and in checkpoints, in groups that architectures combine, for conversion.

/// One kind of tensor under both names. `.weight` or `.bias` is appended to both, unless the GGUF name already
/// ends with it, or with `.scale`, or the tensor is one that has no such suffix in GGUF: then both names are complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// GGUF's stem; `{}` stands for the layer.
    pub gguf: &'static str,
    /// The checkpoint's stem; a second `{}` stands for the expert or the head.
    pub checkpoint: &'static str,
    /// The transformation from the checkpoint's tensor to GGUF's.
    pub change: Change,
}

/// The transformation of a tensor during conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The data is copied unchanged.
    None,
    /// In each head, the rows of the two halves are interleaved ([`interleaved_source`]).
    Interleaved,
    /// A matrix is transposed; a vector stays as it is.
    Transposed,
    /// 1 is added to every element: the checkpoint stores gain - 1.
    OneMore,
    /// The matrices of experts, or the vectors of heads, are stacked to `[experts, rows, cols]` or `[heads, elements]`.
    Stacked,
    /// The experts' matrices `[experts, cols, rows]` are transposed, and of their rows every `step`-th is
    /// selected from `first` on; vectors `[experts, rows]` likewise.
    EachTransposed {
        /// The first selected row.
        first: usize,
        /// The distance to the next selected row.
        step: usize,
    },
    /// The experts' matrices `[experts, cols, parts * rows]` are transposed, and of their rows those of one part are
    /// selected.
    PartTransposed {
        /// The part.
        part: usize,
        /// The number of parts.
        parts: usize,
    },
    /// Queries, keys and values lie side by side in each group of heads; GGUF has all queries, then all keys, then all
    /// values ([`regrouped_source`]).
    Regrouped,
    /// Of each head's rows, its keys' and then its values', the former as `[heads, rank, key rows]`.
    KeysOfHeads,
    /// Of each head's rows, its keys' and then its values', the latter as `[heads, value rows, rank]`.
    ValuesOfHeads,
    /// Dimensions of one element are left out.
    Squeezed,
    /// A vector becomes a matrix of one column.
    Column,
    /// A vector becomes a matrix of a row for each group of a Mamba 2 mixer.
    Grouped,
    /// A vector becomes a matrix of one column, of `-exp(x)`: the checkpoint stores the logarithm of a rate of decay.
    Decay,
    /// Heads of values that share a key's head are apart: GGUF has the first of each key's head, then the second ones
    /// ([`tiled_source`]). Checkpoints have them side by side.
    Tiled(Tiled),
    /// Rows of a delta net's queries, keys, values and gate lie side by side for each head of keys; a part of them, each
    /// kind for all heads ([`ungrouped_source`]).
    OfKeyHeads(OfKeyHeads),
    /// Of the rows of each matrix `[.., parts * rows, cols]` those of one part ([`part_source`]).
    RowPart {
        /// The part.
        part: usize,
        /// The number of parts.
        parts: usize,
    },
    /// The last rows, as many as the model has positions; those before belong to none.
    Positions,
    /// The experts' matrices are MXFP4, two consecutive weights per byte, `[experts, rows, cols / 32, 16]`. The
    /// exponents `[experts, rows, cols / 32]` are in the tensor named `_scales` instead of `_blocks`. Every
    /// `step`-th row is selected from `first` on.
    Packed {
        /// The first selected row.
        first: usize,
        /// The distance to the next selected row.
        step: usize,
    },
}

/// What of a tensor belongs to heads of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tiled {
    /// The last rows, those of a head or one for each head; the rows before belong to queries and keys.
    Rows,
    /// The columns.
    Columns,
    /// One element for each head, of which `-exp(x)` is taken.
    Decay,
}

/// A part of the rows that a delta net's projection has for each head of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfKeyHeads {
    /// All queries, then all keys, then all values.
    Mixed,
    /// All gates.
    Gate,
}

/// A checkpoint's tensor under GGUF's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated<'n> {
    /// GGUF's name.
    pub name: String,
    /// The expert or head whose slice this tensor is, if those are stacked.
    pub expert: Option<usize>,
    /// The table entry that matched.
    pub by: &'n Name,
}

impl Name {
    /// A tensor that is copied unchanged.
    pub const fn kept(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::None }
    }

    /// Queries and keys of an architecture whose GGUF files rotate interleaved pairs.
    pub const fn interleaved(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Interleaved }
    }

    /// A matrix that the checkpoint stores as `[cols, rows]`, and its bias.
    pub const fn transposed(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Transposed }
    }

    /// A matrix that the checkpoint stores separately for each expert, or a vector for each head.
    pub const fn stacked(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Stacked }
    }

    /// Experts' matrices that the checkpoint stores as `[experts, cols, rows]`, or their biases. `step`
    /// matrices are interleaved row by row; `first` selects one.
    pub const fn each_transposed(
        gguf: &'static str,
        checkpoint: &'static str,
        first: usize,
        step: usize,
    ) -> Self {
        Name { gguf, checkpoint, change: Change::EachTransposed { first, step } }
    }

    /// Part `part` of `parts` of the experts' matrices that the checkpoint stores as `[experts, cols, parts * rows]`.
    pub const fn part_transposed(
        gguf: &'static str,
        checkpoint: &'static str,
        part: usize,
        parts: usize,
    ) -> Self {
        Name { gguf, checkpoint, change: Change::PartTransposed { part, parts } }
    }

    /// Queries, keys and values in one matrix, which the checkpoint stores by groups of heads.
    pub const fn regrouped(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Regrouped }
    }

    /// The keys' part of a matrix for keys and values of all heads.
    pub const fn keys_of_heads(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::KeysOfHeads }
    }

    /// The values' part of a matrix for keys and values of all heads.
    pub const fn values_of_heads(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::ValuesOfHeads }
    }

    /// A tensor with dimensions of one element.
    pub const fn squeezed(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Squeezed }
    }

    /// A vector that GGUF stores as a column. Both names are complete.
    pub const fn column(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Column }
    }

    /// A vector that GGUF stores as a row for each group of heads.
    pub const fn grouped(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Grouped }
    }

    /// Rates of decay that the checkpoint stores as logarithms, and GGUF as a column. Both names are complete.
    pub const fn decay(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Decay }
    }

    /// A tensor of heads of values. Rates of decay have complete names.
    pub const fn tiled(gguf: &'static str, checkpoint: &'static str, tiled: Tiled) -> Self {
        Name { gguf, checkpoint, change: Change::Tiled(tiled) }
    }

    /// Rows of a part of what a delta net's heads of keys have.
    pub const fn of_key_heads(
        gguf: &'static str,
        checkpoint: &'static str,
        part: OfKeyHeads,
    ) -> Self {
        Name { gguf, checkpoint, change: Change::OfKeyHeads(part) }
    }

    /// Part `part` of `parts` of each matrix's rows.
    pub const fn row_part(
        gguf: &'static str,
        checkpoint: &'static str,
        part: usize,
        parts: usize,
    ) -> Self {
        Name { gguf, checkpoint, change: Change::RowPart { part, parts } }
    }

    /// Position embeddings whose first rows may belong to no position.
    pub const fn positions(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::Positions }
    }

    /// Experts' matrices that the checkpoint stores as MXFP4. `step` matrices are interleaved row by row;
    /// `first` selects one.
    pub const fn packed(
        gguf: &'static str,
        checkpoint: &'static str,
        first: usize,
        step: usize,
    ) -> Self {
        Name { gguf, checkpoint, change: Change::Packed { first, step } }
    }

    /// A gain that the checkpoint stores as gain - 1.
    pub const fn one_more(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, change: Change::OneMore }
    }
}

/// BERT's embeddings, attention and pooler.
pub(crate) const BERT: &[Name] = &[
    Name::kept("token_embd", "bert.embeddings.word_embeddings"),
    Name::kept("token_types", "bert.embeddings.token_type_embeddings"),
    Name::kept("token_embd_norm", "bert.embeddings.LayerNorm"),
    Name::kept("blk.{}.attn_q", "bert.encoder.layer.{}.attention.self.query"),
    Name::kept("blk.{}.attn_k", "bert.encoder.layer.{}.attention.self.key"),
    Name::kept("blk.{}.attn_v", "bert.encoder.layer.{}.attention.self.value"),
    Name::kept("blk.{}.attn_output", "bert.encoder.layer.{}.attention.output.dense"),
    Name::kept("blk.{}.attn_output_norm", "bert.encoder.layer.{}.attention.output.LayerNorm"),
    Name::kept("cls", "bert.pooler.dense"),
];

/// Embedding and head.
pub(crate) const ENDS: &[Name] =
    &[Name::kept("token_embd", "model.embed_tokens"), Name::kept("output", "lm_head")];

/// Attention projections, where RoPE pairs the halves of a head.
pub(crate) const ATTENTION: &[Name] = &[
    Name::kept("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    Name::kept("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    Name::kept("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
];

/// Attention projections, where GGUF stores queries and keys as interleaved RoPE pairs.
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

/// A router and gated experts.
pub(crate) const EXPERTS: &[Name] = &[
    Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"),
    Name::stacked("blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.{}.gate_proj"),
    Name::stacked("blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.{}.up_proj"),
    Name::stacked("blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.{}.down_proj"),
];

/// A gated expert that every token passes through, and its weight.
pub(crate) const SHARED_EXPERT: &[Name] = &[
    Name::kept("blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_expert.gate_proj"),
    Name::kept("blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_expert.up_proj"),
    Name::kept("blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_expert.down_proj"),
    Name::kept("blk.{}.ffn_gate_inp_shexp", "model.layers.{}.mlp.shared_expert_gate"),
];

/// Gated experts that every token passes through.
pub(crate) const SHARED_EXPERTS: &[Name] = &[
    Name::kept("blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_experts.gate_proj"),
    Name::kept("blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_experts.up_proj"),
    Name::kept("blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_experts.down_proj"),
];

/// What is added to the router's scores for the choice of experts.
pub(crate) const SELECTION_BIAS: Name =
    Name::kept("blk.{}.exp_probs_b.bias", "model.layers.{}.mlp.gate.e_score_correction_bias");

/// A block for multi-token prediction, besides its layer.
pub(crate) const MTP: &[Name] = &[
    Name::kept("blk.{}.nextn.eh_proj", "model.layers.{}.eh_proj"),
    Name::kept("blk.{}.nextn.enorm", "model.layers.{}.enorm"),
    Name::kept("blk.{}.nextn.hnorm", "model.layers.{}.hnorm"),
    Name::kept("blk.{}.nextn.embed_tokens", "model.layers.{}.embed_tokens"),
    Name::kept("blk.{}.nextn.shared_head_norm", "model.layers.{}.shared_head.norm"),
    Name::kept("blk.{}.nextn.shared_head_head", "model.layers.{}.shared_head.head"),
];

/// Norms before attention, feed-forward and head.
pub(crate) const NORMS: &[Name] = &[
    Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    Name::kept("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
    Name::kept("output_norm", "model.norm"),
];

/// Norms before and after attention and feed-forward and before the head, stored as gain - 1.
pub(crate) const NORMS_AROUND: &[Name] = &[
    Name::one_more("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    Name::one_more("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
    Name::one_more("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
    Name::one_more("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
    Name::one_more("output_norm", "model.norm"),
];

/// The GGUF tensors that a checkpoint's tensor is converted to; empty if no group has its name. Checkpoints of
/// a model without its head lack the first component (`model.`) of each name; those of a model inside a larger one
/// have a component more, which is left out.
///
/// ```
/// use bilayer_models::{find, translate};
///
/// let names = find("llama")?.names;
/// let known = translate(names, "model.layers.12.mlp.up_proj.weight");
/// assert_eq!(known[0].name, "blk.12.ffn_up.weight");
/// # Ok::<(), bilayer_models::Error>(())
/// ```
pub fn translate<'n>(groups: &[&'n [Name]], checkpoint: &str) -> Vec<Translated<'n>> {
    let checkpoint = &checkpoint.replacen("language_model.", "", 1);
    let inner = ["roberta.", "nomic_bert."].iter().find_map(|own| checkpoint.strip_prefix(own));
    let checkpoint = inner.unwrap_or(checkpoint);
    let ended =
        SUFFIXES.iter().find_map(|suffix| Some((checkpoint.strip_suffix(suffix)?, *suffix)));
    let translated = |by: &'n Name| {
        let is_bare =
            matches!(by.change, Change::Column | Change::Decay | Change::Tiled(Tiled::Decay));
        let is_whole =
            is_bare || [".weight", ".bias", ".scale"].iter().any(|end| by.gguf.ends_with(end));
        let (stem, suffix) = if is_whole { (checkpoint, "") } else { ended? };
        let short = by.checkpoint.split_once('.').map(|(_, rest)| rest);
        let patterns = [Some(by.checkpoint), short];
        let numbers = patterns.into_iter().flatten().find_map(|pattern| numbers(pattern, stem))?;
        let layer = numbers.first().map(usize::to_string).unwrap_or_default();
        let name = format!("{}{suffix}", by.gguf.replace("{}", &layer));
        Some(Translated { name, expert: numbers.get(1).copied(), by })
    };
    groups.iter().copied().flatten().filter_map(translated).collect()
}

/// Whether a checkpoint's tensor belongs to a tower beside the text model: for images or sound.
pub fn of_another_tower(checkpoint: &str) -> bool {
    const TOWERS: [&str; 5] =
        ["vision", "visual", "audio", "multi_modal_projector", "embed_vision"];
    let inner = checkpoint.strip_prefix("model.").unwrap_or(checkpoint);
    TOWERS.iter().any(|tower| inner.starts_with(tower)) || inner.starts_with("embed_audio")
}

/// The name that a tensor of Qwen's blocks for multi-token prediction (`mtp.layers.0.mlp.up_proj.weight`) would have as one
/// of a block after `layers` layers, which is how other checkpoints name them; `None` for other tensors.
pub fn mtp_name(checkpoint: &str, layers: usize) -> Option<String> {
    let rest = checkpoint.strip_prefix("mtp.")?;
    if let Some((number, rest)) = rest.strip_prefix("layers.").and_then(|r| r.split_once('.')) {
        let number: usize = number.parse().ok()?;
        return Some(format!("model.layers.{}.{rest}", layers.checked_add(number)?));
    }
    let (stem, suffix) = rest.rsplit_once('.')?;
    let stem = match stem {
        "fc" => "eh_proj",
        "pre_fc_norm_embedding" => "enorm",
        "pre_fc_norm_hidden" => "hnorm",
        "norm" => "shared_head.norm",
        _ => return None,
    };
    Some(format!("model.layers.{layers}.{stem}.{suffix}"))
}

/// The number of a checkpoint's layer that a tensor belongs to.
pub fn layer_of(checkpoint: &str) -> Option<usize> {
    let (_, rest) = checkpoint.split_once("layers.")?;
    rest.split('.').next()?.parse().ok()
}

/// The matrices after pooling; the converter gives them these names, since in checkpoints each is in a file of its own.
pub(crate) const DENSE: &[Name] =
    &[Name::kept("dense_2", "dense_2"), Name::kept("dense_3", "dense_3")];

const SUFFIXES: [&str; 2] = [".weight", ".bias"];

/// The numbers in place of each `{}` if `stem` matches `pattern`.
fn numbers(pattern: &str, stem: &str) -> Option<Vec<usize>> {
    let mut parts = pattern.split("{}");
    let mut rest = stem.strip_prefix(parts.next()?)?;
    let mut numbers = Vec::new();
    for part in parts {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        numbers.push(number.parse().ok()?);
        rest = after.strip_prefix(part)?;
    }
    rest.is_empty().then_some(numbers)
}

/// The checkpoint's row that becomes row `row` when the first `dims` rows of each head of `head_dim` rows are
/// reordered from halves `(i, i + dims / 2)` to interleaved pairs `(2 i, 2 i + 1)`.
pub fn interleaved_source(row: usize, head_dim: usize, dims: usize) -> usize {
    let (head, place) = (row / head_dim, row % head_dim);
    if place >= dims {
        return row;
    }
    head * head_dim + place % 2 * (dims / 2) + place / 2
}

/// The checkpoint's row that becomes row `row` of matrices of `rows` rows, where its matrices have `parts` times as many
/// and those of part `part` are wanted.
pub fn part_source(row: usize, rows: usize, part: usize, parts: usize) -> usize {
    (row / rows * parts + part) * rows + row % rows
}

/// The checkpoint's row that becomes row `row` of heads of `head` rows each, in which every key's head has `each` heads of
/// values side by side, where those of `groups` key's heads take turns.
pub fn tiled_source(row: usize, head: usize, groups: usize, each: usize) -> usize {
    let (number, place) = (row / head, row % head);
    (number % groups * each + number / groups) * head + place
}

/// The checkpoint's row that becomes row `row` of all queries, then all keys, then all values, where it has groups of
/// `heads / kv_heads` query heads, one key head and one value head.
pub fn regrouped_source(row: usize, head_dim: usize, heads: usize, kv_heads: usize) -> usize {
    let (head, place) = (row / head_dim, row % head_dim);
    let queries = heads / kv_heads;
    let head = match head {
        query if query < heads => query / queries * (queries + 2) + query % queries,
        other => {
            let (kind, group) = ((other - heads) / kv_heads, (other - heads) % kv_heads);
            group * (queries + 2) + queries + kind
        }
    };
    head * head_dim + place
}

/// The checkpoint's row that becomes row `row` of all first parts, then all second parts and so on, where it has `groups`
/// groups of `group` rows; each part is the first row within a group and the number of rows.
pub fn ungrouped_source(
    mut row: usize,
    groups: usize,
    group: usize,
    parts: &[(usize, usize)],
) -> usize {
    for &(first, rows) in parts {
        if row < groups * rows {
            return row / rows * group + first + row % rows;
        }
        row -= groups * rows;
    }
    row
}

#[cfg(test)]
mod tests {
    use super::{
        Name, interleaved_source, layer_of, mtp_name, of_another_tower, part_source,
        regrouped_source, tiled_source, translate, ungrouped_source,
    };

    #[test]
    fn blocks_for_multi_token_prediction_follow_the_layers() {
        let name = |checkpoint| mtp_name(checkpoint, 4);
        let expected = "model.layers.4.self_attn.q_proj.weight";
        assert_eq!(name("mtp.layers.0.self_attn.q_proj.weight").as_deref(), Some(expected));
        assert_eq!(name("mtp.fc.weight").as_deref(), Some("model.layers.4.eh_proj.weight"));
        for other in ["mtp.x.weight", "mtp.layers.a.x", "model.layers.0.x", "mtp.fc"] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn parts_of_groups_are_gathered() {
        // Two groups of a row, a row, and two rows; the first and the last part.
        let rows: Vec<_> =
            (0..6).map(|row| ungrouped_source(row, 2, 4, &[(0, 1), (2, 2)])).collect();
        assert_eq!(rows, [0, 4, 2, 3, 6, 7]);
    }

    #[test]
    fn names_inside_a_larger_model_lose_its_component() {
        let groups: [&[Name]; 2] =
            [&[Name::kept("blk.{}.a", "model.layers.{}.x")], &[Name::kept("output", "lm_head")]];
        let found = |checkpoint| translate(&groups, checkpoint).pop().map(|known| known.name);
        for name in
            ["model.language_model.layers.3.x.weight", "language_model.model.layers.3.x.weight"]
        {
            assert_eq!(found(name).as_deref(), Some("blk.3.a.weight"), "{name}");
            assert_eq!(layer_of(name), Some(3));
        }
        assert_eq!(found("language_model.lm_head.weight").as_deref(), Some("output.weight"));
        assert_eq!(found("nomic_bert.layers.3.x.weight").as_deref(), Some("blk.3.a.weight"));
        assert!(of_another_tower("model.vision_tower.x") && of_another_tower("visual.blocks.0.y"));
        assert!(!of_another_tower("model.language_model.layers.0.x"));
    }

    #[test]
    fn parts_of_rows_are_those_of_each_matrix() {
        let rows: Vec<_> = (0..4).map(|row| part_source(row, 2, 1, 3)).collect();
        assert_eq!(rows, [2, 3, 8, 9]);
    }

    #[test]
    fn heads_of_values_take_turns() {
        // Two key's heads of three heads of values each, of two rows.
        let rows: Vec<_> = (0..12).map(|row| tiled_source(row, 2, 2, 3)).collect();
        assert_eq!(rows, [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }

    #[test]
    fn bare_names_are_complete() {
        let groups: [&[Name]; 1] = [&[Name::decay("blk.{}.ssm_a", "model.{}.A_log")]];
        let found = |checkpoint| translate(&groups, checkpoint).pop().map(|known| known.name);
        assert_eq!(found("model.3.A_log").as_deref(), Some("blk.3.ssm_a"));
        assert_eq!(found("model.3.A_log.weight"), None);
    }

    #[test]
    fn queries_keys_and_values_leave_their_groups() {
        // Two groups of two queries, one key and one value, of heads of one row.
        let of = |row| regrouped_source(row, 1, 4, 2);
        assert_eq!((0..8).map(of).collect::<Vec<_>>(), [0, 1, 4, 5, 2, 6, 3, 7]);
        // One group is in order.
        assert!((0..12).all(|row| regrouped_source(row, 2, 4, 1) == row));
    }

    #[test]
    fn layers_are_numbers_and_suffixes_are_kept() {
        let groups: [&[Name]; 2] =
            [&[Name::kept("blk.{}.a", "model.{}.x")], &[Name::kept("out", "head")]];
        let found = |checkpoint| translate(&groups, checkpoint).pop().map(|known| known.name);
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
    fn experts_have_their_numbers() {
        let groups: [&[Name]; 1] = [&[Name::stacked("blk.{}.up_exps", "model.{}.experts.{}.up")]];
        let known = translate(&groups, "model.3.experts.17.up.weight").pop().unwrap();
        assert_eq!((known.name.as_str(), known.expert), ("blk.3.up_exps.weight", Some(17)));
        assert_eq!(translate(&groups, "model.3.experts.up.weight"), []);
    }

    #[test]
    fn a_name_may_be_whole_and_a_tensor_become_two() {
        let groups: [&[Name]; 1] = [&[
            Name::each_transposed("blk.{}.gate_exps.bias", "model.{}.gate_up_bias", 0, 2),
            Name::each_transposed("blk.{}.up_exps.bias", "model.{}.gate_up_bias", 1, 2),
        ]];
        let names: Vec<_> = translate(&groups, "model.3.gate_up_bias")
            .into_iter()
            .map(|known| known.name)
            .collect();
        assert_eq!(names, ["blk.3.gate_exps.bias", "blk.3.up_exps.bias"]);
        assert_eq!(translate(&groups, "model.3.gate_up_bias.weight"), []);
    }

    #[test]
    fn halves_become_pairs_head_by_head() {
        let sources: Vec<_> = (0..16).map(|row| interleaved_source(row, 8, 8)).collect();
        assert_eq!(sources, [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]);
        let partial: Vec<_> = (0..8).map(|row| interleaved_source(row, 8, 4)).collect();
        assert_eq!(partial, [0, 2, 1, 3, 4, 5, 6, 7]);
    }
}
