//! The decoder that most architectures share: pre-norm attention and gated feed-forward on a residual stream.
//!
//! Every difference is a field of [`Config`] or the presence of a tensor. Shapes stand beside each line; `T` is
//! the step's tokens, `R` the rows whose logits are wanted.

use bilayer_graph::{Attend, Error, Recorder, Rope, Value, WeightId};

use crate::{Config, Layer};

/// Records embedding, layers and head; the result is the logits `[R, vocab]`.
pub(crate) fn record(config: &Config, r: &mut Recorder<'_>) -> Result<Value, Error> {
    let table = r.matrix("token_embd.weight", config.vocab, config.width)?;
    let factors = r.optional_vector("rope_freqs.weight", config.rope.dims / 2)?;
    let rope = config.rope.rope(factors);

    let mut hidden = r.embed("token_embd", table); // [T, width]
    hidden = scaled(r, "embd_scaled", hidden, config.embedding_scale);
    for index in 0..config.layers.len() {
        r.layer(Some(index as u32));
        hidden =
            Block { config, layer: &config.layers[index], rope: &rope, index }.record(hidden, r)?;
    }
    r.layer(None);
    head(config, r, hidden, table)
}

/// Final norm and output projection: `[R, width]` to `[R, vocab]`.
fn head(
    config: &Config,
    r: &mut Recorder<'_>,
    hidden: Value,
    table: WeightId,
) -> Result<Value, Error> {
    let gain = r.vector("output_norm.weight", config.width)?;
    let tied = !r.has("output.weight");
    let output = if tied { table } else { r.matrix("output.weight", config.vocab, config.width)? };
    let bias = r.optional_vector("output.bias", config.vocab)?;

    let normed = r.rms_norm("result_norm", hidden, Some(gain), config.norm_eps); // [R, width]
    let mut logits = r.matmul("result_output", normed, output, bias); // [R, vocab]
    logits = scaled(r, "result_scaled", logits, config.logit_scale);
    if let Some(cap) = config.logit_softcap {
        logits = r.soft_cap("result_capped", logits, cap);
    }
    Ok(logits)
}

/// One layer of the model.
struct Block<'a> {
    config: &'a Config,
    layer: &'a Layer,
    rope: &'a Rope,
    index: usize,
}

impl Block<'_> {
    /// `[T, width]` to `[T, width]`, or to `[R, width]` in the last layer: nothing after its attention looks at
    /// other rows, so the rest of the model need not compute them.
    fn record(&self, mut hidden: Value, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let Config { width, residual_scale, .. } = *self.config;
        let mut attn = self.attention(hidden, r)?; // [T, heads * head_dim]
        if self.index + 1 == self.config.layers.len() {
            attn = r.rows_wanted("attn_wanted", attn); // [R, heads * head_dim]
            hidden = r.rows_wanted("inp_wanted", hidden); // [R, width]
        }
        let mut out = self.linear(r, "attn_out", "attn_output", attn, width)?;
        out = scaled(r, "attn_out_scaled", out, residual_scale);
        let middle = r.add("ffn_inp", out, hidden); // [.., width]
        out = self.feed_forward(middle, r)?; // [.., width]
        out = scaled(r, "ffn_out_scaled", out, residual_scale);
        Ok(r.add("l_out", out, middle)) // [.., width]
    }

    /// Norm, projections, rotation and attention: `[T, width]` to `[T, heads * head_dim]`.
    fn attention(&self, hidden: Value, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let Config { width, head_dim, norm_eps, .. } = *self.config;
        let Layer { heads, kv_heads, window, .. } = *self.layer;
        let gain = r.vector(&self.tensor("attn_norm.weight"), width)?;
        let normed = r.rms_norm("attn_norm", hidden, Some(gain), norm_eps); // [T, width]
        let q = self.linear(r, "attn_q", "attn_q", normed, heads * head_dim)?;
        let k = self.linear(r, "attn_k", "attn_k", normed, kv_heads * head_dim)?;
        let v = self.linear(r, "attn_v", "attn_v", normed, kv_heads * head_dim)?;
        let q = r.rope("attn_q_rope", q, head_dim, self.rope); // [T, heads * head_dim]
        let k = r.rope("attn_k_rope", k, head_dim, self.rope); // [T, kv_heads * head_dim]
        let attend = Attend {
            q,
            k,
            v,
            out: q, // replaced by the recorder
            cache: r.cache(kv_heads, head_dim, window),
            heads,
            kv_heads,
            head_dim,
            scale: self.config.attention_scale,
            window,
            softcap: self.config.attention_softcap,
            sinks: None,
        };
        Ok(r.attend("attn", attend)) // [T, heads * head_dim]
    }

    /// Norm and gated feed-forward: `[.., width]` to `[.., width]`.
    fn feed_forward(&self, hidden: Value, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let Config { width, norm_eps, activation, .. } = *self.config;
        let inner = self.layer.feed_forward;
        let gain = r.vector(&self.tensor("ffn_norm.weight"), width)?;
        let normed = r.rms_norm("ffn_norm", hidden, Some(gain), norm_eps); // [.., width]
        let gate = self.linear(r, "ffn_gate", "ffn_gate", normed, inner)?;
        let up = self.linear(r, "ffn_up", "ffn_up", normed, inner)?;
        let act = r.gate("ffn_act", gate, Some(up), activation); // [.., inner]
        self.linear(r, "ffn_down", "ffn_down", act, width) // [.., width]
    }

    /// A projection with its bias where the file has one: `[.., cols]` to `[.., rows]`.
    fn linear(
        &self,
        r: &mut Recorder<'_>,
        name: &'static str,
        stem: &str,
        input: Value,
        rows: usize,
    ) -> Result<Value, Error> {
        let cols = r.width(input);
        let weight = r.matrix(&self.tensor(&format!("{stem}.weight")), rows, cols)?;
        let bias = r.optional_vector(&self.tensor(&format!("{stem}.bias")), rows)?;
        Ok(r.matmul(name, input, weight, bias))
    }

    /// The layer's tensor of that stem.
    fn tensor(&self, stem: &str) -> String {
        format!("blk.{}.{stem}", self.index)
    }
}

/// `factor * input` where there is a factor.
fn scaled(r: &mut Recorder<'_>, name: &'static str, input: Value, factor: Option<f32>) -> Value {
    match factor {
        Some(factor) => r.scale(name, input, factor),
        None => input,
    }
}
