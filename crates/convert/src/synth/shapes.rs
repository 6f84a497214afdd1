//! Shapes: a table of known models' sizes, overrides of them, and the resulting metadata.

use bilayer_gguf::Metadata;
use bilayer_models::Llama3;

use super::family::Family;
use crate::Error;

/// The sizes of a model and the rest of its metadata.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Name on the command line.
    pub name: &'static str,
    /// `general.architecture`.
    pub(super) architecture: &'static str,
    /// Layers.
    pub layers: u32,
    /// Elements of the hidden state.
    pub width: u32,
    /// Query heads of a layer.
    pub heads: u32,
    /// Key-value heads of a layer.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Width of the feed-forward's hidden state.
    pub ffn: u32,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Trained context in tokens.
    pub context: u32,
    /// Whether the embedding is also the output head.
    pub tied: bool,
    /// Experts in place of the feed-forward.
    pub experts: Option<Experts>,
    /// Convolutions in place of attention in some layers.
    pub convolutions: Option<Convolutions>,
    /// Recurrences in place of attention in some or all layers.
    pub recurrence: Option<Recurrence>,
    /// Compressed keys and values; then [`Shape::kv_heads`] and [`Shape::head_dim`] have no effect.
    pub latent: Option<Latent>,
    pub(super) family: Family,
    norm_eps: f32,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts per layer.
    pub count: u32,
    /// Experts per token.
    pub used: u32,
    /// Width of an expert's hidden state.
    pub ffn: u32,
    /// Experts of that width that every token passes through.
    pub shared: u32,
    /// First layers with a feed-forward instead.
    pub dense: u32,
}

/// Sizes of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements of a compressed row.
    pub rank: u32,
    /// Elements of a head's query that are not rotated.
    pub plain_dim: u32,
    /// Rotated elements of a head's query and of the shared key.
    pub rotated_dim: u32,
    /// Elements of a head's value.
    pub value_dim: u32,
}

/// Short convolutions in place of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolutions {
    /// Rows that a result is the sum of.
    pub taps: u32,
    /// The layers that have attention nevertheless.
    pub attention: &'static [u32],
}

/// Recurrences in place of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recurrence {
    /// Gated delta nets in all layers but each `period`-th, whose attention has a gate and rotates `rotated_dim` elements of
    /// each head.
    DeltaNet {
        /// Heads of queries and keys.
        key_heads: u32,
        /// Heads of values.
        value_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Every so many layers one has attention.
        period: u32,
        /// Rotated elements of a head of attention.
        rotated_dim: u32,
    },
    /// Mamba 2 in all layers, without feed-forwards; then [`Shape::heads`] and [`Shape::ffn`] have no effect.
    Mamba2 {
        /// Heads.
        heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Elements of a row of a head's state.
        state_dim: u32,
    },
}

/// Rows that the convolution before a recurrence sums.
pub(super) const TAPS: u32 = 4;

const fn rotary(rope_base: f32, longer: Option<f32>) -> Family {
    Family::Decoder { rope_base, longer, head_norms: false, pre: "llama-bpe" }
}

/// Llama 3.1 8B (Meta 2024), the base of the other Llama shapes.
const LLAMA_8B: Shape = Shape {
    name: "llama-8b",
    architecture: "llama",
    layers: 32,
    width: 4096,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    ffn: 14_336,
    vocab: 128_256,
    context: 131_072,
    tied: false,
    experts: None,
    convolutions: None,
    recurrence: None,
    latent: None,
    family: rotary(500_000.0, Some(8.0)),
    norm_eps: 1e-5,
};

