//! The time of a token of whole models, predicted from the bounds of their products and the number of dispatches.

use super::bounds::Bounds;
use super::{Family, dispatches};

/// Seconds that a dispatch costs beside what its bytes take, at least and at most: barrier, start and end, as seen on an H200.
const DISPATCH_SECONDS: [f64; 2] = [4e-6, 7e-6];

/// Bytes of a weight.
const Q4_K_BYTES: f64 = 144.0 / 256.0;
const Q6_K_BYTES: f64 = 210.0 / 256.0;

/// Of the memory's bandwidth, a token must reach as much on cards that decode has a budget for.
pub const SHARE_MIN: f64 = 0.8;

/// A decoder, quantized as Q4_K_M.
pub struct Shape {
    name: &'static str,
    layers: f64,
    width: f64,
    key_width: f64,
    hidden: f64,
    vocabulary: f64,
}

/// Llama 3.
pub const SHAPES: [Shape; 2] = [
    Shape {
        name: "8B",
        layers: 32.0,
        width: 4096.0,
        key_width: 1024.0,
        hidden: 14336.0,
        vocabulary: 128_256.0,
    },
    Shape {
        name: "70B",
        layers: 80.0,
        width: 8192.0,
        key_width: 1024.0,
        hidden: 28672.0,
        vocabulary: 128_256.0,
    },
];

/// What is predicted of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Bytes of weights that it reads.
    pub bytes: f64,
    /// Dispatches.
    pub dispatches: f64,
    /// Seconds, with dispatches of the least cost.
    pub seconds: f64,
    /// The bandwidth at which it reads them then, as a part of the memory's.
    pub share: f64,
    /// That part with dispatches of the highest cost.
    pub share_least: f64,
}

impl Shape {
    /// Bytes of weights in Q4_K and in Q6_K: the latter has the output matrix, and of half of the layers values and down.
    fn bytes(&self) -> [f64; 2] {
        let Shape { layers, width, key_width, hidden, vocabulary, .. } = *self;
        let mixed = width * (key_width + hidden) * layers / 2.0;
        let all = width * (2.0 * width + 2.0 * key_width + 3.0 * hidden) * layers;
        [(all - mixed) * Q4_K_BYTES, (mixed + vocabulary * width) * Q6_K_BYTES]
    }

    /// A token after a short text, with products of Q4_K and of Q6_K of these bounds.
    pub fn token(&self, family: &Family, bounds: [Bounds; 2]) -> Token {
        let bytes = self.bytes();
        let read = bytes
            .iter()
            .zip(bounds)
            .map(|(bytes, bounds)| bytes / (bounds.least().min(family.gbps) * 1e9));
        // Half of the layers have values of another type.
        let of_layer = dispatches::LAYER as f64 + dispatches::OTHER_VALUES as f64 / 2.0;
        let dispatches = self.layers * of_layer + dispatches::OTHERS as f64;
        let read = read.sum::<f64>();
        let [seconds, most] = DISPATCH_SECONDS.map(|each| read + dispatches * each);
        let bytes = bytes.iter().sum::<f64>();
        let [share, share_least] =
            [seconds, most].map(|seconds| bytes / seconds / (family.gbps * 1e9));
        Token { bytes, dispatches, seconds, share, share_least }
    }

    /// A row of the table.
    pub fn row(&self, token: &Token) -> String {
        format!(
            "| {} | {:.1} | {:.0} | {:.2} | {:.1} | {:.0} % | {:.0} % |\n",
            self.name,
            token.bytes / 1e9,
            token.dispatches,
            token.seconds * 1e3,
            1.0 / token.seconds,
            100.0 * token.share,
            100.0 * token.share_least
        )
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// The head of the table.
pub const HEAD: &str = "| Q4_K_M | GB | dispatches | ms a token | tok/s | of the bandwidth | with 7 µs a dispatch |\n|---|---|---|---|---|---|---|\n";

#[cfg(test)]
mod tests {
    use super::super::FAMILIES;
    use super::super::bounds::Bounds;
    use super::SHAPES;

    #[test]
    fn bytes_and_dispatches_make_the_time_of_a_token() {
        let fast = Bounds { tiled: false, alu: 1e6, cache: 1e6, banks: f64::INFINITY };
        let token = SHAPES[0].token(&FAMILIES[0], [fast; 2]);
        // The file of Llama 3 8B in Q4_K_M has 4.92 GB, 0.3 of them the embedding table.
        assert!((4.5e9..4.75e9).contains(&token.bytes), "{token:?}");
        assert!((token.dispatches - 245.0).abs() < 1e-9, "{token:?}");
        let expected = token.bytes / 960e9 + 245.0 * 4e-6;
        assert!((token.seconds - expected).abs() < 1e-12, "{token:?}");
        let least = token.bytes / 960e9 / (token.bytes / 960e9 + 245.0 * 7e-6);
        assert!((token.share_least - least).abs() < 1e-12, "{token:?}");
        let slow = Bounds { alu: 480.0, ..fast };
        assert!(SHAPES[0].token(&FAMILIES[0], [slow; 2]).share < 0.5, "bound by arithmetic");
    }
}
