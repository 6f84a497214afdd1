//! Models without some of their layers: the metadata that describes them, and the names of their tensors.
//!
//! No architecture is known here. Lists with an element per layer are cut, and the configuration that the result gives is
//! compared with the layers that were kept: where a layer's kind follows from its number, as in patterns of windows or of
//! recurrent layers, the pattern is written out as a list if there is a key for that, and otherwise the model is refused.

use bilayer_gguf::{Array, Metadata, Value};

use crate::{Config, Error, Layer, Mixer, config};

/// A key whose value follows from the layers, with that value.
type Rule = (&'static str, fn(&[Layer]) -> Value);

/// Keys that say which layers are of which kind, in forms that need no period.
const RULES: [Rule; 3] = [
    ("attention.sliding_window_pattern", |layers| flags(layers, |layer| layer.window.is_some())),
    ("attention.recurrent_layers", |layers| {
        flags(layers, |layer| !matches!(layer.mixer, Mixer::Attention | Mixer::Latent(_)))
    }),
    ("leading_dense_block_count", |layers| {
        Value::U32(layers.iter().take_while(|layer| !layer.experts).count() as u32)
    }),
];

fn flags(layers: &[Layer], of: impl Fn(&Layer) -> bool) -> Value {
    Value::Array(Array::Bool(layers.iter().map(of).collect()))
}

/// The metadata of the model without all layers but `kept`, which ascend. Blocks that predict further tokens go, too.
///
/// # Errors
/// [`Error::Cut`] if no layer is kept, or one that does not exist; if layers share keys and values or one matrix; if a kept
/// layer would be of another kind. Those of [`config()`](crate::config()).
pub fn cut(metadata: &Metadata, kept: &[usize]) -> Result<Metadata, Error> {
    let before = config(metadata)?;
    let refused = |what: String, reason| {
        Err(Error::Cut { what: format!("architecture {}, {what}", before.architecture), reason })
    };
    if !kept.is_sorted_by(|a, b| a < b) || kept.is_empty() {
        return refused("the layers".into(), "at least one has to be kept, and each once");
    }
    if let Some(layer) = kept.iter().find(|&&layer| layer >= before.layers.len()) {
        return refused(format!("layer {layer}"), "there is no such layer");
    }
    if let Some(layer) = before.layers.iter().position(|layer| layer.kv_of.is_some()) {
        return refused(format!("layer {layer}"), "it reads the keys and values of another layer");
    }
    if before.layer_embedding.is_some() {
        let key = "embedding_length_per_layer_input".to_owned();
        return refused(key, "all layers have their embeddings in one matrix");
    }
    if before.distance_buckets.is_some() && kept[0] != 0 {
        return refused("layer 0".into(), "it has the biases of distances that other layers read");
    }
    let key = |name: &str| format!("{}.{name}", before.architecture);
    let blocks = metadata.usize(&key("block_count"))?;
    let mut after = metadata.clone();
    for (name, value) in metadata.iter().filter(|(name, _)| name.starts_with(&key(""))) {
        if let Value::Array(array) = value
            && array.len() == blocks
            && let Some(cut) = array.select(kept)
        {
            after.set(name, Value::Array(cut));
        }
    }
    after.set(&key("block_count"), kept.len() as u32);
    after.remove(&key("nextn_predict_layers"));
    let layers: Vec<Layer> = kept.iter().map(|&layer| before.layers[layer]).collect();
    let expected = Config { layers, mtp: Vec::new(), ..before.clone() };
    let fits = |metadata: &Metadata| config(metadata).is_ok_and(|found| found == expected);
    if fits(&after) {
        return Ok(after);
    }
    // As few of the rules as it takes.
    let mut some: Vec<usize> = (1..1 << RULES.len()).collect();
    some.sort_by_key(|rules: &usize| rules.count_ones());
    for rules in some {
        let mut written = after.clone();
        for (number, (name, value)) in RULES.iter().enumerate() {
            if rules >> number & 1 == 1 {
                written.set(&key(name), value(&expected.layers));
            }
        }
        if fits(&written) {
            return Ok(written);
        }
    }
    let found = config(&after)?;
    let differs = expected.layers.iter().zip(&found.layers).position(|(a, b)| a != b);
    let what = differs.map_or("the metadata".into(), |place| format!("layer {}", kept[place]));
    refused(what, "its kind follows from its number, and it would become another one")
}

/// The name of a tensor in a model that keeps the layers `kept` of this one; `None` for those of other layers.
#[must_use]
pub fn renumbered(name: &str, kept: &[usize]) -> Option<String> {
    let Some((before, layer, after)) = numbered(name) else { return Some(name.to_owned()) };
    kept.iter().position(|&kept| kept == layer).map(|place| format!("{before}{place}.{after}"))
}

/// The number of the layer that a file's tensor belongs to, with what is before it in the tensor's name, and after its dot;
/// `None` for tensors of no layer.
pub fn numbered(name: &str) -> Option<(&str, usize, &str)> {
    let before = ["blk.", "enc.blk."].into_iter().find(|before| name.starts_with(before))?;
    let (before, rest) = name.split_at(before.len());
    let (number, after) = rest.split_once('.')?;
    Some((before, number.parse().ok()?, after))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::collections::BTreeSet;

    use bilayer_quant::Type;

    use super::*;
    use crate::{Outline, add_mtp_blocks, all, record};

    #[test]
    fn every_architecture_loses_a_layer_or_says_why_not() {
        let mut refused = BTreeSet::new();
        for architecture in all() {
            let metadata = (architecture.tiny)();
            let before = (architecture.config)(&metadata).unwrap();
            for gone in 0..before.layers.len() {
                let kept: Vec<usize> = (0..before.layers.len()).filter(|&at| at != gone).collect();
                if kept.is_empty() {
                    continue;
                }
                match cut(&metadata, &kept) {
                    Ok(after) => {
                        let after = config(&after).unwrap();
                        let layers: Vec<Layer> = kept.iter().map(|&at| before.layers[at]).collect();
                        assert_eq!(after.layers, layers, "{}", architecture.name);
                        record(&after, &Outline::new(Type::F32, &[])).unwrap();
                    }
                    Err(error) => {
                        let text = error.to_string();
                        assert!(text.contains(architecture.name), "{text}");
                        assert!(matches!(error, Error::Cut { .. }), "{text}");
                        refused.insert(architecture.name);
                    }
                }
            }
        }
        assert_eq!(refused.into_iter().collect::<Vec<_>>(), REFUSED);
    }

    #[test]
    fn blocks_for_multi_token_prediction_go_with_a_layer() {
        let mut with_blocks = 0;
        for architecture in all() {
            let plain = (architecture.tiny)();
            let mut metadata = plain.clone();
            add_mtp_blocks(&mut metadata, architecture, 1);
            let Ok(before) = config(&metadata) else { continue };
            let kept: Vec<usize> = (0..before.layers.len() - 1).collect();
            if before.mtp.is_empty() || kept.is_empty() {
                continue;
            }
            let (Ok(after), Ok(expected)) = (cut(&metadata, &kept), cut(&plain, &kept)) else {
                assert!(cut(&plain, &kept).is_err(), "{}", architecture.name);
                continue;
            };
            assert_eq!(config(&after).unwrap(), config(&expected).unwrap());
            assert!(config(&after).unwrap().mtp.is_empty());
            with_blocks += 1;
        }
        assert!(with_blocks >= 3, "{with_blocks}");
    }

    /// Architectures of which some layer cannot be removed from the tiny model.
    const REFUSED: [&str; 5] = ["ernie4_5-moe", "gemma4", "llama4", "smollm3", "t5encoder"];

    #[test]
    fn odd_choices_are_refused_and_tensors_renumbered() {
        let metadata = (all()[0].tiny)();
        let layers = config(&metadata).unwrap().layers.len();
        for kept in [&[][..], &[layers], &[1, 0], &[0, 0]] {
            assert!(matches!(cut(&metadata, kept), Err(Error::Cut { .. })), "{kept:?}");
        }
        let named = |name| renumbered(name, &[0, 3]);
        assert_eq!(named("blk.3.ffn_up.weight").as_deref(), Some("blk.1.ffn_up.weight"));
        assert_eq!(named("blk.2.ffn_up.weight"), None);
        assert_eq!(named("output.weight").as_deref(), Some("output.weight"));
        assert_eq!(named("enc.blk.3.attn_o.weight").as_deref(), Some("enc.blk.1.attn_o.weight"));
        assert_eq!(named("enc.output_norm.weight").as_deref(), Some("enc.output_norm.weight"));
        assert_eq!(named("blk.x").as_deref(), Some("blk.x"));
    }
}
