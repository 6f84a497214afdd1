//! Whether a checkpoint's output matrix is its embedding.

use bilayer_models::{Architecture, translate};

use crate::Error;
use crate::checkpoint::{Checkpoint, Stored};

/// Bytes that are compared at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Whether the weights of `head` are those of the embedding. As in transformers, `tie_word_embeddings` ties no matrices that
/// a checkpoint holds with different values: some classes ignore the field.
///
/// # Errors
/// [`Error::Checkpoint`] if a file cannot be read.
pub(super) fn is_embedding(
    head: &Stored,
    checkpoint: &Checkpoint,
    architecture: &Architecture,
) -> Result<bool, Error> {
    let shards = &checkpoint.shards;
    let is_table = |name: &str| {
        let known = translate(architecture.names, name);
        known.iter().any(|known| known.name == "token_embd.weight")
    };
    let Some((_, table)) = shards.tensors().iter().find(|(name, _)| is_table(name)) else {
        return Ok(true);
    };
    let (Some(float), Some(other)) = (head.float(), table.float()) else { return Ok(true) };
    if head.shape != table.shape || float != other {
        return Ok(false);
    }
    let len = head.elements() * float.bytes();
    let mut pieces = [vec![0; PIECE_BYTES.min(len)], vec![0; PIECE_BYTES.min(len)]];
    for from in (0..len).step_by(PIECE_BYTES) {
        let count = PIECE_BYTES.min(len - from);
        for (stored, piece) in [head, table].into_iter().zip(&mut pieces) {
            shards
                .read(stored, from as u64, &mut piece[..count])
                .map_err(|error| checkpoint.unreadable(shards.place(stored).0, &error))?;
        }
        if pieces[0][..count] != pieces[1][..count] {
            return Ok(false);
        }
    }
    Ok(true)
}
