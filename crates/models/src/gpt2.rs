//! GPT-2: learned positions instead of RoPE, layer norms, fused queries, keys and values.
//!
//! Its checkpoints store every matrix as `[cols, rows]`.

use bilayer_gguf::Metadata;
use bilayer_graph::Activation;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, FeedForward, Name, Norm, checkpoint, decoder,
    tiny,
};

const NAME: &str = "gpt2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Layer, &[("attention.head_count_kv", 4u32.into())]),
    names: &[&[
        Name::kept("token_embd", "transformer.wte"),
        Name::kept("position_embd", "transformer.wpe"),
        Name::kept("blk.{}.attn_norm", "transformer.h.{}.ln_1"),
        Name::transposed("blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn"),
        Name::transposed("blk.{}.attn_output", "transformer.h.{}.attn.c_proj"),
        Name::kept("blk.{}.ffn_norm", "transformer.h.{}.ln_2"),
        Name::transposed("blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc"),
        Name::transposed("blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj"),
        Name::kept("output_norm", "transformer.ln_f"),
        Name::kept("output", "lm_head"),
    ]],
    // Attention masks stored by old checkpoints.
    ignored: &[".attn.bias", ".attn.masked_bias"],
    checkpoint: Checkpoint {
        classes: &["GPT2LMHeadModel"],
        activations: &["gelu_new", "gelu_pytorch_tanh", "gelu"],
        fields: &[checkpoint::SIZES, checkpoint::LAYER_NORM],
        more,
        ..Checkpoint::USUAL
    },
};

/// The feed-forward's width is given only if it is not four times the hidden width.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let switches = [
        ("scale_attn_by_inverse_layer_idx", "a scale for each layer"),
        ("add_cross_attention", "attention to another text"),
    ];
    draft.refuse_all(&switches)?;
    draft.refuse("scale_attn_weights", &[true.into()], "scores that are not scaled")?;
    let inner = match draft.settings.size(&["n_inner"])? {
        Some(inner) => inner,
        None => 4 * draft.needed_size(&["n_embd"])?,
    };
    draft.set("feed_forward_length", inner);
    checkpoint::gelu(draft, "gelu_new")
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, None)?;
    Ok(Config {
        positions: Some(config.context),
        qkv_in_one: true,
        feed_forward: FeedForward::Plain,
        activation: keys.gelu(Activation::GeluTanh)?,
        biased: &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn biases_of_one_matrix_are_parts_of_one_vector() {
        // Two key-value heads: GPT-2 has no grouped attention, but its successors do.
        let grouped = changed(&ARCHITECTURE, &[("attention.head_count_kv", 2u32.into())]).unwrap();
        let graph = record(&grouped, &Outline::new(Type::F16, &[])).unwrap();
        let biases = graph.weights.iter().filter(|weight| weight.name == "blk.1.attn_qkv.bias");
        let ranges: Vec<_> = biases.map(bilayer_graph::Weight::range_in_tensor).collect();
        assert_eq!(ranges, [0..256, 256..384, 384..512]);
        let table = graph.weights.iter().find(|weight| weight.name == "position_embd.weight");
        assert_eq!(table.map(|table| (table.rows, table.cols)), Some((256, 64)));
    }
}
