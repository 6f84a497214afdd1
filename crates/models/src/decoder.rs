//! The layer shared by all architectures (attention and feed-forward on a residual stream) and the decoder
//! built from it.
//!
//! Every difference is a field of [`Config`] or the presence of a tensor. Each line notes its output shape; `T`
//! is the number of tokens in the step, `R` the number of rows whose logits are requested.

use bilayer_graph::{Activation, Attend, Error, Precision, Recorder, Value, Values, WeightId};

mod control;
mod distance;
mod experts;
mod feed_forward;
mod latent;
mod mixers;
mod mtp;

pub use control::direction;
use control::steered;

use crate::{
    AttentionGate, Config, Encoder, FfnInput, Layer, Mixer, Norm, NormAt, Output, QkNorm, Rotary,
    Scaling, encoder,
};

/// Suffixes of tensor names that a file may contain and the recorded model does not read: RoPE frequencies that
/// early converters wrote although they follow from the metadata, and the LongRoPE factors of the other context
/// length.
pub(crate) const IGNORED: &[&str] = &[
    ".attn_rot_embd.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    ".rotary_emb.inv_freq",
];

/// Records embedding, layers and head; the result is the logits `[R, vocab]`, or what an encoder gives.
pub(crate) fn record(config: &Config, r: &mut Recorder<'_>) -> Result<Value, Error> {
    if config.output == Output::Mtp {
        return mtp::record(config, r);
    }
    let table = r.matrix("token_embd.weight", config.vocab, config.width)?;
    let mut hidden = r.embed("token_embd", table); // [T, width]
    hidden = scaled(r, "embd_scaled", hidden, config.embedding_scale);
    if config.embedding_norm {
        hidden = r.rms_norm("embd_norm", hidden, None, config.norm_eps);
    }
    if let Some(positions) = config.positions {
        let places = r.matrix("position_embd.weight", positions, config.width)?;
        let place = r.embed_positions("position_embd", places);
        hidden = r.add("embd_placed", hidden, place); // [T, width]
    }
    let mut carried = Carried::default();
    if let Some(width) = config.layer_embedding {
        carried.embedded = Some(layer_embedding(config, r, width, hidden)?);
    }
    for (index, layer) in config.layers.iter().enumerate() {
        r.layer(Some(index as u32));
        let narrows = config.narrows(index);
        hidden = Block { config, layer, index, narrows }.record(hidden, &mut carried, r)?;
        hidden = steered(config, r, index, hidden)?;
    }
    r.layer(None);
    let stem = output_norm(config, r);
    let mut normed = norm(config, r, "result_norm", stem, hidden)?; // [R or T, width]
    if config.output == Output::WithHidden {
        r.keep_hidden(normed);
        normed = r.rows_wanted("result_wanted", normed); // [R, width]
    }
    if let Some(encoder) = &config.encoder {
        return encoder::output(config, encoder, r, normed);
    }
    head(config, r, normed, ("output.weight", table))
}

