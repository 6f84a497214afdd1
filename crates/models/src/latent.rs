//! Latent attention settings, read from metadata.

mod unsplit;

use crate::keys::Keys;
use crate::{Error, limits};

pub use unsplit::split_keys_and_values;
pub(crate) use unsplit::{WHOLE, part};

/// Multi-head latent attention (DeepSeek-AI 2024, section 2.1), absorbed: all heads attend to one cached row a token,
/// whose first elements are also the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements of the compressed query; `None` if queries are projected from the layer's input.
    pub query_rank: Option<usize>,
    /// Elements of the compressed key and value.
    pub rank: usize,
    /// Elements of a head's query that are not rotated.
    pub plain_dim: usize,
    /// Rotated elements of a head's query, and of the key that all heads share.
    pub rotated_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
}

impl Latent {
    /// Reads the keys; without `attention.kv_lora_rank` attention is not latent.
    ///
    /// # Errors
    /// A key is absent, of another kind, or contradicts another.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Option<Latent>, Error> {
        let rank = keys.opt_size("attention.kv_lora_rank", 0..=limits::WIDTH)?.unwrap_or(0);
        if rank == 0 {
            return Ok(None);
        }
        // Early files have the lengths of heads before compression under the usual keys.
        let is_early = Latent::is_early(keys);
        let (whole, value) = match is_early {
            false => ("attention.key_length_mla", "attention.value_length_mla"),
            true => ("attention.key_length", "attention.value_length"),
        };
        let rotated_dim = keys.size("rope.dimension_count", 2..=limits::WIDTH)?;
        let head_dim = keys.size(whole, rotated_dim + 1..=limits::WIDTH)?;
        let query_rank = keys.opt_size("attention.q_lora_rank", 0..=limits::WIDTH)?;
        let latent = Latent {
            query_rank: query_rank.filter(|&rank| rank > 0),
            rank,
            plain_dim: head_dim - rotated_dim,
            rotated_dim,
            value_dim: keys.size(value, 1..=limits::WIDTH)?,
        };
        if !is_early {
            let key_dim = latent.key_dim();
            keys.opt_size("attention.key_length", key_dim..=key_dim)?;
            keys.opt_size("attention.value_length", rank..=rank)?;
        }
        Ok(Some(latent))
    }

    /// Whether the metadata are those of files whose keys and values are one tensor, which counts a key's head for each
    /// query's.
    pub(crate) fn is_early(keys: &Keys<'_>) -> bool {
        !keys.has("attention.key_length_mla") && keys.has("attention.key_length")
    }

    /// Elements of a cached key.
    pub fn key_dim(&self) -> usize {
        self.rank + self.rotated_dim
    }

    /// Elements of a head's query before compression.
    pub fn query_dim(&self) -> usize {
        self.plain_dim + self.rotated_dim
    }
}
