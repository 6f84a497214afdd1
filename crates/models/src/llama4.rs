//! Llama 4: attention within chunks, every fourth layer global and without RoPE, one expert weighted at its input
//! beside a shared one.

use bilayer_gguf::Metadata;
use bilayer_graph::{Pairs, Score, Temperature, Window};

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Name, Norm, QkNorm,
    Shared, checkpoint, decoder, limits, names, tiny,
};

const NAME: &str = "llama4";

/// The last layer of so many is global; files do not say it.
const PERIOD: usize = 4;
/// Positions of a chunk, where a file does not say.
const CHUNK: usize = 8192;
/// Positions after which queries of global layers grow, where a file does not say.
const LENGTH: usize = 8192;
/// How much they grow, where a file does not say.
const SCALE: f32 = 0.1;
/// The model with so many experts does not normalize queries and keys; files do not say it.
const EXPERTS_WITHOUT_NORM: usize = 128;

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("block_count", 4u32.into()),
            ("interleave_moe_layer_step", 2u32.into()),
            ("attention.sliding_window", 24u32.into()),
            ("attention.temperature_length", 8u32.into()),
            ("expert_count", 4u32.into()),
            ("expert_used_count", 1u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::NORMS,
        &[
            Name::kept("blk.{}.ffn_gate", "model.layers.{}.feed_forward.gate_proj"),
            Name::kept("blk.{}.ffn_up", "model.layers.{}.feed_forward.up_proj"),
            Name::kept("blk.{}.ffn_down", "model.layers.{}.feed_forward.down_proj"),
            Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.feed_forward.router"),
            Name::part_transposed("blk.{}.ffn_gate_exps.weight", GATE_UP, 0, 2),
            Name::part_transposed("blk.{}.ffn_up_exps.weight", GATE_UP, 1, 2),
            Name::part_transposed("blk.{}.ffn_down_exps.weight", DOWN, 0, 1),
            Name::kept(
                "blk.{}.ffn_gate_shexp",
                "model.layers.{}.feed_forward.shared_expert.gate_proj",
            ),
            Name::kept("blk.{}.ffn_up_shexp", "model.layers.{}.feed_forward.shared_expert.up_proj"),
            Name::kept(
                "blk.{}.ffn_down_shexp",
                "model.layers.{}.feed_forward.shared_expert.down_proj",
            ),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::RMS,
            &[
                Field::size("feed_forward_length", &["intermediate_size_mlp"]),
                Field::size("expert_feed_forward_length", &["intermediate_size"]),
                Field::size("expert_count", &["num_local_experts"]),
                Field::size("expert_used_count", &["num_experts_per_tok"]),
                Field::size("interleave_moe_layer_step", &["interleave_moe_layer_step"]),
                Field::maybe_size("attention.sliding_window", &["attention_chunk_size"]),
                Field::maybe_size("attention.temperature_length", &["floor_scale"]),
                Field::maybe_number("attention.temperature_scale", &["attn_scale"]),
            ],
        ],
        more,
        absent: &[Absent::number("rotary_emb_base", 5e5)],
        ..Checkpoint::USUAL
    },
};

/// Gate and up of all experts.
const GATE_UP: &str = "model.layers.{}.feed_forward.experts.gate_up_proj";
/// Down of all experts.
const DOWN: &str = "model.layers.{}.feed_forward.experts.down_proj";

/// Refuses checkpoints with another choice of layers, or without a norm or a growth that the others have.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let layers = draft.needed_size(&["num_hidden_layers"])?;
    let usual: serde_json::Value =
        (1..=layers as usize).map(|layer| u8::from(layer % PERIOD != 0)).collect();
    draft.refuse("no_rope_layers", &[usual], "another choice of layers without RoPE")?;
    draft.refuse(
        "attn_temperature_tuning",
        &[true.into(), 4.into()],
        "queries that do not grow",
    )?;
    let experts = draft.needed_size(&["num_local_experts"])? as usize;
    let normed = experts != EXPERTS_WITHOUT_NORM;
    draft.refuse("use_qk_norm", &[normed.into()], "another choice of norms of queries and keys")?;
    checkpoint::decoder(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    let chunk = keys.opt_size("attention.sliding_window", 0..=limits::CONTEXT)?.unwrap_or(CHUNK);
    let length = keys.opt_size("attention.temperature_length", 1..=limits::CONTEXT)?;
    let scale = keys.positive("attention.temperature_scale")?.unwrap_or(SCALE);
    let temperature = Temperature { scale, length: length.unwrap_or(LENGTH) as u32, offset: 1 };
    for (layer, i) in config.layers.iter_mut().zip(1..) {
        let is_local = i % PERIOD != 0;
        layer.window = (is_local && chunk > 0).then_some(Window::Chunk(chunk as u32));
        if !is_local {
            layer.rope = None;
            layer.temperature = Some(temperature);
        }
    }
    let experts = Experts::read(&keys, Weights::Scores)?;
    let experts = experts.map(|experts| mixture(&keys, experts)).transpose()?;
    let count = experts.as_ref().map_or(0, |experts| experts.count);
    config.qk_norm = (count != EXPERTS_WITHOUT_NORM).then_some(QkNorm::Unit);
    config.with_experts(&keys, experts)?.interleaved(&keys)
}

/// The experts: one to a token, with a sigmoid's weight on its input, and one for all tokens.
fn mixture(keys: &Keys<'_>, experts: Experts) -> Result<Experts, Error> {
    if experts.used != 1 {
        return Err(keys.value("expert_used_count", "1 expert to a token", experts.used));
    }
    let shared = Some(Shared { feed_forward: experts.feed_forward, weighed: false });
    Ok(Experts { score: Score::Sigmoid, weighed_input: true, shared, ..experts })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Window;

    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn three_of_four_layers_see_their_chunk() {
        let config = changed(&ARCHITECTURE, &[("block_count", 5u32.into())]).unwrap();
        for (i, layer) in config.layers.iter().enumerate() {
            let local = i != 3;
            assert_eq!(layer.window, local.then_some(Window::Chunk(24)), "{i}");
            assert_eq!((layer.rope.is_some(), layer.temperature.is_none()), (local, local), "{i}");
            assert_eq!(layer.experts, i % 2 == 1, "{i}");
        }
        assert_eq!(config.layers[3].temperature.unwrap().length, 8);
        let whole = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]).unwrap();
        assert!(whole.layers.iter().all(|layer| layer.window.is_none()));
    }

    #[test]
    fn two_experts_to_a_token_are_refused() {
        let error = changed(&ARCHITECTURE, &[("expert_used_count", 2u32.into())]).unwrap_err();
        assert!(error.to_string().contains("llama4.expert_used_count"), "{error}");
    }
}
