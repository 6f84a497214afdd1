//! ModernBERT: pre-norm without biases; every third layer is global, the others local, each kind with its own
//! RoPE base.

use bilayer_gguf::{Array, Metadata, Value};
use bilayer_graph::{Activation, Pairs, Window};

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Encoder, Error, FeedForward, Field, Head,
    Name, Norm, Pooling, Rotary, Scaling, checkpoint, encoder, limits, tiny,
};

const NAME: &str = "modern-bert";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: encoder::record,
    tiny: || {
        let more = [
            ("attention.sliding_window", 8u32.into()),
            ("attention.sliding_window_pattern", 2u32.into()),
            ("rope.freq_base", 160_000f32.into()),
        ];
        tiny::encoder(NAME, Norm::LayerGain, &more)
    },
    names: &[&[
        Name::kept("token_embd", "model.embeddings.tok_embeddings"),
        Name::kept("token_embd_norm", "model.embeddings.norm"),
        Name::kept("blk.{}.attn_norm", "model.layers.{}.attn_norm"),
        Name::kept("blk.{}.attn_qkv", "model.layers.{}.attn.Wqkv"),
        Name::kept("blk.{}.attn_output", "model.layers.{}.attn.Wo"),
        Name::kept("blk.{}.ffn_norm", "model.layers.{}.mlp_norm"),
        Name::kept("blk.{}.ffn_up", "model.layers.{}.mlp.Wi"),
        Name::kept("blk.{}.ffn_down", "model.layers.{}.mlp.Wo"),
        Name::kept("output_norm", "model.final_norm"),
        Name::kept("cls", "head.dense"),
        Name::kept("cls.norm", "head.norm"),
        Name::kept("cls.output", "classifier"),
    ]],
    ignored: encoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &[
            "ModernBertModel",
            "ModernBertForMaskedLM",
            "ModernBertForSequenceClassification",
            "ModernBertForTokenClassification",
        ],
        activations: &["gelu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::LAYER_NORM,
            &[
                Field::size("attention.sliding_window", &["local_attention"]),
                Field::maybe_size("attention.sliding_window_pattern", PERIOD),
            ],
        ],
        more,
        absent: &[Absent::number("rotary_emb_base", 160_000.0)],
        ..Checkpoint::USUAL
    },
};

/// Names of the number of layers of which the first is global.
const PERIOD: &[&str] = &["global_attn_every_n_layers"];

/// Refuses heads that no GGUF key describes.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("norm_bias", &[false.into()], "norms with a bias")?;
    let (of_texts, of_tokens) =
        (encoder::classifies_texts(draft.settings), encoder::classifies_tokens(draft.settings));
    if of_texts {
        let pooling = draft.settings.text(&["classifier_pooling"])?.unwrap_or("cls");
        if pooling != "mean" {
            let (field, found) = ("classifier_pooling".to_owned(), format!("\"{pooling}\""));
            let feature = "scores of anything but the mean of a text's rows";
            return Err(Error::UnsupportedField { field, found, feature });
        }
    }
    if of_texts || of_tokens {
        let feature = "another activation before the scores than GELU";
        draft.refuse("classifier_activation", &["gelu".into()], feature)?;
    }
    let period = draft.settings.size(PERIOD)?.unwrap_or(3).max(1) as usize;
    checkpoint::layer_kinds(draft, |layer| layer % period != 0)?;
    checkpoint::rope(draft)?;
    encoder::draft(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = Config::read(&keys, Norm::LayerGain, Some(Pairs::Halves))?;
    let head = Head {
        pooling: Pooling::Mean,
        multi_label: false,
        layers_for_tokens: true,
        activation: Some(Activation::Gelu),
        ..Head::of_cls()
    };
    // The value in files counts both sides of the window.
    let window = keys.size("attention.sliding_window", 1..=limits::CONTEXT)? / 2 + 1;
    let base = keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let local = |rope| Rotary { base, scaling: Scaling::None, attn_factor: 1.0, ..rope };
    let is_local = local_layers(&keys, config.layers.len())?;
    for (layer, is_local) in config.layers.iter_mut().zip(is_local) {
        layer.window = is_local.then_some(Window::Last(window as u32));
        if is_local {
            layer.rope = layer.rope.map(local);
        }
    }
    Ok(Config {
        qkv_in_one: true,
        feed_forward: FeedForward::GatedInOne,
        activation: Activation::Gelu,
        encoder: Some(Encoder::read(&keys, head)?),
        ..config
    })
}

/// Flags of the local layers: all but the first of every three, or of the period given by the key.
fn local_layers(keys: &Keys<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let name = "attention.sliding_window_pattern";
    if let Some(Value::Array(Array::Bool(_))) = keys.metadata.get(&keys.key(name)) {
        return keys.flags_or_period(name, layers, layers);
    }
    let period = keys.opt_size(name, 1..=limits::LAYERS)?.unwrap_or(3);
    Ok((0..layers).map(|layer| layer % period != 0).collect())
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Window;

    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn the_first_of_each_three_layers_sees_all() {
        let mut metadata = (ARCHITECTURE.tiny)();
        metadata.remove("modern-bert.attention.sliding_window_pattern").unwrap();
        metadata.set("modern-bert.block_count", 4u32);
        metadata.set("modern-bert.attention.sliding_window", 128u32);
        let config = (ARCHITECTURE.config)(&metadata).unwrap();
        let layers = config.layers.iter().map(|l| (l.window, l.rope.unwrap().base));
        let (all, near) = ((None, 160_000.0), (Some(Window::Last(65)), 10_000.0));
        assert_eq!(layers.collect::<Vec<_>>(), [all, near, near, all]);
        let flags = [("attention.sliding_window_pattern", vec![true, false, true].into())];
        let config = changed(&ARCHITECTURE, &flags).unwrap();
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        let local = Some(Window::Last(5));
        assert_eq!(windows, [local, None, local]);
    }
}
