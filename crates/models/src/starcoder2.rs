//! StarCoder 2: layer norms, a feed-forward without gate, a bias on every projection.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};

use crate::keys::Keys;
use crate::names::Name;
use crate::{
    Architecture, Checkpoint, Config, Error, FeedForward, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "starcoder2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Layer, &[]),
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::NORMS,
        &[
            Name::kept("blk.{}.ffn_up", "model.layers.{}.mlp.c_fc"),
            Name::kept("blk.{}.ffn_down", "model.layers.{}.mlp.c_proj"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Starcoder2ForCausalLM"],
        activations: &["gelu_pytorch_tanh"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::LAYER_NORM,
            checkpoint::WINDOW,
        ],
        more: |draft| {
            draft.refuse("use_bias", &[true.into()], "projections without biases")?;
            checkpoint::decoder(draft)
        },
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, Some(Pairs::Halves))?;
    Ok(Config {
        feed_forward: FeedForward::Plain,
        activation: Activation::GeluTanh,
        biased: &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"],
        ..config
    })
}
