//! Falcon 7B and 40B: attention and feed-forward in parallel, few key-value heads, no biases but those of the norms.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, FeedForward, FfnInput, Field, Name, Norm,
    checkpoint, decoder, tiny,
};

const NAME: &str = "falcon";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Layer, &[("attention.head_count_kv", 1u32.into())]),
    names: &[&[
        Name::kept("token_embd", "transformer.word_embeddings"),
        Name::kept("output", "lm_head"),
        Name::kept("output_norm", "transformer.ln_f"),
        Name::kept("blk.{}.attn_norm", "transformer.h.{}.input_layernorm"),
        // Models with a norm for each part.
        Name::kept("blk.{}.attn_norm", "transformer.h.{}.ln_mlp"),
        Name::kept("blk.{}.attn_norm_2", "transformer.h.{}.ln_attn"),
        Name::regrouped("blk.{}.attn_qkv", "transformer.h.{}.self_attention.query_key_value"),
        Name::kept("blk.{}.attn_output", "transformer.h.{}.self_attention.dense"),
        Name::kept("blk.{}.ffn_up", "transformer.h.{}.mlp.dense_h_to_4h"),
        Name::kept("blk.{}.ffn_down", "transformer.h.{}.mlp.dense_4h_to_h"),
    ]],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["FalconForCausalLM", "RWForCausalLM"],
        activations: &["gelu"],
        fields: &[
            &[
                Field::size("block_count", &["num_hidden_layers", "n_layer"]),
                Field::size("embedding_length", &["hidden_size", "n_embed"]),
                Field::size("attention.head_count", &["num_attention_heads", "n_head"]),
                Field::size("vocab_size", &["vocab_size"]),
            ],
            checkpoint::LAYER_NORM,
        ],
        more,
        ..Checkpoint::USUAL
    },
};

/// Whether files of this architecture have the composition of types that llama.cpp's quantizer has for Falcon alone.
pub fn has_falcon_mixes(architecture: &str) -> bool {
    architecture == NAME
}

/// Key-value heads are given by flags, the context and the feed-forward by defaults. Files hold no falcon-rw, which has ALiBi
/// and biases: llama.cpp rotates heads in every file of the architecture, and reads biases of norms alone.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse_all(&[("alibi", "ALiBi (falcon-rw)"), ("bias", "biases of projections")])?;
    draft.refuse("parallel_attn", &[true.into()], "a feed-forward after the attention")?;
    let heads = draft.needed_size(&["num_attention_heads", "n_head"])?;
    let is_new = draft.settings.flag(&["new_decoder_architecture"])?.unwrap_or(false);
    let is_shared = draft.settings.flag(&["multi_query"])?.unwrap_or(true);
    let kv_heads = match (is_new, is_shared) {
        (true, _) => draft.settings.size(&["num_kv_heads", "n_head_kv"])?.unwrap_or(heads),
        (false, true) => 1,
        (false, false) => heads,
    };
    draft.set("attention.head_count_kv", kv_heads);
    let context = draft.settings.size(&["max_position_embeddings"])?;
    draft.set("context_length", context.unwrap_or(2048));
    let inner = match draft.settings.size(&["ffn_hidden_size"])? {
        Some(inner) => inner,
        None => draft.needed_size(&["hidden_size", "n_embed"])?.saturating_mul(4),
    };
    draft.set("feed_forward_length", inner);
    checkpoint::decoder(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, Some(Pairs::Halves))?;
    Ok(Config {
        ffn_input: FfnInput::AttentionNorm,
        qkv_in_one: true,
        feed_forward: FeedForward::Plain,
        activation: Activation::Gelu,
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn attention_reads_its_own_norm_if_there_is_one() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let reads = |optional: &[&str]| {
            let outline = Outline::new(Type::F32, optional);
            let graph = record(&config, &outline).unwrap();
            let norms = graph.nodes.iter().filter(|node| node.name.starts_with("attn_norm"));
            norms.map(|node| node.label()).collect::<Vec<_>>()
        };
        assert_eq!(reads(&[]).len(), 3 + 1, "one of each layer, and the wanted rows of the last");
        let second = "blk.1.attn_norm_2.weight";
        assert!(reads(&[second]).contains(&"layer 1 attn_norm_2".to_owned()));
    }
}
