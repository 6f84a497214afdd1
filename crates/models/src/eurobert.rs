//! EuroBERT: Llama's layers without a causal mask; halves of a head are rotated.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Encoder, Error, Head, Name, Norm, checkpoint, encoder,
    names, tiny,
};

const NAME: &str = "eurobert";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: encoder::record,
    tiny: || tiny::encoder(NAME, Norm::Rms, &[]),
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::GATED,
        names::NORMS,
        &[Name::kept("cls.output", "classifier")],
    ],
    ignored: IGNORED,
    checkpoint: Checkpoint {
        classes: &["EuroBertModel", "EuroBertForMaskedLM", "EuroBertForTokenClassification"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more,
        ..Checkpoint::USUAL
    },
};

/// The head that only pretraining uses, in checkpoints and in files.
const IGNORED: &[&str] = &["lm_head.weight", "output.weight"];

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    checkpoint::decoder(draft)?;
    encoder::draft(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let encoder = Encoder { norms_embedding: false, ..Encoder::read(&keys, Head::of_cls())? };
    Ok(Config { encoder: Some(encoder), ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn the_first_layer_normalizes_what_it_reads() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let outline = Outline::new(Type::F32, &[]);
        record(&config, &outline).unwrap();
        let needs = |wanted| outline.tensors().iter().any(|(name, _)| name == wanted);
        assert!(needs("blk.0.attn_norm.weight") && !needs("token_embd_norm.weight"));
        let error = changed(&ARCHITECTURE, &[("attention.causal", true.into())]).unwrap_err();
        assert!(error.to_string().contains("attention.causal"), "{error}");
    }
}