/// Sources: the publishers' `config.json` files.
static SHAPES: [Shape; 11] = [
    // A small Llama, meant for overrides by flags.
    Shape {
        name: "tiny",
        layers: 2,
        width: 256,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        ffn: 512,
        vocab: 512,
        context: 2048,
        tied: true,
        family: rotary(10_000.0, None),
        ..LLAMA_8B
    },
    // Llama 3.2 1B.
    Shape {
        name: "llama-1b",
        layers: 16,
        width: 2048,
        head_dim: 64,
        ffn: 8192,
        tied: true,
        family: rotary(500_000.0, Some(32.0)),
        ..LLAMA_8B
    },
    LLAMA_8B,
    // Llama 3.1 and 3.3 70B.
    Shape { name: "llama-70b", layers: 80, width: 8192, heads: 64, ffn: 28_672, ..LLAMA_8B },
    Shape {
        name: "mixtral-8x7b",
        vocab: 32_000,
        context: 32_768,
        experts: Some(Experts { count: 8, used: 2, ffn: 14_336, shared: 0, dense: 0 }),
        family: rotary(1_000_000.0, None),
        ..LLAMA_8B
    },
    Shape {
        name: "qwen3-30b-a3b",
        architecture: "qwen3moe",
        layers: 48,
        width: 2048,
        kv_heads: 4,
        ffn: 6144,
        vocab: 151_936,
        context: 40_960,
        experts: Some(Experts { count: 128, used: 8, ffn: 768, shared: 0, dense: 0 }),
        family: Family::Decoder {
            rope_base: 1_000_000.0,
            longer: None,
            head_norms: true,
            pre: "qwen2",
        },
        norm_eps: 1e-6,
        ..LLAMA_8B
    },
    // DeepSeek V2 Lite, without YaRN.
    Shape {
        name: "deepseek-lite",
        architecture: "deepseek2",
        layers: 27,
        width: 2048,
        heads: 16,
        kv_heads: 16,
        head_dim: 192,
        ffn: 10_944,
        vocab: 102_400,
        context: 32_768,
        experts: Some(Experts { count: 64, used: 6, ffn: 1408, shared: 2, dense: 1 }),
        latent: Some(Latent { rank: 512, plain_dim: 128, rotated_dim: 64, value_dim: 128 }),
        family: rotary(10_000.0, None),
        norm_eps: 1e-6,
        ..LLAMA_8B
    },
    // LFM2 and LFM2.5 1.2B.
    Shape {
        name: "lfm2-1b",
        architecture: "lfm2",
        layers: 16,
        width: 2048,
        head_dim: 64,
        ffn: 8192,
        vocab: 65_536,
        context: 128_000,
        tied: true,
        convolutions: Some(Convolutions { taps: 3, attention: &[2, 5, 8, 10, 12, 14] }),
        family: Family::Decoder {
            rope_base: 1_000_000.0,
            longer: None,
            head_norms: true,
            pre: "lfm2",
        },
        ..LLAMA_8B
    },
    // Qwen 3.5 4B, its text model without the block that predicts further tokens.
    Shape {
        name: "qwen35-4b",
        architecture: "qwen35",
        width: 2560,
        heads: 16,
        kv_heads: 4,
        head_dim: 256,
        ffn: 9216,
        vocab: 248_320,
        context: 262_144,
        tied: true,
        recurrence: Some(Recurrence::DeltaNet {
            key_heads: 16,
            value_heads: 32,
            head_dim: 128,
            period: 4,
            rotated_dim: 64,
        }),
        family: Family::Decoder {
            rope_base: 10_000_000.0,
            longer: None,
            head_norms: true,
            pre: "qwen2",
        },
        norm_eps: 1e-6,
        ..LLAMA_8B
    },
    // Mamba 2 1.3B.
    Shape {
        name: "mamba2-1b",
        architecture: "mamba2",
        layers: 48,
        width: 2048,
        heads: 1,
        kv_heads: 1,
        head_dim: 64,
        vocab: 50_288,
        context: 1 << 20,
        tied: true,
        recurrence: Some(Recurrence::Mamba2 { heads: 64, head_dim: 64, state_dim: 128 }),
        family: Family::Decoder {
            rope_base: 10_000.0,
            longer: None,
            head_norms: false,
            pre: "olmo",
        },
        ..LLAMA_8B
    },
    // all-MiniLM-L6-v2.
    Shape {
        name: "minilm-l6",
        architecture: "bert",
        layers: 6,
        width: 384,
        heads: 12,
        kv_heads: 12,
        head_dim: 32,
        ffn: 1536,
        vocab: 30_522,
        context: 512,
        tied: false,
        family: Family::Encoder,
        norm_eps: 1e-12,
        ..LLAMA_8B
    },
];

/// Overrides of a shape's sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Replaces [`Shape::layers`].
    pub layers: Option<u32>,
    /// Replaces [`Shape::width`].
    pub width: Option<u32>,
    /// Replaces [`Shape::heads`].
    pub heads: Option<u32>,
    /// Replaces [`Shape::kv_heads`].
    pub kv_heads: Option<u32>,
    /// Replaces [`Shape::head_dim`].
    pub head_dim: Option<u32>,
    /// Replaces [`Shape::ffn`], and the experts' width if there are experts.
    pub ffn: Option<u32>,
    /// Replaces [`Shape::vocab`].
    pub vocab: Option<u32>,
    /// Replaces [`Shape::context`].
    pub context: Option<u32>,
}

