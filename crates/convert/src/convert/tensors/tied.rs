//! Whether a checkpoint's output matrix is its embedding.

use bilayer_models::{Architecture, translate};

use crate::Error;
use crate::checkpoint::{Checkpoint, Stored};

/// Weights that are compared at a time.
const PIECE: usize = 1 << 18;

/// Whether the weights of `head` are those of the embedding; `None` if they cannot be compared. As in transformers, `tie_word_embeddings` ties no matrices that
/// a checkpoint holds with different values: some classes ignore the field.
///
/// # Errors
/// [`Error::Checkpoint`] if a file cannot be read.
pub(super) fn is_embedding(
    head: &Stored,
    checkpoint: &Checkpoint,
    architecture: &Architecture,
) -> Result<Option<bool>, Error> {
    let shards = &checkpoint.shards;
    let is_table = |name: &str| {
        let known = translate(architecture.names, name);
        known.iter().any(|known| known.name == "token_embd.weight")
    };
    let Some((_, table)) = shards.tensors().iter().find(|(name, _)| is_table(name)) else {
        return Ok(None);
    };
    let (Some(float), Some(other)) = (head.float(), table.float()) else { return Ok(None) };
    if head.shape != table.shape {
        return Ok(Some(false));
    }
    let len = head.elements();
    for from in (0..len).step_by(PIECE) {
        let count = PIECE.min(len - from);
        let mut pieces = [vec![0.0f32; count], vec![0.0; count]];
        for ((stored, float), values) in
            [(head, float), (table, other)].into_iter().zip(&mut pieces)
        {
            let mut bytes = vec![0; count * float.bytes()];
            shards
                .read(stored, (from * float.bytes()) as u64, &mut bytes)
                .map_err(|error| checkpoint.unreadable(shards.place(stored).0, &error))?;
            float.ty.dequantize(&bytes, values).expect("whole weights");
        }
        let [head, table] = pieces;
        if head.iter().map(|x| x.to_bits()).ne(table.iter().map(|x| x.to_bits())) {
            return Ok(Some(false));
        }
    }
    Ok(Some(true))
}
