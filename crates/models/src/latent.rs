//! Latent attention settings, read from metadata.

use crate::keys::Keys;
use crate::{Error, limits};

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
        let (whole, value) = ("attention.key_length_mla", "attention.value_length_mla");
        if !keys.has(whole) {
            let feature = "the file's form of latent attention, with `attn_kv_b` not split by keys and values,";
            return Err(Error::Unsupported {
                key: keys.key(whole),
                found: "absent".to_owned(),
                feature,
            });
        }
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
        let key_dim = latent.key_dim();
        keys.opt_size("attention.key_length", key_dim..=key_dim)?;
        keys.opt_size("attention.value_length", rank..=rank)?;
        Ok(Some(latent))
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
