//! The tensors of a shape and the distributions of their weights.

use bilayer_models::Outline;
use bilayer_quant::Type;

use super::family::Family;
use super::shapes::{Convolutions, Experts, Latent, Recurrence, Shape, TAPS};
use crate::Error;

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub name: String,
    /// `[.., rows, cols]`.
    pub shape: Vec<u64>,
}

/// Centre and standard deviation of random weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub centre: f32,
    pub deviation: f32,
}

/// The tensors that the architecture records, or those of the list below if the architecture is not supported
/// yet.
///
/// # Errors
/// [`Error::Model`] if the sizes do not form a valid model.
pub(super) fn needed(shape: &Shape) -> Result<Vec<Tensor>, Error> {
    use bilayer_models::Error as Model;
    let listed = listed(shape);
    let mut metadata = shape.metadata();
    super::words::add(&mut metadata, shape.family, shape.vocab as usize);
    let optional: Vec<&str> = listed.iter().map(|tensor| tensor.name.as_str()).collect();
    let outline = Outline::new(Type::F32, &optional);
    let recorded = bilayer_models::config(&metadata)
        .and_then(|config| bilayer_models::record(&config, &outline));
    match recorded {
        Ok(_) => {
            let tensors = outline.tensors().into_iter();
            Ok(tensors.map(|(name, entry)| Tensor { name, shape: entry.shape }).collect())
        }
        Err(Model::UnknownArchitecture { .. } | Model::Unsupported { .. }) => Ok(listed),
        Err(error) => Err(error.into()),
    }
}

/// A distribution that keeps activations from growing or vanishing: rows have length about 1, outputs to the
/// residual shrink with depth (GPT-2's initialization), norm gains are near 1 and biases near 0.
pub(super) fn spread(tensor: &Tensor, shape: &Shape) -> Spread {
    let name = tensor.name.as_str();
    let vector = tensor.shape.len() == 1;
    let cols = tensor.shape.last().copied().unwrap_or(1) as f32;
    let residual = ["attn_output.weight", "shortconv.out_proj", "ssm_out", "ffn_down"]
        .into_iter()
        .any(|part| name.contains(part));
    let (centre, deviation) = match (vector, residual) {
        (_, false) if name.ends_with("norm.weight") || name.ends_with("ssm_d") => (1.0, 0.05),
        // Rates of decay, which are below 0.
        (_, false) if name.ends_with("ssm_a") => (-1.0, 0.1),
        (true, _) => (0.0, 0.02),
        (false, false) => (0.0, 1.0 / cols.sqrt()),
        (false, true) => (0.0, 1.0 / (cols * 2.0 * shape.layers as f32).sqrt()),
    };
    Spread { centre, deviation }
}

/// The tensors by GGUF's names. Sources: `gguf/constants.py` and the loaders in `src/models` of llama.cpp.
pub(crate) fn listed(shape: &Shape) -> Vec<Tensor> {
    let width = u64::from(shape.width);
    let mut list = List { tensors: Vec::new() };
    list.add("token_embd.weight", &[shape.vocab.into(), width]);
    match shape.family {
        Family::Encoder => {
            list.add("token_types.weight", &[2, width]);
            list.add("position_embd.weight", &[shape.context.into(), width]);
            list.norm("token_embd_norm", width);
        }
        Family::Decoder { longer, .. } => {
            if longer.is_some() {
                list.add("rope_freqs.weight", &[u64::from(shape.head_dim) / 2]);
            }
        }
    }
    for layer in 0..shape.layers {
        match shape.family {
            Family::Encoder => encoder_layer(&mut list, shape, &format!("blk.{layer}.")),
            Family::Decoder { .. } => decoder_layer(&mut list, shape, layer),
        }
    }
    if matches!(shape.family, Family::Decoder { .. }) {
        let norm = if shape.convolutions.is_some() { "token_embd_norm" } else { "output_norm" };
        list.add(&format!("{norm}.weight"), &[width]);
        if !shape.tied {
            list.add("output.weight", &[shape.vocab.into(), width]);
        }
    }
    list.tensors
}

/// The mixer of a layer with a recurrence.
fn recurrent_layer(mut add: impl FnMut(&str, &[u64]), recurrence: Recurrence, width: u64) {
    let taps = u64::from(TAPS);
    match recurrence {
        Recurrence::DeltaNet { key_heads, value_heads, head_dim, .. } => {
            let [keys, heads, head_dim] = [key_heads, value_heads, head_dim].map(u64::from);
            let values = heads * head_dim;
            let mixed = 2 * keys * head_dim + values;
            add("attn_qkv.weight", &[mixed, width]);
            add("attn_gate.weight", &[values, width]);
            add("ssm_alpha.weight", &[heads, width]);
            add("ssm_beta.weight", &[heads, width]);
            add("ssm_a", &[heads]);
            add("ssm_dt.bias", &[heads]);
            add("ssm_conv1d.weight", &[mixed, taps]);
            add("ssm_norm.weight", &[head_dim]);
            add("ssm_out.weight", &[width, values]);
        }
        Recurrence::Mamba2 { heads, head_dim, state_dim } => {
            let [heads, head_dim, state] = [heads, head_dim, state_dim].map(u64::from);
            let inner = heads * head_dim;
            let mixed = inner + 2 * state;
            add("ssm_in.weight", &[inner + mixed + heads, width]);
            add("ssm_conv1d.weight", &[mixed, taps]);
            add("ssm_conv1d.bias", &[mixed]);
            add("ssm_dt.bias", &[heads]);
            add("ssm_a", &[heads, 1]);
            add("ssm_d", &[heads, 1]);
            add("ssm_norm.weight", &[1, inner]);
            add("ssm_out.weight", &[width, inner]);
        }
    }
}

