//! BERT, RoBERTa, XLM-RoBERTa and the models distilled from them: learned positions, token types, post-norm, exact GELU.

use bilayer_gguf::Metadata;
use bilayer_graph::Activation;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Encoder, Error, FeedForward, Head, Name, Norm, NormAt,
    checkpoint, encoder, names, tiny,
};

const NAME: &str = "bert";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: encoder::record,
    tiny: || tiny::encoder(NAME, Norm::Layer, &[]),
    names: &[
        names::BERT,
        &[
            Name::positions("position_embd", "bert.embeddings.position_embeddings"),
            Name::kept("blk.{}.ffn_up", "bert.encoder.layer.{}.intermediate.dense"),
            Name::kept("blk.{}.ffn_down", "bert.encoder.layer.{}.output.dense"),
            Name::kept("blk.{}.layer_output_norm", "bert.encoder.layer.{}.output.LayerNorm"),
            Name::kept("cls.output", "classifier"),
            Name::kept("cls", "classifier.dense"),
            Name::kept("cls.output", "classifier.out_proj"),
        ],
        FLASH,
    ],
    ignored: encoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &[
            "BertModel",
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertForSequenceClassification",
            "BertForTokenClassification",
            "RobertaModel",
            "RobertaForMaskedLM",
            "RobertaForSequenceClassification",
            "RobertaForTokenClassification",
            "XLMRobertaModel",
            "XLMRobertaForMaskedLM",
            "XLMRobertaForSequenceClassification",
            "XLMRobertaForTokenClassification",
            "CamembertModel",
            "CamembertForMaskedLM",
        ],
        activations: &["gelu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::LAYER_NORM],
        more: |draft| {
            let switches = [
                ("is_decoder", "a BERT whose tokens see what is before them alone"),
                ("add_cross_attention", "attention to another text"),
            ];
            draft.refuse_all(&switches)?;
            padded(draft)?;
            encoder::draft(draft)
        },
        ..Checkpoint::USUAL
    },
};

/// Names in checkpoints of XLM-RoBERTa for FlashAttention, such as `jina-reranker-v2-base-multilingual`.
const FLASH: &[Name] = &[
    Name::kept("token_embd_norm", "bert.emb_ln"),
    Name::row_part("blk.{}.attn_q", "bert.encoder.layers.{}.mixer.Wqkv", 0, 3),
    Name::row_part("blk.{}.attn_k", "bert.encoder.layers.{}.mixer.Wqkv", 1, 3),
    Name::row_part("blk.{}.attn_v", "bert.encoder.layers.{}.mixer.Wqkv", 2, 3),
    Name::kept("blk.{}.attn_output", "bert.encoder.layers.{}.mixer.out_proj"),
    Name::kept("blk.{}.attn_output_norm", "bert.encoder.layers.{}.norm1"),
    Name::kept("blk.{}.ffn_up", "bert.encoder.layers.{}.mlp.fc1"),
    Name::kept("blk.{}.ffn_down", "bert.encoder.layers.{}.mlp.fc2"),
    Name::kept("blk.{}.layer_output_norm", "bert.encoder.layers.{}.norm2"),
];

/// Positions of RoBERTa begin after the number of the padding token.
fn padded(draft: &mut Draft<'_>) -> Result<(), Error> {
    let class = draft.settings.0["architectures"][0].as_str();
    let padded = ["Roberta", "Camembert"];
    if !class.is_some_and(|class| padded.iter().any(|name| class.contains(name))) {
        return Ok(());
    }
    let positions = draft.needed_size(&["max_position_embeddings"])?;
    let unused = draft.settings.size(&["pad_token_id"])?.unwrap_or(1).saturating_add(1);
    draft.set("context_length", positions.saturating_sub(unused));
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, None)?;
    Ok(Config {
        positions: Some(config.context),
        norm_at: NormAt::Sum,
        feed_forward: FeedForward::Plain,
        activation: Activation::Gelu,
        biased: &["attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"],
        encoder: Some(Encoder::read(&keys, Head::of_cls())?.with_types(&keys)?),
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Op, Rows};
    use bilayer_quant::Type;
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Config, Encoder, Outline, Pooling, Settings, draft, record};

    fn with(config: &Config, change: impl FnOnce(&mut Encoder)) -> bilayer_graph::Graph {
        let mut config = config.clone();
        change(config.encoder.as_mut().unwrap());
        record(&config, &Outline::new(Type::F32, &["cls.weight", "cls.bias"])).unwrap()
    }

    #[test]
    fn the_end_is_as_the_pooling_says() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let graph = with(&config, |encoder| encoder.pooling = pooling);
            assert_eq!((graph.width(graph.logits), graph.rows(graph.logits)), (64, Rows::Outputs));
            let pools = graph.nodes.iter().filter(|n| matches!(n.op, Op::Pool { .. })).count();
            assert_eq!(pools, usize::from(pooling == Pooling::Mean), "{pooling:?}");
            assert!(graph.takes_whole_sequences() && graph.caches.is_empty());
        }
        let scores = with(&config, |encoder| encoder.scores = true);
        assert_eq!(scores.width(scores.logits), 1);
    }

    #[test]
    fn pooling_and_labels_are_as_the_metadata_says() {
        let types = [(0, Pooling::None), (1, Pooling::Mean), (2, Pooling::Cls), (3, Pooling::Last)];
        for (number, pooling) in types {
            let config = changed(&ARCHITECTURE, &[("pooling_type", u32::into(number))]).unwrap();
            let encoder = config.encoder.unwrap();
            assert_eq!((encoder.pooling, encoder.scores), (pooling, false));
        }
        let ranks = changed(&ARCHITECTURE, &[("pooling_type", 4u32.into())]).unwrap();
        let encoder = ranks.encoder.unwrap();
        assert_eq!((encoder.pooling_recorded(), encoder.scores), (Pooling::Cls, true));
        let labels: bilayer_gguf::Strings = ["good", "bad"].iter().copied().collect();
        let config = changed(&ARCHITECTURE, &[("classifier.output_labels", labels.into())]);
        let graph = with(&config.unwrap(), |encoder| assert_eq!(encoder.head.labels.len(), 2));
        assert_eq!(graph.width(graph.logits), 2);
        assert!(changed(&ARCHITECTURE, &[("pooling_type", 5u32.into())]).is_err());
        assert!(changed(&ARCHITECTURE, &[("attention.causal", true.into())]).is_err());
    }

    /// The heads of pretraining are left out; positions of RoBERTa's family begin after the padding token.
    #[test]
    fn classes_for_pretraining_are_embedding_models() {
        for (class, context) in [
            ("BertForPreTraining", 128),
            ("RobertaForMaskedLM", 126),
            ("XLMRobertaForMaskedLM", 126),
            ("CamembertModel", 126),
            ("CamembertForMaskedLM", 126),
        ] {
            let settings = json!({
                "architectures": [class], "num_hidden_layers": 2, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
                "intermediate_size": 96, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "pad_token_id": 1,
            });
            let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings)).unwrap();
            let config = (ARCHITECTURE.config)(&metadata).unwrap();
            assert_eq!(config.context, context, "{class}");
            assert!(!config.encoder.unwrap().scores, "{class}");
        }
        for name in ["lm_head.dense.weight", "lm_head.layer_norm.bias", "lm_head.decoder.weight"] {
            assert!(ARCHITECTURE.ignored.iter().any(|end| name.ends_with(end)), "{name}");
        }
    }
}
