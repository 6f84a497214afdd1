//! Nomic BERT: BERT with RoPE instead of learned positions, a gated feed-forward and almost no biases.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Encoder, Error, Head, Name, Norm, NormAt,
    checkpoint, encoder, tiny,
};

const NAME: &str = "nomic-bert";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: encoder::record,
    tiny: || tiny::encoder(NAME, Norm::Layer, &[("rope.freq_base", 1000f32.into())]),
    names: &[&[
        Name::kept("token_embd", "bert.embeddings.word_embeddings"),
        Name::kept("token_types", "bert.embeddings.token_type_embeddings"),
        Name::kept("token_embd_norm", "bert.emb_ln"),
        Name::kept("blk.{}.attn_qkv", "bert.encoder.layers.{}.attn.Wqkv"),
        Name::kept("blk.{}.attn_output", "bert.encoder.layers.{}.attn.out_proj"),
        Name::kept("blk.{}.attn_output_norm", "bert.encoder.layers.{}.norm1"),
        Name::kept("blk.{}.ffn_up", "bert.encoder.layers.{}.mlp.fc11"),
        Name::kept("blk.{}.ffn_gate", "bert.encoder.layers.{}.mlp.fc12"),
        Name::kept("blk.{}.ffn_down", "bert.encoder.layers.{}.mlp.fc2"),
        Name::kept("blk.{}.layer_output_norm", "bert.encoder.layers.{}.norm2"),
        Name::kept("cls", "bert.pooler.dense"),
        Name::kept("cls.output", "classifier"),
    ]],
    ignored: encoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["NomicBertModel", "NomicBertForMaskedLM"],
        activations: &["silu", "swiglu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::LAYER_NORM],
        more,
        absent: &[Absent::number("rotary_emb_base", 1000.0)],
        ..Checkpoint::USUAL
    },
};

/// Refuses variants of the code that ships with the checkpoints.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let switches = [
        ("causal", "an encoder that sees what is before alone"),
        ("prenorm", "norms before both parts of a layer"),
        ("parallel_block", "attention and feed-forward side by side"),
        ("use_rms_norm", "norms without means"),
        ("rotary_emb_interleaved", "rotation of neighbouring elements"),
        ("scale_attn_by_inverse_layer_idx", "a scale for each layer"),
    ];
    draft.refuse_all(&switches)?;
    draft.refuse("scale_attn_weights", &[true.into()], "scores that are not scaled")?;
    checkpoint::rope(draft)?;
    encoder::draft(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.refuse("expert_count", "a mixture of experts")?;
    let config = Config::read(&keys, Norm::Layer, Some(Pairs::Halves))?;
    Ok(Config {
        norm_at: NormAt::Sum,
        qkv_in_one: true,
        encoder: Some(Encoder::read(&keys, Head::of_cls())?.with_types(&keys)?),
        ..config
    })
}