impl Shape {
    /// Finds a shape by name.
    ///
    /// # Errors
    /// [`Error::UnknownShape`], which lists the known ones.
    pub fn find(name: &str) -> Result<Shape, Error> {
        let found = SHAPES.iter().find(|shape| shape.name == name);
        let unknown = || Error::UnknownShape { name: name.to_owned(), known: Shape::names() };
        found.copied().ok_or_else(unknown)
    }

    /// Every shape.
    pub fn all() -> &'static [Shape] {
        &SHAPES
    }

    /// Every shape's name, separated by commas.
    pub fn names() -> String {
        SHAPES.iter().map(|shape| shape.name).collect::<Vec<_>>().join(", ")
    }

    /// The shape with overrides. The head dimension is kept unless width or heads change; then it is `width /
    /// heads`. The ratio of query to key-value heads is kept if possible, otherwise every head has its own.
    ///
    /// # Errors
    /// [`Error::Size`], which names the flag.
    pub fn with(mut self, sizes: Sizes) -> Result<Shape, Error> {
        let sharing = self.heads / self.kv_heads;
        let set = |own: &mut u32, size: Option<u32>| size.inspect(|size| *own = *size).is_some();
        set(&mut self.layers, sizes.layers);
        set(&mut self.vocab, sizes.vocab);
        set(&mut self.context, sizes.context);
        let width = set(&mut self.width, sizes.width);
        if set(&mut self.ffn, sizes.ffn)
            && let Some(experts) = &mut self.experts
        {
            experts.ffn = self.ffn;
        }
        let heads = set(&mut self.heads, sizes.heads);
        if !set(&mut self.kv_heads, sizes.kv_heads) && heads {
            let shares = self.heads.is_multiple_of(sharing);
            self.kv_heads = if shares { self.heads / sharing } else { self.heads };
        }
        if !set(&mut self.head_dim, sizes.head_dim) && (width || heads) {
            if self.heads == 0 || !self.width.is_multiple_of(self.heads) {
                let expected = format!("a divisor of the width {}, or give --head-dim", self.width);
                return Err(size("heads", expected, self.heads));
            }
            self.head_dim = self.width / self.heads;
        }
        self.check()?;
        Ok(self)
    }

    /// Checks the bounds of `bilayer_models::limits`, which apply when the model is loaded.
    fn check(&self) -> Result<(), Error> {
        use bilayer_models::limits::{CONTEXT, HEADS, LAYERS, VOCAB, WIDTH};
        let bounds = [
            ("layers", self.layers, 1, LAYERS),
            ("width", self.width, 1, WIDTH),
            ("heads", self.heads, 1, HEADS),
            ("kv-heads", self.kv_heads, 1, HEADS),
            ("head-dim", self.head_dim, 2, WIDTH),
            ("ffn", self.ffn, 1, WIDTH),
            ("vocab", self.vocab, super::words::LEAST, VOCAB),
            ("context", self.context, 1, CONTEXT),
        ];
        for (what, found, least, most) in bounds {
            if !(least..=most).contains(&(found as usize)) {
                return Err(size(what, format!("{least} to {most}"), found));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} heads", self.heads);
            return Err(size("kv-heads", expected, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(size("head-dim", "even".to_owned(), self.head_dim));
        }
        if self.family == Family::Encoder {
            if self.kv_heads != self.heads {
                let expected = format!("the {} heads of an encoder", self.heads);
                return Err(size("kv-heads", expected, self.kv_heads));
            }
            if self.head_dim * self.heads != self.width {
                let expected = format!("the width {} by {} heads", self.width, self.heads);
                return Err(size("head-dim", expected, self.head_dim));
            }
        }
        Ok(())
    }

    /// Whether a layer has attention.
    pub(super) fn attends(&self, layer: u32) -> bool {
        let recurs = match self.recurrence {
            None => false,
            Some(Recurrence::DeltaNet { period, .. }) => !(layer + 1).is_multiple_of(period),
            Some(Recurrence::Mamba2 { .. }) => true,
        };
        !recurs && self.convolutions.is_none_or(|all| all.attention.contains(&layer))
    }

    /// Divisors of the RoPE frequencies by Llama 3's rule, `[head_dim / 2]`.
    pub(super) fn rope_factors(&self) -> Option<Vec<f32>> {
        let Family::Decoder { rope_base, longer: Some(factor), .. } = self.family else {
            return None;
        };
        let rule =
            Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
        Some(rule.factors(rope_base, self.head_dim as usize))
    }

    /// The model's metadata without the vocabulary.
    pub(super) fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", self.architecture);
        metadata.set("general.type", "model");
        metadata.set("general.name", format!("{} with random weights", self.name));
        let mut set = |name: &str, value: bilayer_gguf::Value| {
            metadata.set(&format!("{}.{name}", self.architecture), value);
        };
        set("block_count", self.layers.into());
        set("context_length", self.context.into());
        set("embedding_length", self.width.into());
        set("feed_forward_length", self.ffn.into());
        set("attention.head_count", self.heads.into());
        set("vocab_size", self.vocab.into());
        match self.family {
            Family::Encoder => {
                set("attention.layer_norm_epsilon", self.norm_eps.into());
                set("attention.causal", false.into());
                // Mean pooling.
                set("pooling_type", 1u32.into());
            }
            Family::Decoder { rope_base, .. } => {
                match self.convolutions {
                    None => set("attention.head_count_kv", self.kv_heads.into()),
                    Some(Convolutions { taps, .. }) => {
                        let heads = |layer| self.kv_heads * u32::from(self.attends(layer));
                        let heads: Vec<u32> = (0..self.layers).map(heads).collect();
                        set("attention.head_count_kv", heads.into());
                        set("shortconv.l_cache", taps.into());
                    }
                }
                let [key, value, rotated] = match self.latent {
                    None => [self.head_dim; 3],
                    Some(Latent { rank, plain_dim, rotated_dim, value_dim }) => {
                        set("attention.head_count_kv", 1u32.into());
                        set("attention.kv_lora_rank", rank.into());
                        set("attention.key_length_mla", (plain_dim + rotated_dim).into());
                        set("attention.value_length_mla", value_dim.into());
                        [rank + rotated_dim, rank, rotated_dim]
                    }
                };
                set("attention.key_length", key.into());
                set("attention.value_length", value.into());
                set("attention.layer_norm_rms_epsilon", self.norm_eps.into());
                set("rope.dimension_count", rotated.into());
                set("rope.freq_base", rope_base.into());
            }
        }
        self.recurrence.iter().flat_map(recurrent).for_each(|(name, value)| set(name, value));
        if let Some(experts) = self.experts {
            set("expert_count", experts.count.into());
            set("expert_used_count", experts.used.into());
            if experts.ffn != self.ffn {
                set("expert_feed_forward_length", experts.ffn.into());
            }
            if experts.shared > 0 {
                set("expert_shared_count", experts.shared.into());
                set("leading_dense_block_count", experts.dense.min(self.layers).into());
            }
        }
        metadata
    }
}

