//! The typed description of a model: what metadata says, complete and checked, before any tensor is seen.

use bilayer_graph::{Activation, Pairs};

use crate::keys::Keys;
use crate::{Encoder, Error, Experts, Rotary};

/// The bounds on what metadata may declare; published models stay far below them.
pub mod limits {
    /// Layers.
    pub const LAYERS: usize = 10_000;
    /// Width of the hidden state, of a head and of the feed-forward.
    pub const WIDTH: usize = 1 << 20;
    /// Query or key-value heads of a layer.
    pub const HEADS: usize = 1 << 14;
    /// Experts of a layer.
    pub const EXPERTS: usize = 1 << 12;
    /// Tokens of the vocabulary.
    pub const VOCAB: usize = 1 << 24;
    /// Tokens of context.
    pub const CONTEXT: usize = 1 << 30;
}

/// A transformer: a decoder, or an encoder. Architectures differ in these fields, never in code that asks for a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The table line it was read by.
    pub architecture: &'static str,
    /// Rows of the embedding and of the output head.
    pub vocab: usize,
    /// Elements of the hidden state.
    pub width: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Tokens of a sequence: as many as the model was trained to see at once, until a session that is shorter or
    /// longer says so before the model is recorded.
    pub context: usize,
    /// Rows of the table of learned positions, which is added to the tokens; no sequence is longer.
    pub positions: Option<usize>,
    /// The kind of every norm over a whole row of the residual stream.
    pub norm: Norm,
    /// The term under every norm's root.
    pub norm_eps: f32,
    /// Where those norms stand.
    pub norm_at: NormAt,
    /// Stem of the norm before the feed-forward, where there is one.
    pub ffn_norm: &'static str,
    /// Norm of queries and keys before they turn.
    pub qk_norm: Option<QkNorm>,
    /// Queries, keys and values are rows of one matrix, in this order.
    pub qkv_in_one: bool,
    /// The form of the feed-forward.
    pub feed_forward: FeedForward,
    /// What the layers that say so have in place of one feed-forward.
    pub experts: Option<Experts>,
    /// The non-linearity of the feed-forward.
    pub activation: Activation,
    /// Stems of the projections that must have a bias; any other has one where the file holds it.
    pub biased: &'static [&'static str],
    /// The layers from first to last; at least one.
    pub layers: Vec<Layer>,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// Soft cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// Heads have a logit of their own, to which no value belongs, beside the scores.
    pub attention_sinks: bool,
    /// Factor on the embedded tokens.
    pub embedding_scale: Option<f32>,
    /// Factor on what attention and feed-forward add to the residual.
    pub residual_scale: Option<f32>,
    /// Factor on the logits.
    pub logit_scale: Option<f32>,
    /// Soft cap on the logits, after the factor.
    pub logit_softcap: Option<f32>,
    /// What an encoder has; without it the model is a decoder.
    pub encoder: Option<Encoder>,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Root mean square, with a gain.
    Rms,
    /// Mean and variance, with a gain and a bias.
    Layer,
    /// Mean and variance, with a gain alone.
    LayerGain,
}

impl Norm {
    /// The key of the term under its root.
    pub(crate) fn eps_key(self) -> &'static str {
        match self {
            Norm::Rms => "attention.layer_norm_rms_epsilon",
            Norm::Layer | Norm::LayerGain => "attention.layer_norm_epsilon",
        }
    }
}

/// Where attention and feed-forward are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormAt {
    /// Their input.
    Before,
    /// What they add to the residual.
    After,
    /// Both.
    Both,
    /// The sum of the residual and what they add, which is the residual from then on.
    Sum,
}

/// What a norm of queries and keys spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head; the gain is shared by the heads.
    Head,
    /// All heads together.
    Row,
}

/// The form of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Gated,
    /// The same; gate and up are the first and the second half of one matrix, stored as `ffn_up`.
    GatedInOne,
    /// `down(activation(up(x)))`.
    Plain,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of the feed-forward's inner state.
    pub feed_forward: usize,
    /// Whether it has [`Config::experts`] in place of that.
    pub experts: bool,
    /// Sliding window: a token sees itself and the `window - 1` tokens before it.
    pub window: Option<u32>,
    /// How positions turn queries and keys, if they do.
    pub rope: Option<Rotary>,
}

