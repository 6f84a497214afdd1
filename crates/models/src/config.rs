//! The typed model configuration, read from metadata, complete and validated before any tensor is touched.

use bilayer_graph::{Activation, Pairs, Temperature};

use crate::keys::Keys;
use crate::layer::layers;
use crate::{Encoder, Error, Experts, Layer, Mixer, Rotary, limits};

/// The key for the number of blocks for multi-token prediction, which follow the model's own layers and count as blocks.
pub(crate) const MTP_COUNT: &str = "nextn_predict_layers";

/// A transformer, decoder or encoder. Architectures differ in these fields; no code branches on an
/// architecture's name.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Name of the architecture that read it.
    pub architecture: &'static str,
    /// Rows of the embedding and of the output head.
    pub vocab: usize,
    /// Elements of the hidden state.
    pub width: usize,
    /// Maximum tokens of a sequence: the model's trained context, unless a session overrides it before the
    /// model is recorded.
    pub context: usize,
    /// Rows of the learned position embedding, which is added to the token embedding; it bounds the sequence
    /// length.
    pub positions: Option<usize>,
    /// Kind of every norm over a whole row of the residual stream.
    pub norm: Norm,
    /// Epsilon of every norm, unless one is named below.
    pub norm_eps: f32,
    /// Epsilon of the norms of attention's and feed-forward's outputs.
    pub output_norm_eps: f32,
    /// Where these norms are applied.
    pub norm_at: NormAt,
    /// What the feed-forward reads.
    pub ffn_input: FfnInput,
    /// Names of tensors that differ in some files.
    pub stems: Stems,
    /// Tensor stem of the norm before the feed-forward, if there is one.
    pub ffn_norm: &'static str,
    /// Tensor stem of the norm before the head.
    pub output_norm: &'static str,
    /// Norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Queries, keys and values are the rows of one matrix, in this order.
    pub qkv_in_one: bool,
    /// Structure of the feed-forward.
    pub feed_forward: FeedForward,
    /// The mixture of experts that replaces the feed-forward in layers with [`Layer::experts`].
    pub experts: Option<Experts>,
    /// Activation function of the feed-forward.
    pub activation: Activation,
    /// Stems of the projections that must have a bias; any other projection has one if the file contains it.
    pub biased: &'static [&'static str],
    /// The layers from first to last; at least one.
    pub layers: Vec<Layer>,
    /// Blocks after them for multi-token prediction (MTP), from the model's hidden states.
    pub mtp: Vec<Layer>,
    /// What is recorded.
    pub output: Output,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// Soft cap on attention scores.
    pub attention_softcap: Option<f32>,
    /// ALiBi: scores fall with the distance of two tokens, by a slope per head that ends at `2^-alibi_bias_max`.
    pub alibi_bias_max: Option<f32>,
    /// Scores are biased by the distance of query and key: the number of buckets, and the distance from which on all are
    /// in the last one.
    pub distance_buckets: Option<(usize, u32)>,
    /// Values are normalized, each head by itself without a gain; in a layer without a projection of values they are
    /// the keys before norm and rotation.
    pub value_norm: bool,
    /// Attention's result is multiplied by the sigmoid of a projection of its input.
    pub attention_gate: Option<AttentionGate>,
    /// Attention sinks: each head has an extra logit in its softmax that belongs to no value.
    pub attention_sinks: bool,
    /// The embedded tokens are normalized, without a gain, after the factor.
    pub embedding_norm: bool,
    /// Width of the further embedding that each layer adds to its output.
    pub layer_embedding: Option<usize>,
    /// Factor on the embedded tokens.
    pub embedding_scale: Option<f32>,
    /// Factor on the outputs of attention and feed-forward before they are added to the residual.
    pub residual_scale: Option<f32>,
    /// Factor on the logits.
    pub logit_scale: Option<f32>,
    /// Soft cap on the logits, applied after the scale.
    pub logit_softcap: Option<f32>,
    /// Encoder settings; `None` for a decoder.
    pub encoder: Option<Encoder>,
}

/// Names of tensors that differ in some files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stems {
    /// What the names of a layer's tensors begin with, before its number.
    pub layer: &'static str,
    /// The output projection of attention.
    pub attn_output: &'static str,
}

