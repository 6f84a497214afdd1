//! Mistral Small 3, Ministral 3 and Devstral: Llama whose queries grow with the position once the context is extended.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, Experts, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "mistral3";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.temperature_scale", 0.5f32.into()),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.original_context_length", 16u32.into()),
            ("rope.scaling.yarn_log_multiplier", 1f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION_IN_PAIRS, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more,
        ..Checkpoint::USUAL
    },
};

/// The factor on queries is among the fields of the rotation.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("sliding_window", &[], "a window in every layer")?;
    checkpoint::decoder(draft)?;
    let all = draft.settings;
    let rope = all.part("rope_parameters").or_else(|| all.part("rope_scaling"));
    let scale = rope.map(|rope| rope.number(&["llama_4_scaling_beta"])).transpose()?.flatten();
    if let Some(scale) = scale.filter(|&scale| scale != 0.0) {
        draft.set("attention.temperature_scale", scale);
    }
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    config.temper(&keys)?;
    let experts = Experts::read(&keys, Weights::Shares)?;
    config.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Temperature;

    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn queries_grow_with_each_original_context() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let expected = Temperature { scale: 0.5, length: 16, offset: 0 };
        assert!(config.layers.iter().all(|layer| layer.temperature == Some(expected)));
        let none = changed(&ARCHITECTURE, &[("attention.temperature_scale", 0f32.into())]);
        assert!(none.unwrap().layers.iter().all(|layer| layer.temperature.is_none()));
    }

    #[test]
    fn a_file_of_ollama_is_the_model_of_llama_cpp() {
        let names = [
            ("attention.temperature_scale", "rope.scaling_beta", 0.1f32),
            ("rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast", 16.0),
            ("rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow", 2.0),
            ("rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim", 0.5),
        ];
        let usual = changed(&ARCHITECTURE, &names.map(|(name, _, value)| (name, value.into())));
        let mut metadata = (ARCHITECTURE.tiny)();
        for (name, other, value) in names {
            metadata.remove(&format!("mistral3.{name}"));
            metadata.set(&format!("mistral3.{other}"), value);
        }
        assert_eq!((ARCHITECTURE.config)(&metadata).unwrap(), usual.unwrap());
        metadata.set("mistral3.rope.scaling_beta", -1f32);
        let error = (ARCHITECTURE.config)(&metadata).unwrap_err().to_string();
        assert!(error.contains("mistral3.rope.scaling_beta"), "{error}");
    }

    #[test]
    fn an_empty_type_of_scaling_is_none() {
        let empty = [("rope.scaling.type", "".into()), ("rope.scaling.factor", 0f32.into())];
        let rope = changed(&ARCHITECTURE, &empty).unwrap().layers[0].rope.unwrap();
        assert_eq!((rope.scaling, rope.magnitude()), (crate::Scaling::None, 1.0));
    }

    /// With a logarithmic multiplier of 1 the amplitude is m(1) / m(1); with 0.5 it is
    /// (0.1 ln 4 + 1) / (0.05 ln 4 + 1) = 1.0648216.
    #[test]
    fn the_logarithmic_multiplier_divides_the_amplitude() {
        for (multiplier, expected) in [(1f32, 1.0), (0.5, 1.064_821_6)] {
            let key = [("rope.scaling.yarn_log_multiplier", multiplier.into())];
            let rope = changed(&ARCHITECTURE, &key).unwrap().layers[0].rope.unwrap();
            assert!((rope.magnitude() - expected).abs() < 1e-6_f32, "{}", rope.magnitude());
        }
    }
}
