//! Jina BERT 2: BERT with ALiBi instead of learned positions and a gated GELU; the model for code also normalizes queries and
//! keys, and adds a layer's input twice.

use bilayer_gguf::{Metadata, Strings};
use bilayer_graph::Activation;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Encoder, Error, FeedForward, Head, Name, Norm, NormAt,
    QkNorm, checkpoint, encoder, names, tiny,
};

const NAME: &str = "jina-bert-v2";

/// ALiBi's constant where a file does not say it; published models have no other.
const BIAS_MAX: f32 = 8.0;

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: encoder::record,
    tiny: || tiny::encoder(NAME, Norm::Layer, &[]),
    names: &[
        names::BERT,
        &[
            Name::kept("blk.{}.attn_q_norm", "bert.encoder.layer.{}.attention.self.layer_norm_q"),
            Name::kept("blk.{}.attn_k_norm", "bert.encoder.layer.{}.attention.self.layer_norm_k"),
            Name::kept("blk.{}.attn_norm_2", "bert.encoder.layer.{}.layer_norm_1"),
            Name::kept("blk.{}.ffn_up", "bert.encoder.layer.{}.mlp.gated_layers"),
            // The gate is the second half here.
            Name::row_part("blk.{}.ffn_up", "bert.encoder.layer.{}.mlp.up_gated_layer", 0, 2),
            Name::row_part("blk.{}.ffn_gate", "bert.encoder.layer.{}.mlp.up_gated_layer", 1, 2),
            Name::kept("blk.{}.ffn_down", "bert.encoder.layer.{}.mlp.wo"),
            Name::kept("blk.{}.ffn_down", "bert.encoder.layer.{}.mlp.down_layer"),
            Name::kept("blk.{}.layer_output_norm", "bert.encoder.layer.{}.mlp.layernorm"),
            Name::kept("blk.{}.layer_output_norm", "bert.encoder.layer.{}.layer_norm_2"),
            Name::kept("cls.output", "classifier"),
        ],
    ],
    ignored: encoder::IGNORED,
    checkpoint: Checkpoint {
        // Some of the rerankers' checkpoints name the model without its head.
        classes: &["JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"],
        activations: &["gelu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::LAYER_NORM],
        more,
        ..Checkpoint::USUAL
    },
};

/// Refuses variants of the code that ships with the checkpoints.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let switches = [
        ("is_decoder", "an encoder whose tokens see what is before them alone"),
        ("add_cross_attention", "attention to another text"),
    ];
    draft.refuse_all(&switches)?;
    if draft.settings.text(&["feed_forward_type"])?.is_none() {
        return Err(Error::MissingField { names: "feed_forward_type".to_owned() });
    }
    let feature = "a feed-forward that is not gated by GELU";
    draft.refuse("feed_forward_type", &["geglu".into()], feature)?;
    draft.refuse("emb_pooler", &["mean".into()], "pooling by anything but the mean")?;
    draft.set("attention.max_alibi_bias", BIAS_MAX);
    encoder::draft_of(draft, "alibi")?;
    if encoder::classifies_texts(draft.settings) && draft.settings.get(&["id2label"]).is_none() {
        // The rerankers' checkpoints name no labels; their score is one number.
        let labels: Strings = Head::of_cls().labels.iter().map(String::as_str).collect();
        draft.set("classifier.output_labels", labels);
    }
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, None)?;
    Ok(Config {
        norm_at: NormAt::Sum,
        qk_norm: Some(QkNorm::RowIfAny),
        alibi_bias_max: config.alibi_bias_max.or(Some(BIAS_MAX)),
        feed_forward: FeedForward::GatedInOne,
        activation: Activation::Gelu,
        biased: &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"],
        encoder: Some(Encoder::read(&keys, Head::of_cls())?.with_types(&keys)?),
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Attend, DistanceBias, Op};
    use bilayer_quant::Type;
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, Settings, draft, record};

    #[test]
    fn slopes_follow_from_the_files_constant_or_eight() {
        let eight = [0.25, 0.0625, 0.015_625, 0.003_906_25];
        let four = [0.5, 0.25, 0.125, 0.0625];
        for (key, expected) in [(None, eight), (Some(0f32), eight), (Some(4f32), four)] {
            let key = key.map(|bias_max| ("attention.max_alibi_bias", bias_max.into()));
            let config = changed(&ARCHITECTURE, key.as_slice()).unwrap();
            let graph = record(&config, &Outline::new(Type::F32, &[])).unwrap();
            let of = |op: &Op| match op {
                Op::Attend(Attend { bias: Some(DistanceBias::Slopes(slopes)), .. }) => {
                    Some(slopes.clone())
                }
                _ => None,
            };
            let found: Vec<_> = graph.nodes.iter().filter_map(|node| of(&node.op)).collect();
            assert_eq!(found, [&expected[..]; 3].map(Into::into), "{key:?}");
        }
        assert!(changed(&ARCHITECTURE, &[("attention.max_alibi_bias", (-1f32).into())]).is_err());
    }

    #[test]
    fn a_checkpoint_that_does_not_name_its_feed_forward_is_refused() {
        let settings = json!({
            "num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 128, "num_attention_heads": 4,
            "vocab_size": 99, "intermediate_size": 96, "layer_norm_eps": 1e-12,
        });
        let message = draft(&ARCHITECTURE, Settings(&settings)).unwrap_err().to_string();
        assert!(message.contains("feed_forward_type"), "{message}");
    }
}
