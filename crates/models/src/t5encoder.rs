//! T5's encoder: scores without a factor, biased by the distance of query and key; a feed-forward with ReLU, or with a
//! gated GELU since version 1.1; in UMT5 each layer has its own biases.

use bilayer_gguf::Metadata;
use bilayer_graph::Activation;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Encoder, Error, FeedForward, Field, Head, Name, Norm,
    Stems, encoder, names, tiny,
};

const NAME: &str = "t5encoder";

/// The distance from which on all are in one bucket, for which files have no key.
const DISTANCE_MAX: u32 = 128;

/// Tokens of a text that the published models were trained with; checkpoints need not say so.
const CONTEXT: u32 = 512;

/// The key for the number of buckets.
const BUCKETS: &str = "attention.relative_buckets_count";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: encoder::record,
    tiny: || tiny::encoder(NAME, Norm::Rms, &[(BUCKETS, 32u32.into())]),
    names: &[
        names::DENSE,
        &[
            Name::kept("token_embd", "shared"),
            Name::kept("enc.blk.{}.attn_norm", "encoder.block.{}.layer.0.layer_norm"),
            Name::kept("enc.blk.{}.attn_q", "encoder.block.{}.layer.0.SelfAttention.q"),
            Name::kept("enc.blk.{}.attn_k", "encoder.block.{}.layer.0.SelfAttention.k"),
            Name::kept("enc.blk.{}.attn_v", "encoder.block.{}.layer.0.SelfAttention.v"),
            Name::kept("enc.blk.{}.attn_o", "encoder.block.{}.layer.0.SelfAttention.o"),
            Name::kept(
                "enc.blk.{}.attn_rel_b",
                "encoder.block.{}.layer.0.SelfAttention.relative_attention_bias",
            ),
            Name::kept("enc.blk.{}.ffn_norm", "encoder.block.{}.layer.1.layer_norm"),
            Name::kept("enc.blk.{}.ffn_gate", "encoder.block.{}.layer.1.DenseReluDense.wi_0"),
            Name::kept("enc.blk.{}.ffn_up", "encoder.block.{}.layer.1.DenseReluDense.wi_1"),
            Name::kept("enc.blk.{}.ffn_up", "encoder.block.{}.layer.1.DenseReluDense.wi"),
            Name::kept("enc.blk.{}.ffn_down", "encoder.block.{}.layer.1.DenseReluDense.wo"),
            Name::kept("enc.output_norm", "encoder.final_layer_norm"),
        ],
    ],
    // The embedding's second name.
    ignored: &["embed_tokens.weight"],
    checkpoint: Checkpoint {
        classes: &["T5EncoderModel", "UMT5EncoderModel"],
        activations: &[],
        fields: &[&[
            Field::size("block_count", &["num_layers"]),
            Field::size("embedding_length", &["d_model"]),
            Field::size("feed_forward_length", &["d_ff"]),
            Field::size("attention.head_count", &["num_heads"]),
            Field::size("attention.key_length", &["d_kv"]),
            Field::size("attention.value_length", &["d_kv"]),
            Field::size("vocab_size", &["vocab_size"]),
            Field::size(BUCKETS, &["relative_attention_num_buckets"]),
            Field::number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon"]),
        ]],
        more,
        ..Checkpoint::USUAL
    },
};

/// Refuses what no GGUF key describes.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let forms = ["relu", "gated-gelu"].map(Into::into);
    draft.refuse("feed_forward_proj", &forms, "another feed-forward than ReLU or a gated GELU")?;
    let feature = "buckets up to another distance than 128";
    draft.refuse("relative_attention_max_distance", &[DISTANCE_MAX.into()], feature)?;
    draft.set("context_length", draft.settings.size(&["n_positions"])?.unwrap_or(CONTEXT));
    encoder::draft(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, None)?;
    let buckets = keys.size(BUCKETS, 4..=2 * DISTANCE_MAX as usize)?;
    if !buckets.is_multiple_of(2) {
        return Err(keys.value(BUCKETS, "an even number".to_owned(), buckets));
    }
    let encoder = Encoder { norms_embedding: false, ..Encoder::read(&keys, Head::of_cls())? };
    Ok(Config {
        stems: Stems { layer: "enc.blk.", attn_output: "attn_o" },
        output_norm: "enc.output_norm",
        attention_scale: 1.0,
        distance_buckets: Some((buckets, DISTANCE_MAX)),
        feed_forward: FeedForward::GatedIfAny(Activation::Relu),
        activation: Activation::GeluTanh,
        encoder: Some(encoder),
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Activation, Op};
    use bilayer_quant::Type;
    use serde_json::json;

    use super::{ARCHITECTURE, BUCKETS, tiny::changed};
    use crate::checkpoint::draft;
    use crate::{Outline, Settings, record};

    #[test]
    fn layers_share_the_biases_of_the_first_unless_they_have_their_own() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let tables = |optional: &[&str]| -> Vec<String> {
            let graph = record(&config, &Outline::new(Type::F32, optional)).unwrap();
            let of = |op: &Op| if let Op::Attend(op) = op { op.table() } else { None };
            let tables = graph.nodes.iter().filter_map(|node| of(&node.op));
            tables.map(|table| graph.weight(table).name.clone()).collect()
        };
        let [first, last] = [0, 2].map(|layer| format!("enc.blk.{layer}.attn_rel_b.weight"));
        assert_eq!(tables(&[]), [&*first, &first, &first]);
        assert_eq!(tables(&[&last]), [&*first, &first, &last]);
        for count in [2u32, 7, 1000] {
            let error = changed(&ARCHITECTURE, &[(BUCKETS, count.into())]).unwrap_err();
            assert!(error.to_string().contains(BUCKETS), "{error}");
        }
    }

    #[test]
    fn the_file_says_by_its_tensors_whether_the_feed_forward_is_gated() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let gates = ["enc.blk.1.ffn_gate.weight"];
        let graph = record(&config, &Outline::new(Type::F32, &gates)).unwrap();
        let of = |op: &Op| match op {
            Op::Gate { up, activation, .. } => Some((up.is_some(), *activation)),
            _ => None,
        };
        let found: Vec<_> = graph.nodes.iter().filter_map(|node| of(&node.op)).collect();
        let plain = (false, Activation::Relu);
        assert_eq!(found, [plain, (true, Activation::GeluTanh), plain]);
    }

    #[test]
    fn a_checkpoint_of_another_form_is_refused() {
        let usual = json!({
            "num_layers": 2, "d_model": 64, "d_ff": 96, "num_heads": 4, "d_kv": 16, "vocab_size": 99,
            "relative_attention_num_buckets": 32, "layer_norm_epsilon": 1e-6,
        });
        assert!(draft(&ARCHITECTURE, Settings(&usual)).is_ok());
        let others = [
            ("feed_forward_proj", json!("gated-silu")),
            ("relative_attention_max_distance", json!(64)),
        ];
        for (field, value) in others {
            let mut settings = usual.clone();
            settings[field] = value;
            let message = draft(&ARCHITECTURE, Settings(&settings)).unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        }
    }
}
