//! Nemotron-H, dense: each layer is Mamba 2, attention without RoPE, or a feed-forward with squared ReLU.

use bilayer_gguf::{Metadata, Value};
use bilayer_graph::Activation;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, FeedForward, Mamba2, Mixer, Norm, decoder, limits,
    nemotron_h_moe, tiny,
};

const NAME: &str = "nemotron_h";

/// Entry in the table of architectures. Checkpoints of the class become files of the other one, which reads models without
/// experts too.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &mixed()),
    names: nemotron_h_moe::NAMES,
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint { classes: &[], ..nemotron_h_moe::CHECKPOINT },
};

/// Keys of the smallest metadata: attention, Mamba 2 and a feed-forward.
pub(crate) fn mixed() -> Vec<(&'static str, Value)> {
    vec![
        ("attention.head_count_kv", vec![2u32, 0, 0].into()),
        ("feed_forward_length", vec![0u32, 0, 96].into()),
        ("ssm.conv_kernel", 4u32.into()),
        ("ssm.state_size", 16u32.into()),
        ("ssm.group_count", 2u32.into()),
        ("ssm.time_step_rank", 4u32.into()),
        ("ssm.inner_size", 128u32.into()),
    ]
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.refuse("expert_count", "experts in files of the dense architecture")?;
    read(&keys)
}

/// The configuration without experts.
pub(crate) fn read(keys: &Keys<'_>) -> Result<Config, Error> {
    keys.refuse("rope.scaling.finetuned", "RoPE beside Mamba 2")?;
    // Without it every layer would have attention.
    let blocks = keys.size("block_count", 1..=limits::LAYERS)?;
    keys.each("attention.head_count_kv", blocks, 0..=limits::HEADS)?;
    let config = Config::read_mixed(keys, Norm::Rms, None, Mixer::Mamba2(Mamba2::read(keys)?))?;
    let mut layers = config.layers;
    for (number, layer) in layers.iter_mut().enumerate().filter(|(_, l)| l.feed_forward > 0) {
        if layer.kv_heads > 0 {
            let expected = format!("0 in layer {number}, which has attention");
            return Err(keys.value("feed_forward_length", expected, layer.feed_forward));
        }
        layer.mixer = Mixer::None;
    }
    Ok(Config {
        layers,
        ffn_norm: "attn_norm",
        feed_forward: FeedForward::Plain,
        activation: Activation::SquaredRelu,
        biased: &["ssm_conv1d"],
        ..config
    })
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Mixer, tiny::changed};

    #[test]
    fn each_layer_is_one_thing() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let [first, second, third] = &config.layers[..] else { panic!("three layers") };
        assert_eq!((first.mixer, first.feed_forward), (Mixer::Attention, 0));
        assert!(matches!(second.mixer, Mixer::Mamba2(sizes) if sizes.groups == 2));
        assert_eq!((third.mixer, third.feed_forward), (Mixer::None, 96));
        let both = [("feed_forward_length", vec![96u32, 0, 96].into())];
        let error = changed(&ARCHITECTURE, &both).unwrap_err().to_string();
        assert!(error.contains("nemotron_h.feed_forward_length"), "{error}");
    }
}
