//! Gemma 3: five local layers to one global, each kind with its own RoPE base; normalized queries and keys.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Field, Name, Norm, NormAt, QkNorm,
    Rotary, Scaling, checkpoint, decoder, limits, names, tiny,
};

/// Layers of the 27B model, whose scores are scaled by `width / heads` instead of the head dimension; files do
/// not say so.
const LAYERS_OF_27B: usize = 62;

/// Layers of the 4B, 12B and 27B models, whose context is extended; files of ollama's converter do not say so.
const LAYERS_OF_EXTENDED: [usize; 3] = [34, 48, LAYERS_OF_27B];

/// The ratio of the extended context of these to the original one.
const EXTENSION: Scaling = Scaling::Linear { factor: 8.0 };

/// The last layer of so many is global, where a file does not say.
const PERIOD: usize = 6;

/// RoPE base of global layers, where a file does not say.
const GLOBAL_BASE: f32 = 1e6;

const NAME: &str = "gemma3";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.sliding_window", 5u32.into()),
            ("attention.sliding_window_pattern", 3u32.into()),
            ("rope.freq_base", 1e6f32.into()),
            ("rope.scaling.type", "linear".into()),
            ("rope.scaling.factor", 8f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION, names::GATED, names::NORMS_AROUND, QK_NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        activations: ACTIVATIONS,
        fields: FIELDS,
        more: |draft| {
            checkpoint::causal(draft)?;
            self::draft(draft)
        },
        absent: ABSENT,
        ..Checkpoint::USUAL
    },
};

/// The values of the class, of which `text_config` has only what differs.
const ABSENT: &[Absent] = &[
    Absent::size("vocab_size", 262_208),
    Absent::size("hidden_size", 2304),
    Absent::size("intermediate_size", 9216),
    Absent::size("num_hidden_layers", 26),
    Absent::size("num_attention_heads", 8),
    Absent::size("num_key_value_heads", 4),
    Absent::size("head_dim", 256),
    Absent::text("hidden_activation", "gelu_pytorch_tanh"),
    Absent::size("max_position_embeddings", 131_072),
    Absent::number("rms_norm_eps", 1e-6),
    Absent::size("query_pre_attn_scalar", 256),
    Absent::size("sliding_window", 4096),
    Absent::number("rotary_emb_base", 1e6),
    Absent::yes("tie_word_embeddings"),
];

