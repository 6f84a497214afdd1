//! Latent attention: one compressed row a token for all heads.

use bilayer_graph::{Attend, Error, Experts, Recorder, Stack, Value, Values};

use super::{Block, Projection, norm};
use crate::{Latent, Layer};

impl Block<'_> {
    /// Attention of absorbed queries over compressed keys, and each head's value of the result: `[T, width]` to
    /// `[T, heads * value_dim]`.
    ///
    /// With `c` the compressed row, `r` the rotated shared key, `K` and `V` a head's matrices (`attn_k_b`, `attn_v_b`):
    /// the head's key is `(Kᵀ c, r)` and its value `V c`, so its scores are those of `(K q, q_r)` with `(c, r)`, and its
    /// result is `V` times the weighted sum of `c`.
    pub(super) fn latent_attention(
        &self,
        normed: Value,
        latent: &Latent,
        r: &mut Recorder<'_>,
    ) -> Result<Value, Error> {
        let Layer { heads, kv_heads, head_dim, window, .. } = *self.layer;
        let Latent { rank, value_dim, .. } = *latent;
        let route = r.route_all("attn_heads", heads); // [T, 2 heads]
        let q = self.latent_queries((normed, route), latent, r)?; // [T, heads * head_dim]
        let k = self.latent_keys(normed, latent, r)?; // [T, head_dim]
        let attend = Attend {
            q,
            k,
            v: Values::InKeys(rank),
            out: q, // replaced by the recorder
            cache: Some(r.cache_of(kv_heads, head_dim, Some(rank), window)),
            heads,
            kv_heads,
            head_dim,
            scale: self.config.attention_scale,
            window,
            softcap: self.config.attention_softcap,
            sinks: None,
            bias: self.distance_bias(r)?,
        };
        let mixed = r.attend("attn_compressed", attend); // [T, heads * rank]
        let stack = self.head_stack(r, "attn_v_b", [heads, value_dim, rank])?;
        Ok(r.experts(
            "attn",
            Experts { input: mixed, route, stack, bias: None, factors: None, out: mixed },
        ))
    }

    /// Queries that meet compressed keys: `[T, heads * (rank + rotated_dim)]`.
    fn latent_queries(
        &self,
        (normed, route): (Value, Value),
        latent: &Latent,
        r: &mut Recorder<'_>,
    ) -> Result<Value, Error> {
        let heads = self.layer.heads;
        let Latent { query_rank, rank, plain_dim, rotated_dim, .. } = *latent;
        let (query_dim, width) = (latent.query_dim(), heads * latent.query_dim());
        let mut q = match query_rank {
            None => self.linear(r, "attn_q", normed, &Projection::whole("attn_q", width))?,
            Some(rank) => {
                let by = Projection::whole("attn_q_a", rank);
                let q = self.linear(r, "attn_q_a", normed, &by)?; // [T, query_rank]
                let q = norm(self.config, r, "attn_q_a_norm", &self.tensor("attn_q_a_norm"), q)?;
                self.linear(r, "attn_q", q, &Projection::whole("attn_q_b", width))?
            }
        }; // [T, heads * query_dim]
        if let Some(temperature) = self.layer.temperature {
            q = r.temper("attn_q_tempered", q, temperature);
        }
        let plain = r.part("attn_q_plain", q, query_dim, 0..plain_dim);
        let stack = self.head_stack(r, "attn_k_b", [heads, rank, plain_dim])?;
        let absorbed =
            Experts { input: plain, route, stack, bias: None, factors: None, out: plain };
        let absorbed = r.experts("attn_q_absorbed", absorbed); // [T, heads * rank]
        let rotated = r.part("attn_q_rotated", q, query_dim, plain_dim..query_dim);
        let rotated = self.rotated(r, "attn_q_rope", rotated, rotated_dim)?;
        Ok(r.join("attn_q_joined", absorbed, rotated, [rank, rotated_dim]))
    }

    /// What is cached: the compressed row, then the rotated key, `[T, rank + rotated_dim]`.
    fn latent_keys(
        &self,
        normed: Value,
        latent: &Latent,
        r: &mut Recorder<'_>,
    ) -> Result<Value, Error> {
        let Latent { rank, rotated_dim, .. } = *latent;
        let whole = latent.key_dim();
        let by = Projection::whole("attn_kv_a_mqa", whole);
        let both = self.linear(r, "attn_kv_a", normed, &by)?; // [T, rank + rotated_dim]
        let rotated = r.part("attn_k_rotated", both, whole, rank..whole);
        let rotated = self.rotated(r, "attn_k_rope", rotated, rotated_dim)?;
        let compressed = r.part("attn_kv_compressed", both, whole, 0..rank);
        let stem = self.tensor("attn_kv_a_norm");
        let compressed = norm(self.config, r, "attn_kv_a_norm", &stem, compressed)?;
        Ok(r.join("attn_k_joined", compressed, rotated, [rank, rotated_dim]))
    }

    /// A matrix `[rows, cols]` for each head.
    fn head_stack(
        &self,
        r: &mut Recorder<'_>,
        stem: &str,
        shape: [usize; 3],
    ) -> Result<Stack, Error> {
        let each = |head| self.tensor(&format!("{stem}.{head}.weight"));
        r.stack(&self.tensor(&format!("{stem}.weight")), each, shape)
    }
}
