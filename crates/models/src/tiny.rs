//! The smallest metadata of a decoder or encoder; tests make random models of it.

use bilayer_gguf::{Metadata, Value};

use crate::Norm;

/// Three layers of width 64, four query heads over two key-value heads, norm `norm`, and the architecture's own
/// keys `more`.
pub(crate) fn decoder(architecture: &str, norm: Norm, more: &[(&str, Value)]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", architecture);
    let sizes = [
        ("vocab_size", 128u32),
        ("context_length", 256),
        ("embedding_length", 64),
        ("block_count", 3),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    for (name, size) in sizes {
        metadata.set(&format!("{architecture}.{name}"), size);
    }
    let eps = format!("{architecture}.{}", norm.eps_key());
    metadata.set(&eps, 1e-5f32);
    for (name, value) in more {
        metadata.set(&format!("{architecture}.{name}"), value.clone());
    }
    metadata
}

/// The encoder's: as many key-value heads as query heads, and two token types.
pub(crate) fn encoder(architecture: &str, norm: Norm, more: &[(&str, Value)]) -> Metadata {
    let mut metadata = decoder(architecture, norm, more);
    metadata.set(&format!("{architecture}.attention.head_count_kv"), 4u32);
    metadata.set("tokenizer.ggml.token_type_count", 2u32);
    metadata.set("tokenizer.ggml.seperator_token_id", 7u32);
    metadata
}

/// The configuration of an architecture's smallest metadata after changes to some keys.
#[cfg(test)]
pub(crate) fn changed(
    architecture: &crate::Architecture,
    changes: &[(&str, Value)],
) -> Result<crate::Config, crate::Error> {
    let mut metadata = (architecture.tiny)();
    for (name, value) in changes {
        metadata.set(&format!("{}.{name}", architecture.name), value.clone());
    }
    (architecture.config)(&metadata)
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use crate::{Outline, all, numbered, record};

    /// A file without any one of the keys of its architecture's smallest metadata is refused with the key's
    /// name, or describes another model that can be recorded.
    #[test]
    fn every_key_of_the_smallest_metadata_is_needed_by_name_or_optional() {
        let mut needed = 0;
        for architecture in all() {
            let whole = (architecture.tiny)();
            assert!((architecture.config)(&whole).is_ok(), "{}", architecture.name);
            for (key, _) in whole.iter().filter(|(key, _)| key.starts_with(architecture.name)) {
                let mut metadata = (architecture.tiny)();
                metadata.remove(key).unwrap();
                match (architecture.config)(&metadata) {
                    Ok(config) => {
                        record(&config, &Outline::new(Type::F32, &[])).unwrap();
                    }
                    Err(error) => {
                        needed += 1;
                        assert!(error.to_string().contains(key), "{key}: {error}");
                    }
                }
            }
        }
        assert!(needed >= 6 * all().len());
    }

    /// Every tensor that a recording needs has a name in checkpoints, except what a converter computes.
    #[test]
    fn every_tensor_has_a_name_in_checkpoints() {
        for architecture in all() {
            let config = (architecture.config)(&(architecture.tiny)()).unwrap();
            let outline = Outline::new(Type::F32, &["output.weight"]);
            record(&config, &outline).unwrap();
            let known = |name: &str| {
                let (stem, _) = name.rsplit_once('.').unwrap();
                let stem = stem.replace("blk.0.", "blk.{}.");
                let whole = name.replace("blk.0.", "blk.{}.");
                let mut names = architecture.names.iter().copied().flatten();
                names.any(|known| known.gguf == stem || known.gguf == whole)
            };
            for (name, _) in outline.tensors() {
                let first = numbered(&name).is_none_or(|(_, layer, _)| layer == 0);
                if first && !name.starts_with("rope_factors_") {
                    assert!(known(&name), "{}: {name}", architecture.name);
                }
            }
        }
    }
}