/// What is recorded of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// The whole model.
    #[default]
    Own,
    /// The whole model, with the hidden states of all rows that its first MTP block continues
    /// ([`Graph::hidden`](bilayer_graph::Graph::hidden)).
    WithHidden,
    /// The first MTP block with embedding and head: from a token and the hidden states of the position before it
    /// ([`Graph::given`](bilayer_graph::Graph::given)), the logits of the token after it.
    Mtp,
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
    /// The metadata key of its epsilon.
    pub(crate) fn eps_key(self) -> &'static str {
        match self {
            Norm::Rms => "attention.layer_norm_rms_epsilon",
            Norm::Layer | Norm::LayerGain => "attention.layer_norm_epsilon",
        }
    }
}

/// Which rows around attention and feed-forward are normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormAt {
    /// The input (pre-norm).
    Before,
    /// The output, before it is added to the residual.
    After,
    /// Input and output.
    Both,
    /// The sum of residual and output, which becomes the new residual (post-norm). In files with `attn_norm_2` the layer's
    /// input is added once more to what attention made of it, and normalized by that.
    Sum,
}

/// What the feed-forward of a layer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnInput {
    /// The sum of the layer's input and the attention's output.
    Attended,
    /// The layer's input, with a norm of its own: attention and feed-forward are parallel.
    Layer,
    /// The normed input of the attention: parallel, with one norm for both.
    AttentionNorm,
    /// As `Attended` in layers that have the norm before the feed-forward; in others as `AttentionNorm`.
    AttendedIfNormed,
}

/// Where the projection for attention's gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionGate {
    /// In `attn_gate`.
    Alone,
    /// In `attn_q`: the rows of each head's query, then those of its gate.
    WithQueries,
}

/// Extent of the norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself; all heads share the gain.
    Head,
    /// As `Head`, in files that have the gains.
    HeadIfAny,
    /// As `Head`, after RoPE.
    HeadAfterRope,
    /// A layer norm of each head by itself, with a gain for each head and no biases, in files that have the gains.
    LayerOfHeadIfAny,
    /// Each head by itself without a gain, in layers with RoPE.
    Unit,
    /// All heads together, by a norm of the model's kind.
    Row,
    /// As `Row`, in files that have the gains.
    RowIfAny,
}

/// Structure of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`.
    Gated,
    /// As `Gated`, with gate and up as the first and second half of one matrix, stored as `ffn_up`, in files without
    /// `ffn_gate`.
    GatedInOne,
    /// As `Gated` in layers that have `ffn_gate`; in others as `Plain`, with this activation.
    GatedIfAny(Activation),
    /// `down(activation(up(x)))`.
    Plain,
}

impl Config {
    /// Reads the keys that all decoders share and sets the common defaults: pre-norm, gated feed-forward with
    /// SiLU, separate matrices. `pairs` selects the RoPE pairing, `None` disables RoPE. The architecture's own
    /// file sets the rest.
    ///
    /// # Errors
    /// A key is absent, of another kind or out of bounds.
    pub(crate) fn read(keys: &Keys<'_>, norm: Norm, pairs: Option<Pairs>) -> Result<Self, Error> {
        Config::read_mixed(keys, norm, pairs, Mixer::Attention)
    }

    /// [`Config::read`], where layers without key-value heads have the mixer `other`.
    ///
    /// # Errors
    /// Those of [`Config::read`].
    pub(crate) fn read_mixed(
        keys: &Keys<'_>,
        norm: Norm,
        pairs: Option<Pairs>,
        other: Mixer,
    ) -> Result<Self, Error> {
        let width = keys.size("embedding_length", 1..=limits::WIDTH)?;
        // Some files of models with RMS norms have the other key.
        let layer_key = Norm::Layer.eps_key();
        let eps_key = match keys.has(layer_key) && !keys.has(norm.eps_key()) {
            true => layer_key,
            false => norm.eps_key(),
        };
        let norm_eps = keys.eps(eps_key)?;
        let mut layers = layers(keys, width, other)?;
        let head_dim = layers[0].head_dim;
        if let Some(pairs) = pairs {
            let rope = Rotary::read(keys, head_dim, pairs)?;
            layers.iter_mut().for_each(|layer| layer.rope = Some(rope));
        }
        let mtp = keys.opt_size(MTP_COUNT, 0..=layers.len() - 1)?.unwrap_or(0);
        let mtp = layers.split_off(layers.len() - mtp);
        Ok(Config {
            architecture: keys.architecture,
            vocab: vocab(keys)?,
            width,
            context: keys.size("context_length", 1..=limits::CONTEXT)?,
            positions: None,
            norm,
            norm_eps,
            output_norm_eps: norm_eps,
            norm_at: NormAt::Before,
            ffn_input: FfnInput::Attended,
            stems: Stems { layer: "blk.", attn_output: "attn_output" },
            ffn_norm: "ffn_norm",
            output_norm: "output_norm",
            qk_norm: None,
            qkv_in_one: false,
            feed_forward: FeedForward::Gated,
            experts: None,
            activation: Activation::Silu,
            biased: &[],
            layers,
            mtp,
            output: Output::Own,
            attention_scale: keys
                .positive_or_zero("attention.scale")?
                .unwrap_or(1.0 / (head_dim as f32).sqrt()),
            attention_softcap: keys.positive_or_zero("attn_logit_softcapping")?,
            distance_buckets: None,
            alibi_bias_max: keys.positive_or_zero("attention.max_alibi_bias")?,
            value_norm: false,
            attention_gate: None,
            attention_sinks: false,
            embedding_norm: false,
            layer_embedding: None,
            embedding_scale: keys.positive_or_zero("embedding_scale")?,
            residual_scale: keys.positive_or_zero("residual_scale")?,
            logit_scale: None,
            logit_softcap: keys.positive_or_zero("final_logit_softcapping")?,
            encoder: None,
        })
    }