impl Config {
    /// Reads what all decoders share, as most have it: norms before, a gated feed-forward with SiLU, matrices apart.
    /// Positions turn `pairs`, or nothing. The architecture's own file sets the rest.
    ///
    /// # Errors
    /// A key is absent, of another kind or out of bounds.
    pub(crate) fn read(keys: &Keys<'_>, norm: Norm, pairs: Option<Pairs>) -> Result<Self, Error> {
        let width = keys.size("embedding_length", 1..=limits::WIDTH)?;
        let mut layers = layers(keys)?;
        let head_dim = head_dim(keys, width, layers[0].heads)?;
        if let Some(pairs) = pairs {
            let rope = Rotary::read(keys, head_dim, pairs)?;
            layers.iter_mut().for_each(|layer| layer.rope = Some(rope));
        }
        Ok(Config {
            architecture: keys.architecture,
            vocab: vocab(keys)?,
            width,
            head_dim,
            context: keys.size("context_length", 1..=limits::CONTEXT)?,
            positions: None,
            norm,
            norm_eps: keys.eps(norm.eps_key())?,
            norm_at: NormAt::Before,
            ffn_norm: "ffn_norm",
            qk_norm: None,
            qkv_in_one: false,
            feed_forward: FeedForward::Gated,
            experts: None,
            activation: Activation::Silu,
            biased: &[],
            layers,
            attention_scale: keys
                .positive_or_zero("attention.scale")?
                .unwrap_or(1.0 / (head_dim as f32).sqrt()),
            attention_softcap: keys.positive_or_zero("attn_logit_softcapping")?,
            attention_sinks: false,
            embedding_scale: keys.positive_or_zero("embedding_scale")?,
            residual_scale: keys.positive_or_zero("residual_scale")?,
            logit_scale: None,
            logit_softcap: keys.positive_or_zero("final_logit_softcapping")?,
            encoder: None,
        })
    }

    /// Scales scores by the width of a head's share of the hidden state, if the file says nothing of the scale.
    pub(crate) fn scale_by_share(&mut self, keys: &Keys<'_>) {
        if !keys.has("attention.scale") {
            let share = self.width / self.layers[0].heads;
            self.attention_scale = 1.0 / (share as f32).sqrt();
        }
    }

    /// Leaves the window to the local layers and takes it from the global ones. In each `period` of layers, or what
    /// `attention.sliding_window_pattern` says instead, the last is global. Local layers turn by `rope`.
    ///
    /// # Errors
    /// The key is of another kind, or lists another number of layers.
    pub(crate) fn alternate(
        &mut self,
        keys: &Keys<'_>,
        period: usize,
        rope: Option<Rotary>,
    ) -> Result<(), Error> {
        let local =
            keys.flags_or_period("attention.sliding_window_pattern", self.layers.len(), period)?;
        for (layer, local) in self.layers.iter_mut().zip(local) {
            if local {
                layer.rope = rope;
            } else {
                layer.window = None;
            }
        }
        Ok(())
    }
}

/// The token list is the vocabulary; a file without tokenizer gives its size alone.
fn vocab(keys: &Keys<'_>) -> Result<usize, Error> {
    let key = "tokenizer.ggml.tokens";
    let Some(tokens) = keys.metadata.opt_strings(key)? else {
        return keys.size("vocab_size", 1..=limits::VOCAB);
    };
    match tokens.len() {
        0 => Err(Error::Value {
            key: key.to_owned(),
            expected: "at least one token".to_owned(),
            found: "none".to_owned(),
        }),
        len => Ok(len),
    }
}

fn layers(keys: &Keys<'_>) -> Result<Vec<Layer>, Error> {
    let count = keys.size("block_count", 1..=limits::LAYERS)?;
    let heads = keys.each("attention.head_count", count, 1..=limits::HEADS)?;
    let kv_heads = keys
        .opt_each("attention.head_count_kv", count, 1..=limits::HEADS)?
        .unwrap_or_else(|| heads.clone());
    let feed_forward = keys.each("feed_forward_length", count, 1..=limits::WIDTH)?;
    // 0 is how converters say that there is no window.
    let window = keys.opt_size("attention.sliding_window", 0..=limits::CONTEXT)?;
    let window = window.filter(|&window| window > 0).map(|window| window as u32);
    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let (heads, kv_heads) = (heads[i], kv_heads[i]);
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of the {heads} query heads of layer {i}");
            return Err(keys.value("attention.head_count_kv", expected, kv_heads));
        }
        let feed_forward = feed_forward[i];
        layers.push(Layer { heads, kv_heads, feed_forward, experts: false, window, rope: None });
    }
    Ok(layers)
}

/// The key's length, or the width shared out among the heads.
fn head_dim(keys: &Keys<'_>, width: usize, heads: usize) -> Result<usize, Error> {
    let Some(head_dim) = keys.opt_size("attention.key_length", 1..=limits::WIDTH)? else {
        if !width.is_multiple_of(heads) {
            let expected = format!("a divisor of the width {width}, or attention.key_length");
            return Err(keys.value("attention.head_count", expected, heads));
        }
        let name = "attention.value_length";
        return same_length(keys, name, width / heads);
    };
    same_length(keys, "attention.value_length", head_dim)
}

fn same_length(keys: &Keys<'_>, name: &str, head_dim: usize) -> Result<usize, Error> {
    let found = keys.opt_size(name, 1..=limits::WIDTH)?.unwrap_or(head_dim);
    if found == head_dim {
        return Ok(head_dim);
    }
    let feature = "a value head of another length than the key head";
    Err(Error::Unsupported { key: keys.key(name), found: found.to_string(), feature })
}