/// The keys of a recurrence.
fn recurrent(recurrence: &Recurrence) -> Vec<(&'static str, bilayer_gguf::Value)> {
    let (sizes, more): ([u32; 4], Vec<(_, bilayer_gguf::Value)>) = match *recurrence {
        Recurrence::DeltaNet { key_heads, value_heads, head_dim, period, rotated_dim } => (
            [value_heads, head_dim, key_heads, head_dim],
            vec![
                ("full_attention_interval", period.into()),
                ("rope.dimension_count", rotated_dim.into()),
                // Pairs by axis as real files divide them: for an image's positions, equal for text.
                ("rope.dimension_sections", axes(rotated_dim / 2).into()),
            ],
        ),
        Recurrence::Mamba2 { heads, head_dim, state_dim } => (
            [heads, head_dim, 1, state_dim],
            ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
                .map(|name| (name, 0u32.into()))
                .to_vec(),
        ),
    };
    let [heads, head_dim, groups, state_dim] = sizes;
    let ssm = [
        ("ssm.conv_kernel", TAPS),
        ("ssm.state_size", state_dim),
        ("ssm.group_count", groups),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", heads * head_dim),
    ];
    ssm.into_iter().map(|(name, value)| (name, value.into())).chain(more).collect()
}

/// Pairs of a head divided among three axes, the first taking what is left over; and none for a fourth.
fn axes(pairs: u32) -> Vec<i32> {
    [2, 1, 0].map(|axis| ((pairs + axis) / 3) as i32).into_iter().chain([0]).collect()
}

fn size(what: &'static str, expected: String, found: u32) -> Error {
    Error::Size { what, expected, found: found.into() }
}