fn decoder_layer(list: &mut List, shape: &Shape, layer: u32) {
    let (width, head_dim) = (u64::from(shape.width), u64::from(shape.head_dim));
    let (rows, kv_rows) = (u64::from(shape.heads) * head_dim, u64::from(shape.kv_heads) * head_dim);
    let recurrence = shape.recurrence.filter(|_| !shape.attends(layer));
    if let Some(recurrence) = recurrence {
        let whole = |name: &str, sizes: &[u64]| list.add(&format!("blk.{layer}.{name}"), sizes);
        recurrent_layer(whole, recurrence, width);
    }
    let mut add =
        |stem: &str, sizes: &[u64]| list.add(&format!("blk.{layer}.{stem}.weight"), sizes);
    add("attn_norm", &[width]);
    if matches!(recurrence, Some(Recurrence::Mamba2 { .. })) {
        return;
    }
    match (shape.convolutions.filter(|_| !shape.attends(layer)), shape.latent) {
        (None, Some(Latent { rank, plain_dim, rotated_dim, value_dim })) => {
            let heads = u64::from(shape.heads);
            let [rank, plain, rotated, value] =
                [rank, plain_dim, rotated_dim, value_dim].map(u64::from);
            add("attn_q", &[heads * (plain + rotated), width]);
            add("attn_kv_a_mqa", &[rank + rotated, width]);
            add("attn_kv_a_norm", &[rank]);
            add("attn_k_b", &[heads, rank, plain]);
            add("attn_v_b", &[heads, value, rank]);
            add("attn_output", &[width, heads * value]);
        }
        (Some(Convolutions { taps, .. }), _) => {
            add("shortconv.in_proj", &[3 * width, width]);
            add("shortconv.conv", &[width, taps.into()]);
            add("shortconv.out_proj", &[width, width]);
        }
        (None, None) if recurrence.is_some() => {}
        (None, None) => {
            let gated = if shape.recurrence.is_some() { 2 } else { 1 };
            add("attn_q", &[gated * rows, width]);
            add("attn_k", &[kv_rows, width]);
            add("attn_v", &[kv_rows, width]);
            if matches!(shape.family, Family::Decoder { head_norms: true, .. }) {
                add("attn_q_norm", &[head_dim]);
                add("attn_k_norm", &[head_dim]);
            }
            add("attn_output", &[width, rows]);
        }
    }
    feed_forward(add, shape, layer);
}

/// The feed-forward of a decoder's layer, or its experts.
fn feed_forward(mut add: impl FnMut(&str, &[u64]), shape: &Shape, layer: u32) {
    let width = u64::from(shape.width);
    let norm = if shape.recurrence.is_some() { "post_attention_norm" } else { "ffn_norm" };
    add(norm, &[width]);
    match shape.experts.filter(|experts| layer >= experts.dense) {
        None => {
            let inner = u64::from(shape.ffn);
            add("ffn_gate", &[inner, width]);
            add("ffn_up", &[inner, width]);
            add("ffn_down", &[width, inner]);
        }
        Some(Experts { count, ffn, shared, .. }) => {
            let (count, inner) = (u64::from(count), u64::from(ffn));
            if shared > 0 {
                let inner = u64::from(shared) * inner;
                add("ffn_gate_shexp", &[inner, width]);
                add("ffn_up_shexp", &[inner, width]);
                add("ffn_down_shexp", &[width, inner]);
            }
            add("ffn_gate_inp", &[count, width]);
            add("ffn_gate_exps", &[count, inner, width]);
            add("ffn_up_exps", &[count, inner, width]);
            add("ffn_down_exps", &[count, width, inner]);
        }
    }
}

fn encoder_layer(list: &mut List, shape: &Shape, layer: &str) {
    let (width, inner) = (u64::from(shape.width), u64::from(shape.ffn));
    for stem in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        list.linear(&format!("{layer}{stem}"), width, width);
    }
    list.norm(&format!("{layer}attn_output_norm"), width);
    list.linear(&format!("{layer}ffn_up"), inner, width);
    list.linear(&format!("{layer}ffn_down"), width, inner);
    list.norm(&format!("{layer}layer_output_norm"), width);
}

/// A list under construction.
struct List {
    tensors: Vec<Tensor>,
}

impl List {
    fn add(&mut self, name: &str, shape: &[u64]) {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec() });
    }

    /// A norm with its bias.
    fn norm(&mut self, stem: &str, width: u64) {
        self.add(&format!("{stem}.weight"), &[width]);
        self.add(&format!("{stem}.bias"), &[width]);
    }

    /// A projection with its bias.
    fn linear(&mut self, stem: &str, rows: u64, cols: u64) {
        self.add(&format!("{stem}.weight"), &[rows, cols]);
        self.add(&format!("{stem}.bias"), &[rows]);
    }
}
