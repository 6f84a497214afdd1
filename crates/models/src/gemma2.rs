//! Gemma 2: norms around attention and feed-forward, soft caps on scores and logits, a window in every other layer.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs, Window};

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Field, Norm, NormAt, checkpoint, decoder,
    limits, names, tiny,
};

/// Layers of the 27B model, whose scores are scaled by `width / heads` instead of the head dimension; files do
/// not say so.
const LAYERS_OF_27B: usize = 46;

/// What files of early converters leave out: tokens of the window, and the caps on scores and on logits.
const WINDOW: usize = 4096;
const SCORE_CAP: f32 = 50.0;
const LOGIT_CAP: f32 = 30.0;

const NAME: &str = "gemma2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.sliding_window", 5u32.into()),
            ("attn_logit_softcapping", 5f32.into()),
            ("final_logit_softcapping", 3f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION, names::GATED, names::NORMS_AROUND],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Gemma2ForCausalLM", "Gemma2Model"],
        activations: &["gelu_pytorch_tanh"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::WINDOW,
            &[
                Field::number("attn_logit_softcapping", &["attn_logit_softcapping"]),
                Field::number("final_logit_softcapping", &["final_logit_softcapping"]),
            ],
        ],
        more: |draft| {
            checkpoint::causal(draft)?;
            checkpoint::scale_of_scores(draft)?;
            checkpoint::layer_kinds(draft, |layer| layer % 2 == 0)
        },
        absent: &[Absent::size("query_pre_attn_scalar", 256), Absent::size("sliding_window", 4096)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let mut config = Config {
        embedding_scale: Some((config.width as f32).sqrt()),
        activation: Activation::GeluTanh,
        norm_at: NormAt::Both,
        attention_softcap: Some(keys.positive("attn_logit_softcapping")?.unwrap_or(SCORE_CAP)),
        logit_softcap: Some(keys.positive("final_logit_softcapping")?.unwrap_or(LOGIT_CAP)),
        ..config
    };
    let window = keys.opt_size("attention.sliding_window", 1..=limits::CONTEXT)?.unwrap_or(WINDOW);
    let window = Some(Window::Last(window as u32));
    config.layers.iter_mut().for_each(|layer| layer.window = window);
    config.alternate(&keys, 2, config.layers[0].rope)?;
    if config.layers.len() == LAYERS_OF_27B {
        config.scale_by_share(&keys);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Window;
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Settings, draft};

    #[test]
    fn every_other_layer_has_the_window() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        let local = Some(Window::Last(5));
        assert_eq!(windows, [local, None, local]);
        assert_eq!(config.embedding_scale, Some(8.0));
    }

    #[test]
    fn early_files_have_the_usual_window_and_caps() {
        let mut early = (ARCHITECTURE.tiny)();
        for name in
            ["attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"]
        {
            early.remove(&format!("gemma2.{name}")).unwrap();
            let error = changed(&ARCHITECTURE, &[(name, 0f32.into())]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
        let config = (ARCHITECTURE.config)(&early).unwrap();
        assert_eq!((config.attention_softcap, config.logit_softcap), (Some(50.0), Some(30.0)));
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        let local = Some(Window::Last(4096));
        assert_eq!(windows, [local, None, local]);
    }

    #[test]
    fn scores_of_the_largest_are_scaled_by_a_share_of_the_width() {
        let sizes = [
            ("block_count", 46u32.into()),
            ("attention.key_length", 64u32.into()),
            ("attention.value_length", 64u32.into()),
        ];
        assert_eq!(changed(&ARCHITECTURE, &sizes).unwrap().attention_scale, 0.25);
        assert_eq!(changed(&ARCHITECTURE, &sizes[1..]).unwrap().attention_scale, 0.125);
        let told = [sizes.as_slice(), &[("attention.scale", 0.5f32.into())]].concat();
        assert_eq!(changed(&ARCHITECTURE, &told).unwrap().attention_scale, 0.5);
    }

    /// 46 layers are those of the 27B model, but a checkpoint says what its scale is.
    #[test]
    fn the_scale_of_a_checkpoint_counts_whatever_its_layers() {
        for (scalar, expected) in [(json!(64), 0.125f32), (json!(16), 0.25), (json!(null), 0.125)] {
            let settings = json!({
                "architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 46, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
                "intermediate_size": 96, "rms_norm_eps": 1e-5, "head_dim": 64, "sliding_window": 8,
                "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
                "query_pre_attn_scalar": scalar,
            });
            let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings)).unwrap();
            let config = (ARCHITECTURE.config)(&metadata).unwrap();
            assert_eq!(config.attention_scale, expected, "{scalar}");
        }
    }
}