    /// Enables experts in all layers but the first `leading_dense_block_count`.
    ///
    /// # Errors
    /// The key is of another kind or out of bounds.
    pub(crate) fn with_experts(
        mut self,
        keys: &Keys<'_>,
        experts: Option<Experts>,
    ) -> Result<Config, Error> {
        let dense = keys.opt_size("leading_dense_block_count", 0..=self.layers.len())?.unwrap_or(0);
        let sparse = self.layers[dense..].iter_mut().chain(&mut self.mtp);
        sparse.for_each(|layer| layer.experts = experts.is_some());
        Ok(Config { experts, ..self })
    }

    /// Confines experts to every so many layers: the last of each `interleave_moe_layer_step`.
    ///
    /// # Errors
    /// The key is of another kind or out of bounds.
    pub(crate) fn interleaved(mut self, keys: &Keys<'_>) -> Result<Config, Error> {
        let layers = self.layers.len();
        let step = keys.opt_size("interleave_moe_layer_step", 1..=layers)?.unwrap_or(1);
        for (layer, i) in self.layers.iter_mut().zip(1..) {
            layer.experts &= i % step == 0;
        }
        Ok(self)
    }

    /// The key for the number of blocks for multi-token prediction.
    pub fn mtp_key(&self) -> String {
        format!("{}.{MTP_COUNT}", self.architecture)
    }

    /// Whether a token sees only those before it.
    pub(crate) fn is_causal(&self) -> bool {
        self.encoder.as_ref().is_none_or(|encoder| encoder.is_causal)
    }

    /// Whether nothing after the attention of a layer reads other rows than the requested ones.
    pub(crate) fn narrows(&self, layer: usize) -> bool {
        let pools = self.encoder.as_ref().is_some_and(Encoder::pools);
        layer + 1 == self.layers.len() && !pools && self.output != Output::WithHidden
    }

    /// Scales attention scores by `width / heads` instead of the head dimension, unless the file gives a scale.
    pub(crate) fn scale_by_share(&mut self, keys: &Keys<'_>) {
        if !keys.has("attention.scale") {
            let share = self.width / self.layers[0].heads;
            self.attention_scale = 1.0 / (share as f32).sqrt();
        }
    }

    /// Lets the queries of all layers grow with the position, if the file has `attention.temperature_scale`: with each
    /// `attention.temperature_length`, or else each original context.
    ///
    /// # Errors
    /// A key is of another kind or out of bounds, or the file has neither length.
    pub(crate) fn temper(&mut self, keys: &Keys<'_>) -> Result<(), Error> {
        let Some(scale) = keys.positive_or_zero("attention.temperature_scale")? else {
            return Ok(());
        };
        let own = keys.opt_size("attention.temperature_length", 0..=limits::CONTEXT)?;
        let length = match own.unwrap_or(0) {
            0 => keys.size("rope.scaling.original_context_length", 1..=limits::CONTEXT)?,
            length => length,
        };
        let temperature = Temperature { scale, length: length as u32, offset: 0 };
        let layers = self.layers.iter_mut().chain(&mut self.mtp);
        layers.for_each(|layer| layer.temperature = Some(temperature));
        Ok(())
    }

    /// Restricts the sliding window to local layers. The last layer of each `period` is global, unless
    /// `attention.sliding_window_pattern` says otherwise. Local layers use `rope`.
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

/// The vocabulary size is the length of the token list; a file without a tokenizer gives only the size.
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