/// The stem of the norm before the head: the architecture's, or else the usual one, if the file has only that.
fn output_norm(config: &Config, r: &Recorder<'_>) -> &'static str {
    const USUAL: &str = "output_norm";
    let has = |stem| r.has(&format!("{stem}.weight"));
    if has(USUAL) && !has(config.output_norm) { USUAL } else { config.output_norm }
}

/// The further embeddings of all layers, of the token and of its embedding: `[T, layers * width]`.
fn layer_embedding(
    config: &Config,
    r: &mut Recorder<'_>,
    width: usize,
    hidden: Value,
) -> Result<Value, Error> {
    let all = width * config.layers.len();
    let table = r.matrix("per_layer_token_embd.weight", config.vocab, all)?;
    let of_token = r.embed("layer_embd", table); // [T, layers * width]
    let of_token = r.scale("layer_embd_scaled", of_token, (width as f32).sqrt());
    let matrix = r.matrix("per_layer_model_proj.weight", all, config.width)?;
    let mut projected = r.matmul("layer_proj", hidden, matrix, None); // [T, layers * width]
    projected = r.scale("layer_proj_scaled", projected, 1.0 / (config.width as f32).sqrt());
    let gain = r.vector("per_layer_proj_norm.weight", width)?;
    projected = r.head_norm("layer_proj_norm", projected, gain, config.norm_eps);
    let sum = r.add("layer_inp", projected, of_token);
    Ok(r.scale("layer_inp_scaled", sum, std::f32::consts::FRAC_1_SQRT_2))
}

/// The output projection, by the matrix of a name or else by the embedding: `[R, width]` to `[R, vocab]`.
fn head(
    config: &Config,
    r: &mut Recorder<'_>,
    normed: Value,
    (name, table): (&str, WeightId),
) -> Result<Value, Error> {
    let tied = !r.has(name);
    let output = if tied { table } else { r.matrix(name, config.vocab, config.width)? };
    let bias = r.optional_vector("output.bias", config.vocab)?;

    let mut logits = r.matmul("result_output", normed, output, bias); // [R, vocab]
    logits = scaled(r, "result_scaled", logits, config.logit_scale);
    if let Some(cap) = config.logit_softcap {
        logits = r.soft_cap("result_capped", logits, cap);
    }
    Ok(logits)
}

/// Placements that normalize the input of attention and feed-forward.
const BEFORE: &[NormAt] = &[NormAt::Before, NormAt::Both];

/// Placements that normalize the output of attention and feed-forward.
const AFTER: &[NormAt] = &[NormAt::After, NormAt::Both];

/// Placements that normalize the residual stream itself.
const SUM: &[NormAt] = &[NormAt::Sum];

/// What layers hand on beside the residual stream.
#[derive(Default)]
pub(crate) struct Carried {
    /// Keys and values of each layer so far, if it has any.
    kv: Vec<Option<[Value; 2]>>,
    /// The further embeddings of all layers, `[T, layers * width]`.
    embedded: Option<Value>,
}

/// One layer of the model.
pub(crate) struct Block<'a> {
    pub config: &'a Config,
    pub layer: &'a Layer,
    pub index: usize,
    /// Whether nothing after its attention reads other rows than the requested ones.
    pub narrows: bool,
}

/// A projection by a range of rows of a stored matrix.
struct Projection<'s> {
    /// The tensor's stem.
    stem: &'s str,
    /// First row of the projection within the tensor.
    first: usize,
    /// Output elements.
    rows: usize,
    /// Rows of the tensor.
    of: usize,
    /// Precision of its activations.
    precision: Precision,
}

impl<'s> Projection<'s> {
    fn whole(stem: &'s str, rows: usize) -> Self {
        Projection { stem, first: 0, rows, of: rows, precision: Precision::Coarse }
    }

    /// Consecutive matrices of `rows` rows each that are stored as one tensor.
    fn in_one<const N: usize>(stem: &'s str, rows: [usize; N]) -> [Self; N] {
        let of = rows.iter().sum();
        let mut end = 0;
        rows.map(|rows| {
            end += rows;
            Projection { stem, first: end - rows, rows, of, precision: Precision::Coarse }
        })
    }
}