/// Norms of the heads of queries and keys.
pub(crate) const QK_NORMS: &[Name] = &[
    Name::one_more("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    Name::one_more("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
];

pub(crate) const ACTIVATIONS: &[&str] = &["gelu_pytorch_tanh"];

pub(crate) const FIELDS: &[&[Field]] = &[
    checkpoint::SIZES,
    checkpoint::FEED_FORWARD,
    checkpoint::RMS,
    checkpoint::WINDOW,
    &[
        Field::maybe_size("attention.sliding_window_pattern", checkpoint::PERIOD),
        Field::maybe_number("final_logit_softcapping", &["final_logit_softcapping"]),
    ],
];

/// What a checkpoint says besides the fields and the direction of attention.
pub(crate) fn draft(draft: &mut Draft<'_>) -> Result<(), Error> {
    // transformers has the field, but does not apply it.
    draft.refuse("attn_logit_softcapping", &[], "a cap on the scores of attention")?;
    checkpoint::scale_of_scores(draft)?;
    if !draft.has("rope.scaling.type") {
        // A file that does not say so may be one of ollama's.
        draft.set("rope.scaling.type", "none");
    }
    checkpoint::layers_in_turn(draft, PERIOD as u32)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    layers(&Keys { metadata, architecture: NAME })
}

/// The layers by the keys of an architecture.
pub(crate) fn layers(keys: &Keys<'_>) -> Result<Config, Error> {
    let config = Config::read(keys, Norm::Rms, Some(Pairs::Halves))?;
    let mut config = Config {
        embedding_scale: Some((config.width as f32).sqrt()),
        activation: Activation::GeluTanh,
        norm_at: NormAt::Both,
        qk_norm: Some(QkNorm::Head),
        ..config
    };
    keys.size("attention.sliding_window", 1..=limits::CONTEXT)?;
    // llama.cpp's default is 1e4, which no model has.
    let base = keys.positive("rope.freq_base")?.unwrap_or(GLOBAL_BASE);
    let extends = LAYERS_OF_EXTENDED.contains(&config.layers.len());
    let extends = extends && !keys.has("rope.scaling.type");
    for rope in config.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
        rope.base = base;
        if extends && rope.scaling == Scaling::None {
            rope.scaling = EXTENSION;
        }
    }
    // The context extension applies to global layers only.
    let base = keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let local = |rope| Rotary { base, scaling: Scaling::None, attn_factor: 1.0, ..rope };
    config.alternate(keys, PERIOD, config.layers[0].rope.map(local))?;
    if config.layers.len() == LAYERS_OF_27B {
        config.scale_by_share(keys);
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Metadata, Scaling, tiny::changed};
    use crate::{Settings, draft};
    use bilayer_graph::Window;
    use serde_json::json;

    #[test]
    fn local_layers_turn_by_a_base_of_their_own() {
        let six = [("block_count", 7u32.into()), ("attention.sliding_window_pattern", 6u32.into())];
        let config = changed(&ARCHITECTURE, &six).unwrap();
        for (i, layer) in config.layers.iter().enumerate() {
            let rope = layer.rope.unwrap();
            let (window, base, scaling) = match i {
                5 => (None, 1e6, Scaling::Linear { factor: 8.0 }),
                _ => (Some(Window::Last(5)), 10_000.0, Scaling::None),
            };
            assert_eq!((layer.window, rope.base, rope.scaling), (window, base, scaling), "{i}");
        }
        let told = changed(&ARCHITECTURE, &[("rope.freq_base_swa", 500f32.into())]).unwrap();
        assert_eq!(told.layers[0].rope.unwrap().base, 500.0);
    }

    #[test]
    fn bases_are_known_by_the_names_of_ollama() {
        let bases = |change: &dyn Fn(&mut Metadata)| {
            let mut metadata = (ARCHITECTURE.tiny)();
            change(&mut metadata);
            let layers = (ARCHITECTURE.config)(&metadata).unwrap().layers;
            [0, 2].map(|layer| layers[layer].rope.unwrap().base)
        };
        let ollama = |metadata: &mut Metadata| {
            metadata.remove("gemma3.rope.freq_base");
            metadata.set("gemma3.rope.global.freq_base", 5e5f32);
            metadata.set("gemma3.rope.local.freq_base", 2e4f32);
        };
        assert_eq!(bases(&ollama), [2e4, 5e5]);
        let both = |metadata: &mut Metadata| {
            ollama(metadata);
            metadata.set("gemma3.rope.freq_base", 7e5f32);
        };
        assert_eq!(bases(&both), [2e4, 7e5]);
        let neither = |metadata: &mut Metadata| {
            metadata.remove("gemma3.rope.freq_base");
        };
        assert_eq!(bases(&neither), [1e4, 1e6]);
    }

    #[test]
    fn files_of_ollama_have_the_usual_epsilon_and_the_extension_of_their_size() {
        let mut metadata = (ARCHITECTURE.tiny)();
        let left_out =
            ["attention.layer_norm_rms_epsilon", "rope.scaling.type", "rope.scaling.factor"];
        for name in left_out {
            metadata.remove(&format!("gemma3.{name}")).unwrap();
        }
        let scaling = |metadata: &Metadata| {
            let config = (ARCHITECTURE.config)(metadata).unwrap();
            assert_eq!(config.norm_eps, 1e-6);
            [0, 2].map(|layer| config.layers[layer].rope.unwrap().scaling)
        };
        assert_eq!(scaling(&metadata), [Scaling::None; 2]);
        metadata.set("gemma3.block_count", 34u32);
        assert_eq!(scaling(&metadata), [Scaling::None, Scaling::Linear { factor: 8.0 }]);
        metadata.set("gemma3.rope.scaling.type", "none");
        assert_eq!(scaling(&metadata), [Scaling::None; 2]);
    }

    /// A checkpoint of as many layers as the 4B model.
    #[test]
    fn a_checkpoint_whose_context_is_not_extended_says_so_in_its_file() {
        let settings = json!({
            "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 34, "hidden_size": 64,
            "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
            "intermediate_size": 96, "rms_norm_eps": 1e-6, "head_dim": 16, "sliding_window": 8,
        });
        let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings)).unwrap();
        let config = (ARCHITECTURE.config)(&metadata).unwrap();
        assert_eq!(config.layers[5].rope.unwrap().scaling, Scaling::None);
    }

    #[test]
    fn a_file_without_a_window_is_refused() {
        let error = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("gemma3.attention.sliding_window"), "{error}");
    }
}
