//! Tensor names: GGUF's and the checkpoint's, one table per architecture, for conversion.

/// One kind of tensor under both its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// GGUF's stem; `{}` stands for the layer. `.weight` or `.bias` follows in both.
    pub gguf: &'static str,
    /// The checkpoint's stem.
    pub checkpoint: &'static str,
    /// In which order GGUF has the rows.
    pub rows: RowOrder,
}

/// How a tensor's rows change places on their way from the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// Not at all.
    Kept,
    /// In each head, the two halves become interleaved ([`interleaved_source`]).
    Interleaved,
}

impl Name {
    /// As most tensors are.
    pub const fn kept(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, rows: RowOrder::Kept }
    }

    /// Queries and keys of an architecture whose GGUF files rotate interleaved pairs.
    pub const fn interleaved(gguf: &'static str, checkpoint: &'static str) -> Self {
        Name { gguf, checkpoint, rows: RowOrder::Interleaved }
    }
}

/// GGUF's name of a checkpoint's tensor, and its table line; `None` where the table has none.
///
/// ```
/// use bilayer_models::{find, translate};
///
/// let names = find("llama")?.names;
/// let (name, _) = translate(names, "model.layers.12.mlp.up_proj.weight").expect("it is in the table");
/// assert_eq!(name, "blk.12.ffn_up.weight");
/// # Ok::<(), bilayer_models::Error>(())
/// ```
pub fn translate<'n>(names: &'n [Name], checkpoint: &str) -> Option<(String, &'n Name)> {
    let (stem, suffix) = checkpoint.rsplit_once('.')?;
    if !["weight", "bias"].contains(&suffix) {
        return None;
    }
    names.iter().find_map(|name| {
        let gguf = match name.checkpoint.split_once("{}") {
            None => (stem == name.checkpoint).then(|| name.gguf.to_owned())?,
            Some((before, after)) => {
                let layer = stem.strip_prefix(before)?.strip_suffix(after)?;
                let number = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
                number.then(|| name.gguf.replace("{}", layer))?
            }
        };
        Some((format!("{gguf}.{suffix}"), name))
    })
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
        let names = [Name::kept("blk.{}.a", "model.{}.x"), Name::kept("out", "head")];
        let found = |checkpoint| translate(&names, checkpoint).map(|(name, _)| name);
        assert_eq!(found("model.7.x.bias").as_deref(), Some("blk.7.a.bias"));
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
