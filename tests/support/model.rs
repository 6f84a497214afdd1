//! Models for tests: files of the shared data, and random ones made from an architecture's smallest metadata.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_graph::{Graph, SharedBytes, Weight};
use bilayer_models::{Config, Directory, Outline, Output};
use bilayer_quant::Type;

/// A file with its configuration and graph.
pub struct Model {
    pub file: File,
    pub config: Config,
    pub graph: Graph,
}

impl Model {
    pub fn new(file: File) -> Self {
        let (config, graph) = bilayer_models::read(&file).unwrap();
        Model { file, config, graph }
    }

    /// The file under another configuration.
    pub fn changed(self, change: impl FnOnce(&mut Config)) -> Self {
        let Model { file, mut config, .. } = self;
        change(&mut config);
        let graph = bilayer_models::record(&config, &Directory(&file)).unwrap();
        Model { file, config, graph }
    }

    pub fn open(path: &Path) -> Self {
        Self::new(File::open(path).unwrap())
    }

    /// A model of [`random_bytes`] as they are.
    pub fn random(metadata: &Metadata, ty: Type, optional: &[&str], seed: u64) -> Self {
        let bytes = random_bytes(metadata, ty, optional, seed, &|_, _| ());
        Self::new(File::from_bytes("random", bytes).unwrap())
    }

    /// The type of most weights in its layers.
    pub fn matrix_type(&self) -> Type {
        let mut counts: BTreeMap<u32, (usize, Type)> = BTreeMap::new();
        for weight in self.graph.weights.iter().filter(|weight| weight.layer.is_some()) {
            let count = counts.entry(weight.ty.gguf_id).or_insert((0, weight.ty));
            count.0 += weight.rows * weight.cols;
        }
        counts.into_values().max_by_key(|(count, _)| *count).unwrap().1
    }

    /// The bytes of a weight within its tensor.
    pub fn bytes(&self, weight: &Weight) -> SharedBytes {
        let tensor = self.file.tensor(&weight.name).unwrap();
        self.file.bytes(tensor).slice(weight.range_in_tensor())
    }
}

/// A file with random weights of type `ty` in the shapes that `metadata` implies, with the optional tensors in
/// `optional`. `change` may edit each tensor's values; a seed always gives the same file.
pub fn random_bytes(
    metadata: &Metadata,
    ty: Type,
    optional: &[&str],
    seed: u64,
    change: &dyn Fn(&str, &mut [f32]),
) -> SharedBytes {
    let config = bilayer_models::config(metadata).unwrap();
    let outline = Outline::new(ty, optional);
    // A file has all tensors that its model needs in any context.
    for context in [1, config.context] {
        let config = Config { context, ..config.clone() };
        bilayer_models::record(&config, &outline).unwrap();
    }
    if !config.mtp.is_empty() {
        let config = Config { output: Output::Mtp, ..config };
        bilayer_models::record(&config, &outline).unwrap();
    }
    let mut random = Random(seed);
    let tensors = outline.tensors().into_iter().map(|(name, entry)| {
        let cols = *entry.shape.last().unwrap() as usize;
        let rows = entry.shape.iter().product::<u64>() as usize / cols;
        // Norm weights are around 1 and RoPE factors around 2; rows of matrices have length about 1, so that activations
        // stay in range.
        let (centre, spread) = match (name.as_str(), rows) {
            (name, 1) if name.starts_with("rope_") => (2.0, 0.5),
            (name, 1) if name.ends_with("norm.weight") => (1.0, 0.2),
            // States decay.
            (name, _) if name.ends_with("ssm_a") => (-1.0, 0.5),
            (_, 1) => (0.0, 0.1),
            ("token_embd.weight", _) => (0.0, 1.0),
            _ => (0.0, (3.0 / cols as f32).sqrt()),
        };
        let value = |_| centre + spread * random.next();
        let mut values: Vec<f32> = (0..rows * cols).map(value).collect();
        change(&name, &mut values);
        let mut bytes = vec![0; rows * entry.ty.row_bytes(cols).unwrap()];
        entry.ty.quantize(&values, None, &mut bytes).unwrap();
        NewTensor::bytes(&name, entry.ty, &entry.shape, bytes)
    });
    let tensors: Vec<_> = tensors.collect();
    to_bytes(metadata, tensors).unwrap()
}

/// SplitMix64 (Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    /// Uniform between -1 and 1.
    pub fn next(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Token ids below `vocab`.
    pub fn tokens(&mut self, len: usize, vocab: usize) -> Vec<u32> {
        (0..len).map(|_| (self.bits() % vocab as u64) as u32).collect()
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound.max(1) as u64) as usize
    }

    /// The next bits (Steele et al. 2014).
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
