//! EmbeddingGemma: Gemma 3 whose tokens see those on both sides; their mean goes through two matrices.

use bilayer_gguf::Metadata;
use bilayer_graph::Window;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Encoder, Error, Head, Norm, checkpoint, decoder,
    encoder, gemma3, names, tiny,
};

const NAME: &str = "gemma-embedding";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::encoder(NAME, Norm::Rms, &[("attention.sliding_window", 8u32.into())]),
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::GATED,
        names::NORMS_AROUND,
        gemma3::QK_NORMS,
        names::DENSE,
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Gemma3TextModel"],
        activations: gemma3::ACTIVATIONS,
        fields: gemma3::FIELDS,
        more,
        ..Checkpoint::USUAL
    },
};

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let feature = "a decoder without its head";
    draft.refuse("use_bidirectional_attention", &[true.into()], feature)?;
    checkpoint::decoder(draft)?;
    gemma3::draft(draft)?;
    encoder::draft(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = gemma3::layers(&keys)?;
    // The value in files counts both sides of the window.
    for layer in &mut config.layers {
        if let Some(Window::Last(both)) = &mut layer.window {
            *both = *both / 2 + 1;
        }
    }
    let encoder = Encoder::read(&keys, Head::of_cls())?;
    Ok(Config { encoder: Some(Encoder { norms_embedding: false, ..encoder }), ..config })
}