impl Block<'_> {
    /// `[T, width]` to `[T, width]`, or to `[R, width]` in a layer that narrows to the requested rows.
    pub fn record(
        &self,
        mut hidden: Value,
        carried: &mut Carried,
        r: &mut Recorder<'_>,
    ) -> Result<Value, Error> {
        if self.layer.mixer == Mixer::None {
            carried.kv.push(None);
            return self.feed_forward_alone(hidden, r);
        }
        let Config { width, residual_scale, .. } = *self.config;
        let ffn_input = self.ffn_input(r);
        let mut normed = self.before(r, ["attn_norm"; 2], hidden)?; // [T, width]
        let second = self.tensor("attn_norm_2");
        let has_second = r.has(&format!("{second}.weight"));
        let input = match has_second && self.config.norm_at != NormAt::Sum {
            true => norm(self.config, r, "attn_norm_2", &second, hidden)?,
            false => normed,
        };
        let (mut attn, by) = self.mixed(input, carried, r)?; // [T, heads * head_dim]
        let mut embedded = self.own_embedding(carried, r); // [T, layer_embedding]
        if self.narrows {
            attn = r.rows_wanted("attn_wanted", attn); // [R, heads * head_dim]
            hidden = r.rows_wanted("inp_wanted", hidden); // [R, width]
            embedded = embedded.map(|value| r.rows_wanted("layer_inp_wanted", value));
            if ffn_input == FfnInput::AttentionNorm {
                normed = r.rows_wanted("attn_norm_wanted", normed); // [R, width]
            }
        }
        let mut out = self.linear(r, "attn_out", attn, &Projection::whole(by, width))?;
        out = self.normed(r, AFTER, ["attn_post_norm", "post_attention_norm"], out)?;
        out = scaled(r, "attn_out_scaled", out, residual_scale);
        let mut middle = r.add("ffn_inp", out, hidden); // [.., width]
        if self.layer.feed_forward == 0 {
            return Ok(middle);
        }
        middle = self.normed(r, SUM, ["ffn_inp_norm", "attn_output_norm"], middle)?;
        if has_second && self.config.norm_at == NormAt::Sum {
            middle = r.add("ffn_inp_2", middle, hidden); // [.., width]
            middle = norm(self.config, r, "ffn_inp_norm_2", &second, middle)?;
        }
        let ffn_norm = ["ffn_norm", self.config.ffn_norm];
        let input = match ffn_input {
            FfnInput::Layer => self.before(r, ffn_norm, hidden)?,
            FfnInput::AttentionNorm => normed,
            FfnInput::Attended | FfnInput::AttendedIfNormed => self.before(r, ffn_norm, middle)?,
        }; // [.., width]
        out = match self.config.experts.as_ref().filter(|e| self.layer.experts && e.beside) {
            Some(experts) => self.beside(r, input, middle, experts)?,
            None => self.feed_forward(input, r)?,
        }; // [.., width]
        out = self.normed(r, AFTER, ["ffn_post_norm", "post_ffw_norm"], out)?;
        out = scaled(r, "ffn_out_scaled", out, residual_scale);
        out = r.add("l_out", out, middle); // [.., width]
        if let Some(embedded) = embedded {
            out = self.add_embedded(r, out, embedded)?;
        }
        let scale = self.tensor("layer_output_scale.weight");
        if r.has(&scale) {
            let scale = r.vector(&scale, 1)?;
            out = r.scale_by("l_out_scaled", out, scale);
        }
        self.normed(r, SUM, ["l_out_norm", "layer_output_norm"], out)
    }

    /// What the layer's feed-forward reads; never `AttendedIfNormed`.
    fn ffn_input(&self, r: &Recorder<'_>) -> FfnInput {
        let norm = || self.tensor(&format!("{}.weight", self.config.ffn_norm));
        match self.config.ffn_input {
            FfnInput::AttendedIfNormed if r.has(&norm()) => FfnInput::Attended,
            FfnInput::AttendedIfNormed => FfnInput::AttentionNorm,
            known => known,
        }
    }

    /// A layer without a mixer: `[T, width]` to `[T, width]`, or to `[R, width]` in a layer that narrows.
    fn feed_forward_alone(&self, mut hidden: Value, r: &mut Recorder<'_>) -> Result<Value, Error> {
        if self.narrows {
            hidden = r.rows_wanted("inp_wanted", hidden); // [R, width]
        }
        let input = self.before(r, ["ffn_norm", self.config.ffn_norm], hidden)?;
        let out = self.feed_forward(input, r)?;
        let out = scaled(r, "ffn_out_scaled", out, self.config.residual_scale);
        Ok(r.add("l_out", out, hidden)) // [.., width]
    }

    /// Projections, rotation and attention of the normed input: `[T, width]` to `[T, heads * head_dim]`.
    fn attention(
        &self,
        normed: Value,
        carried: &mut Carried,
        r: &mut Recorder<'_>,
    ) -> Result<Value, Error> {
        let Layer { heads, kv_heads, head_dim, window, .. } = *self.layer;
        let ([q, k, v], gate) = self.queries_keys_values(normed, carried, r)?;
        let sinks = match self.config.attention_sinks {
            true => Some(r.vector(&self.tensor("attn_sinks.weight"), heads)?),
            false => None,
        };
        let attend = Attend {
            q,
            k,
            v: Values::Beside(v),
            out: q, // replaced by the recorder
            cache: self.config.is_causal().then(|| r.cache(kv_heads, head_dim, window)),
            heads,
            kv_heads,
            head_dim,
            scale: self.config.attention_scale,
            window,
            softcap: self.config.attention_softcap,
            sinks,
            bias: self.distance_bias(r)?,
        };
        let attn = r.attend("attn", attend); // [T, heads * head_dim]
        Ok(match gate {
            Some(gate) => r.gate("attn_gated", gate, Some(attn), Activation::Sigmoid),
            None => attn,
        })
    }

    /// Queries before norm and rotation, and the gate of attention if there is one: `[T, heads * head_dim]` each.
    fn queries_and_gate(
        &self,
        r: &mut Recorder<'_>,
        normed: Value,
        by: &Projection<'_>,
    ) -> Result<(Value, Option<Value>), Error> {
        let Layer { heads, head_dim, .. } = *self.layer;
        match self.config.attention_gate {
            None => Ok((self.linear(r, "attn_q", normed, by)?, None)),
            Some(AttentionGate::Alone) => {
                let q = self.linear(r, "attn_q", normed, by)?;
                let by = Projection::whole("attn_gate", heads * head_dim);
                Ok((q, Some(self.linear(r, "attn_gate", normed, &by)?)))
            }
            Some(AttentionGate::WithQueries) => {
                let by = Projection::whole("attn_q", 2 * heads * head_dim);
                let both = self.linear(r, "attn_q_gate", normed, &by)?; // [T, heads * 2 head_dim]
                let q = r.part("attn_q", both, 2 * head_dim, 0..head_dim);
                Ok((q, Some(r.part("attn_gate", both, 2 * head_dim, head_dim..2 * head_dim))))
            }
        }
    }

    /// Queries, keys and values, normed and rotated: `[T, heads * head_dim]`, and `[T, kv_heads * head_dim]` twice; and the
    /// gate of attention.
    fn queries_keys_values(
        &self,
        normed: Value,
        carried: &mut Carried,
        r: &mut Recorder<'_>,
    ) -> Result<([Value; 3], Option<Value>), Error> {
        let Layer { heads, kv_heads, head_dim, .. } = *self.layer;
        let (query, key) = (heads * head_dim, kv_heads * head_dim);
        let mut by = match self.config.qkv_in_one {
            true => Projection::in_one("attn_qkv", [query, key, key]),
            false => [("attn_q", query), ("attn_k", key), ("attn_v", key)]
                .map(|(stem, rows)| Projection::whole(stem, rows)),
        };
        if self.config.norm_at == NormAt::Sum {
            // The input is the residual stream itself, whose few large elements persist through all layers.
            // Quantized to eight bits beside them, the small elements that distinguish short texts would be
            // lost.
            by = by.map(|by| Projection { precision: Precision::Fine, ..by });
        }
        let [q, k, v] = by;
        let (mut q, gate) = self.queries_and_gate(r, normed, &q)?; // [T, heads * head_dim]
        let own = match self.layer.kv_of {
            Some(_) => None,
            None => Some(self.keys_and_values(r, normed, [&k, &v])?),
        }; // [T, kv_heads * head_dim] each
        q = self.qk_norm(r, "attn_q_norm", q)?;
        let own = own.map(|[k, v]| Ok::<_, Error>([self.qk_norm(r, "attn_k_norm", k)?, v]));
        let own = own.transpose()?;
        if let Some(temperature) = self.layer.temperature {
            q = r.temper("attn_q_tempered", q, temperature);
        }
        q = self.turned(r, ["attn_q_rope", "attn_q_norm"], q)?;
        let [k, v] = match (own, self.layer.kv_of) {
            (Some([k, v]), _) => [self.turned(r, ["attn_k_rope", "attn_k_norm"], k)?, v],
            (None, other) => {
                let shared = other.and_then(|other| carried.kv[other]);
                shared.expect("a layer has its own keys or those of another")
            }
        };
        carried.kv.push(Some([k, v]));
        Ok(([q, k, v], gate))
    }

    /// Projections of keys and values; the latter normalized if the model's are.
    fn keys_and_values(
        &self,
        r: &mut Recorder<'_>,
        normed: Value,
        [k, v]: [&Projection<'_>; 2],
    ) -> Result<[Value; 2], Error> {
        let value_norm = self.config.value_norm;
        let projected = self.linear(r, "attn_k", normed, k)?;
        let mut values = match value_norm && !r.has(&self.tensor("attn_v.weight")) {
            true => projected,
            false => self.linear(r, "attn_v", normed, v)?,
        };
        if value_norm {
            let (head_dim, eps) = (self.layer.head_dim, self.config.norm_eps);
            values = r.head_unit("attn_v_norm", values, head_dim, eps);
        }
        Ok([projected, values])
    }

    /// Queries or keys, rotated, and normalized if the model's are after that.
    fn turned(
        &self,
        r: &mut Recorder<'_>,
        [name, norm]: [&'static str; 2],
        input: Value,
    ) -> Result<Value, Error> {
        let Layer { head_dim, .. } = *self.layer;
        let rotated = self.rotated(r, name, input, head_dim)?;
        if self.config.qk_norm != Some(QkNorm::HeadAfterRope) {
            return Ok(rotated);
        }
        let gain = r.vector(&self.tensor(&format!("{norm}.weight")), head_dim)?;
        Ok(r.head_norm(norm, rotated, gain, self.config.norm_eps))
    }

    /// Queries or keys, each head rotated if the layer has RoPE.
    fn rotated(
        &self,
        r: &mut Recorder<'_>,
        name: &'static str,
        input: Value,
        head_dim: usize,
    ) -> Result<Value, Error> {
        let Some(rotary) = &self.layer.rope else { return Ok(input) };
        let rope = rotary.rope(factors(self.config, rotary, r)?);
        Ok(r.rope(name, input, head_dim, &rope))
    }

    /// The layer's part of the further embeddings: `[T, layer_embedding]`.
    fn own_embedding(&self, carried: &Carried, r: &mut Recorder<'_>) -> Option<Value> {
        let (all, width) = (carried.embedded?, self.config.layer_embedding?);
        let first = self.index * width;
        Some(r.part("layer_inp_own", all, width * self.config.layers.len(), first..first + width))
    }

    /// `input` plus the norm of `proj(activation(inp_gate(input)) * embedded)`: `[.., width]`.
    fn add_embedded(
        &self,
        r: &mut Recorder<'_>,
        input: Value,
        embedded: Value,
    ) -> Result<Value, Error> {
        let by = Projection::whole("inp_gate", r.width(embedded));
        let gate = self.linear(r, "layer_inp_gate", input, &by)?;
        let act = r.gate("layer_inp_act", gate, Some(embedded), self.config.activation);
        let by = Projection::whole("proj", self.config.width);
        let out = self.linear(r, "layer_inp_out", act, &by)?; // [.., width]
        let out = norm(self.config, r, "layer_inp_norm", &self.tensor("post_norm"), out)?;
        Ok(r.add("l_out_embedded", input, out))
    }

    /// The norm before attention or feed-forward, if the model has one there.
    fn before(
        &self,
        r: &mut Recorder<'_>,
        [name, stem]: [&'static str; 2],
        input: Value,
    ) -> Result<Value, Error> {
        // The first layer of most encoders reads the embedding, which is already normalized.
        let norms = |encoder: &Encoder| encoder.norms_embedding;
        let embedding_is_normed = self.config.encoder.as_ref().is_some_and(norms);
        let is_normed = embedding_is_normed && self.index == 0 && name == "attn_norm";
        if is_normed {
            return Ok(input);
        }
        self.normed(r, BEFORE, [name, stem], input)
    }

    /// The norm of the input, if the model's norms are at one of `places`.
    fn normed(
        &self,
        r: &mut Recorder<'_>,
        places: &[NormAt],
        [name, stem]: [&'static str; 2],
        input: Value,
    ) -> Result<Value, Error> {
        let eps = match places == AFTER {
            true => self.config.output_norm_eps,
            false => self.config.norm_eps,
        };
        match places.contains(&self.config.norm_at) {
            true => norm_of(self.config.norm, eps, r, (name, &self.tensor(stem)), input),
            false => Ok(input),
        }
    }

    /// The norm of queries or keys before RoPE, if there is one.
    fn qk_norm(
        &self,
        r: &mut Recorder<'_>,
        stem: &'static str,
        input: Value,
    ) -> Result<Value, Error> {
        let (norm_eps, head_dim) = (self.config.norm_eps, self.layer.head_dim);
        let heads = r.width(input) / head_dim;
        let name = self.tensor(&format!("{stem}.weight"));
        match self.config.qk_norm {
            Some(QkNorm::Unit) if self.layer.rope.is_some() => {
                Ok(r.head_unit(stem, input, head_dim, norm_eps))
            }
            Some(QkNorm::HeadIfAny | QkNorm::RowIfAny | QkNorm::LayerOfHeadIfAny)
                if !r.has(&name) =>
            {
                Ok(input)
            }
            None | Some(QkNorm::Unit | QkNorm::HeadAfterRope) => Ok(input),
            Some(QkNorm::Head | QkNorm::HeadIfAny) => {
                let gain = r.vector(&name, head_dim)?;
                Ok(r.head_norm(stem, input, gain, norm_eps))
            }
            Some(QkNorm::LayerOfHeadIfAny) => {
                let gain = r.stack_vector(&name, [heads, head_dim])?;
                Ok(r.head_layer_norm(stem, input, (gain, head_dim), norm_eps))
            }
            Some(QkNorm::Row | QkNorm::RowIfAny) => {
                norm(self.config, r, stem, &self.tensor(stem), input)
            }
        }
    }

    /// A projection with its bias, if one is required or present in the file: `[.., cols]` to `[.., rows]`.
    fn linear(
        &self,
        r: &mut Recorder<'_>,
        name: &'static str,
        input: Value,
        by: &Projection<'_>,
    ) -> Result<Value, Error> {
        let Projection { stem, first, rows, of, precision } = *by;
        let matrix = self.tensor(&format!("{stem}.weight"));
        let weight = r.matrix_rows(&matrix, of, first, rows, r.width(input))?;
        let vector = self.tensor(&format!("{stem}.bias"));
        let bias = match self.config.biased.contains(&stem) || r.has(&vector) {
            true => Some(r.vector_part(&vector, of, first, rows)?),
            false => None,
        };
        Ok(r.matmul_of(name, input, weight, bias, precision))
    }

    /// Full tensor name of a stem in this layer.
    fn tensor(&self, stem: &str) -> String {
        self.tensor_of(self.index, stem)
    }

    fn tensor_of(&self, index: usize, stem: &str) -> String {
        format!("{}{index}.{stem}", self.config.stems.layer)
    }
}

/// A norm of the model's kind over whole rows; the tensors of `stem` hold its parameters.
pub(crate) fn norm(
    config: &Config,
    r: &mut Recorder<'_>,
    name: &'static str,
    stem: &str,
    input: Value,
) -> Result<Value, Error> {
    norm_of(config.norm, config.norm_eps, r, (name, stem), input)
}

/// A norm of that kind and epsilon.
fn norm_of(
    kind: Norm,
    eps: f32,
    r: &mut Recorder<'_>,
    (name, stem): (&'static str, &str),
    input: Value,
) -> Result<Value, Error> {
    let width = r.width(input);
    let gain = r.vector(&format!("{stem}.weight"), width)?;
    Ok(match kind {
        Norm::Rms => r.rms_norm(name, input, Some(gain), eps),
        Norm::Layer => {
            let bias = r.vector(&format!("{stem}.bias"), width)?;
            r.layer_norm(name, input, gain, Some(bias), eps)
        }
        Norm::LayerGain => r.layer_norm(name, input, gain, None, eps),
    })
}

/// Divisors of the RoPE frequencies, `[dims / 2]`, if the file has them.
fn factors(
    config: &Config,
    rotary: &Rotary,
    r: &mut Recorder<'_>,
) -> Result<Option<WeightId>, Error> {
    let list = match rotary.scaling {
        Scaling::Long { original_context } if config.context > original_context => "long",
        Scaling::Long { .. } => "short",
        _ if !rotary.factors => return Ok(None),
        _ => return r.optional_vector("rope_freqs.weight", rotary.dims / 2),
    };
    r.vector(&format!("rope_factors_{list}.weight"), rotary.dims / 2).map(Some)
}

/// `factor * input` if there is a factor.
fn scaled(r: &mut Recorder<'_>, name: &'static str, input: Value, factor: Option<f32>) -> Value {
    match factor {
        Some(factor) => r.scale(name, input, factor),
        None => input,
    }
}
