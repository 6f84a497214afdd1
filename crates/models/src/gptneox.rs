//! GPT-NeoX and Pythia: layer norms, biases, attention and feed-forward in parallel on a norm each.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, FeedForward, FfnInput, Name, Norm, checkpoint,
    decoder, tiny,
};

const NAME: &str = "gptneox";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.head_count_kv", 4u32.into()),
            ("rope.dimension_count", 4u32.into()),
            ("use_parallel_residual", true.into()),
        ];
        tiny::decoder(NAME, Norm::Layer, &more)
    },
    names: &[&[
        Name::kept("token_embd", "gpt_neox.embed_in"),
        Name::kept("output", "embed_out"),
        Name::kept("output_norm", "gpt_neox.final_layer_norm"),
        Name::kept("blk.{}.attn_norm", "gpt_neox.layers.{}.input_layernorm"),
        Name::kept("blk.{}.ffn_norm", "gpt_neox.layers.{}.post_attention_layernorm"),
        Name::regrouped("blk.{}.attn_qkv", "gpt_neox.layers.{}.attention.query_key_value"),
        Name::kept("blk.{}.attn_output", "gpt_neox.layers.{}.attention.dense"),
        Name::kept("blk.{}.ffn_up", "gpt_neox.layers.{}.mlp.dense_h_to_4h"),
        Name::kept("blk.{}.ffn_down", "gpt_neox.layers.{}.mlp.dense_4h_to_h"),
    ]],
    // Attention masks and frequencies stored by old checkpoints.
    ignored: &[".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"],
    checkpoint: Checkpoint {
        classes: &["GPTNeoXForCausalLM"],
        activations: &["gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::LAYER_NORM],
        more: |draft| {
            draft.refuse("attention_bias", &[true.into()], "attention without biases")?;
            let parallel = draft.settings.flag(&["use_parallel_residual"])?;
            draft.set("use_parallel_residual", parallel.unwrap_or(true));
            checkpoint::gelu(draft, "gelu")?;
            checkpoint::decoder(draft)
        },
        absent: &[Absent::number("rope_pct", 0.25)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, Some(Pairs::Halves))?;
    let ffn_input = match keys.opt_flag("use_parallel_residual")?.unwrap_or(true) {
        true => FfnInput::Layer,
        false => FfnInput::Attended,
    };
    Ok(Config {
        ffn_input,
        qkv_in_one: true,
        feed_forward: FeedForward::Plain,
        activation: keys.gelu(Activation::Gelu)?,
        biased: &["attn_qkv", "attn_output", "ffn_up", "ffn_down"],
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Activation;
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{FfnInput, Settings, draft};

    #[test]
    fn parallel_parts_have_a_norm_each() {
        for (key, expected) in [(true, FfnInput::Layer), (false, FfnInput::Attended)] {
            let config = changed(&ARCHITECTURE, &[("use_parallel_residual", key.into())]);
            assert_eq!(config.unwrap().ffn_input, expected);
        }
        let odd = changed(&ARCHITECTURE, &[("use_parallel_residual", 1u32.into())]);
        let error = odd.unwrap_err().to_string();
        assert!(error.contains("gptneox.use_parallel_residual"), "{error}");
    }

    #[test]
    fn the_form_of_gelu_is_that_of_the_checkpoint() {
        for (form, key, expected) in [
            ("gelu", None, Activation::Gelu),
            ("gelu_new", Some("gelu_new"), Activation::GeluTanh),
            ("gelu_fast", Some("gelu_fast"), Activation::GeluTanh),
        ] {
            let settings = json!({
                "architectures": ["GPTNeoXForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
                "intermediate_size": 96, "layer_norm_eps": 1e-5, "hidden_act": form,
            });
            let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings)).unwrap();
            assert_eq!(metadata.opt_str("gptneox.hidden_activation").unwrap(), key);
            assert_eq!((ARCHITECTURE.config)(&metadata).unwrap().activation, expected, "{form}");
        }
        let odd = changed(&ARCHITECTURE, &[("hidden_activation", "relu".into())]).unwrap_err();
        assert!(odd.to_string().contains("gptneox.hidden_activation"), "{odd}");
    }
}
