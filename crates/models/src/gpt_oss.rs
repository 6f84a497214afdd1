//! gpt-oss: experts with biases and a clamped gate, attention sinks, a sliding window in every other layer.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};

use crate::checkpoint::{Draft, Field};
use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Experts, Name, Norm, Scaling, checkpoint,
    decoder, limits, names, tiny,
};

const NAME: &str = "gpt-oss";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.key_length", 32u32.into()),
            ("attention.sliding_window", 5u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
            ("rope.freq_base", 150_000f32.into()),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 32f32.into()),
            ("rope.scaling.original_context_length", 64u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        &[
            Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("output_norm", "model.norm"),
            Name::kept("blk.{}.attn_sinks.weight", "model.layers.{}.self_attn.sinks"),
            Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router"),
            Name::each_transposed("blk.{}.ffn_gate_exps.weight", GATE_UP, 0, 2),
            Name::each_transposed("blk.{}.ffn_up_exps.weight", GATE_UP, 1, 2),
            Name::each_transposed("blk.{}.ffn_gate_exps.bias", GATE_UP_BIAS, 0, 2),
            Name::each_transposed("blk.{}.ffn_up_exps.bias", GATE_UP_BIAS, 1, 2),
            Name::each_transposed("blk.{}.ffn_down_exps.weight", DOWN, 0, 1),
            Name::each_transposed("blk.{}.ffn_down_exps.bias", DOWN_BIAS, 0, 1),
            Name::packed("blk.{}.ffn_gate_exps.weight", GATE_UP_BLOCKS, 0, 2),
            Name::packed("blk.{}.ffn_up_exps.weight", GATE_UP_BLOCKS, 1, 2),
            Name::packed("blk.{}.ffn_down_exps.weight", DOWN_BLOCKS, 0, 1),
        ],
    ],
    // The exponents are read together with their blocks.
    ignored: &[".rotary_emb.inv_freq", "_proj_scales"],
    checkpoint: Checkpoint {
        classes: &["GptOssForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::WINDOW,
            &[
                Field::size("expert_count", &["num_local_experts"]),
                Field::size("expert_used_count", &["num_experts_per_tok", "experts_per_token"]),
                Field::size("expert_feed_forward_length", &["intermediate_size"]),
            ],
        ],
        more: of_checkpoint,
        absent: &[
            Absent::number("rotary_emb_base", 150_000.0),
            Absent::size("sliding_window", 128),
        ],
        ..Checkpoint::USUAL
    },
};

/// Refuses other slopes and limits of the gate, since GGUF has no keys for them.
fn of_checkpoint(draft: &mut Draft<'_>) -> Result<(), Error> {
    let slope = serde_json::json!(1.702);
    let limit = serde_json::json!(7.0);
    draft.refuse("swiglu_alpha", &[slope], "another slope of the gate than 1.702")?;
    draft.refuse("swiglu_limit", &[limit], "another limit of the gate than 7")?;
    draft.refuse("attention_bias", &[true.into()], "attention without biases")?;
    checkpoint::decoder_by(draft, checkpoint::Ramp::Between)?;
    checkpoint::layer_kinds(draft, |layer| layer % 2 == 0)
}

const GATE_UP: &str = "model.layers.{}.mlp.experts.gate_up_proj";
const GATE_UP_BIAS: &str = "model.layers.{}.mlp.experts.gate_up_proj_bias";
const GATE_UP_BLOCKS: &str = "model.layers.{}.mlp.experts.gate_up_proj_blocks";
const DOWN_BLOCKS: &str = "model.layers.{}.mlp.experts.down_proj_blocks";
const DOWN: &str = "model.layers.{}.mlp.experts.down_proj";
const DOWN_BIAS: &str = "model.layers.{}.mlp.experts.down_proj_bias";

/// The projections with a bias.
const BIASED: &[&str] = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_gate_inp",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
];

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let experts = Experts::read(&keys, Weights::Shares)?;
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let mut config = Config {
        // Its files name this norm by its position.
        ffn_norm: "post_attention_norm",
        activation: Activation::ClampedSwiglu,
        attention_sinks: true,
        biased: BIASED,
        ..config
    };
    keys.size("attention.sliding_window", 1..=limits::CONTEXT)?;
    config.alternate(&keys, 2, config.layers[0].rope)?;
    for rope in config.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
        // OpenAI's YaRN ramp may begin and end between pairs; files do not say so.
        if let Scaling::Yarn { whole_pairs, .. } = &mut rope.scaling {
            *whole_pairs = false;
        }
    }
    config.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Scaling, tiny::changed};
    use bilayer_graph::Window;

    #[test]
    fn every_other_layer_has_the_window_and_all_turn_by_a_ramp_between_pairs() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        let local = Some(Window::Last(5));
        assert_eq!(windows, [local, None, local]);
        for layer in &config.layers {
            let scaling = layer.rope.unwrap().scaling;
            assert!(matches!(scaling, Scaling::Yarn { whole_pairs: false, .. }), "{scaling:?}");
        }
    }
}
