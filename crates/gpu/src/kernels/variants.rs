//! The variants of the kernels that are checked without an adapter: every option, and heads of 16, 64 and 128.

use bilayer_graph::{Activation, Pairs, Score};

use super::add::AddKey;
use super::attend::{MergeKey, SplitKey};
use super::cache::{CacheType, CopyPagesKey};
use super::embed::EmbedKey;
use super::experts::ExpertsKey;
use super::gate::GateKey;
use super::head_norm::HeadNormKey;
use super::layer_norm::LayerNormKey;
use super::matmul::{COLUMNS_MAX, COLUMNS_TILED, Chosen, Epilogue, GemvKey, rows_of, takes_ints};
use super::mix::MixKey;
use super::pool::PoolKey;
use super::quantize::QuantizeKey;
use super::rms_norm::RmsNormKey;
use super::rope::RopeKey;
use super::route::RouteKey;
use super::rows::RowsKey;
use super::scale::ScaleKey;
use super::soft_cap::SoftCapKey;
use super::top_k::{JoinKey, PartKey};
use super::weights::{Layout, is_native};
use crate::caps::Caps;
use crate::kernel::Source;

const BOTH: [bool; 2] = [false, true];

/// Floats wanted, quantized activations wanted, or both.
const WANTED: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

/// Everything but rotation and attention.
pub(super) fn small_ops(caps: &Caps) -> impl Iterator<Item = Source> {
    let mut sources = vec![
        AddKey.source(caps),
        ScaleKey.source(caps),
        SoftCapKey.source(caps),
        RowsKey.source(caps),
        PoolKey.source(caps),
        HeadNormKey.source(caps),
        QuantizeKey.source(caps),
        CopyPagesKey.source(caps),
        PartKey.source(caps),
        JoinKey.source(caps),
        ExpertsKey.source(caps),
        MixKey.source(caps),
    ];
    for bias in BOTH {
        for score in [Score::Softmax, Score::Sigmoid] {
            sources.push(RouteKey { score, bias }.source(caps));
        }
    }
    for (floats, quantized) in WANTED {
        for activation in Activation::ALL {
            for up in BOTH {
                sources.push(GateKey { activation, up, floats, quantized }.source(caps));
            }
        }
        for sum in BOTH {
            for option in BOTH {
                let rms = RmsNormKey { sum, gain: option, floats, quantized };
                let layer = LayerNormKey { sum, bias: option, floats, quantized };
                sources.extend([rms.source(caps), layer.source(caps)]);
            }
        }
    }
    sources.into_iter()
}

/// Rotation, append, attention and its merge.
pub(super) fn attention(caps: &Caps) -> impl Iterator<Item = Source> {
    let types = [CacheType::F32, CacheType::F16, CacheType::Q8_0];
    let mut sources = Vec::new();
    for head_dim in [16, 64, 128] {
        let fits = |ty: &CacheType| *ty != CacheType::Q8_0 || head_dim % 32 == 0;
        let plain = RopeKey {
            head_dim,
            query: true,
            append: None,
            norm_q: false,
            norm_k: false,
            rotate: None,
        };
        for pairs in [Pairs::Interleaved, Pairs::Halves] {
            for dims in [head_dim, head_dim / 2, 6] {
                sources.push(RopeKey { rotate: Some((pairs, dims)), ..plain }.source(caps));
            }
        }
        for ty in types.into_iter().filter(fits) {
            let other = if ty == CacheType::F32 { CacheType::F16 } else { ty };
            let append = RopeKey { query: false, append: Some((ty, other)), ..plain };
            let fused = RopeKey {
                query: true,
                norm_q: true,
                norm_k: true,
                rotate: Some((Pairs::Halves, head_dim)),
                ..append
            };
            sources.extend([append.source(caps), fused.source(caps)]);
            let split = SplitKey {
                head_dim,
                heads_tile: 1,
                tile_rows: 1,
                key: ty,
                value: other,
                softcap: false,
                sinks: false,
                both_ways: false,
            };
            for (group, rows, special) in [(1, 8, false), (4, 1, true), (7, 4, false)] {
                let split = SplitKey { softcap: special, sinks: special, ..split };
                sources.push(split.tiled(caps, group, rows).source(caps));
            }
            for rows in [1, 8] {
                let both = SplitKey { key: CacheType::F32, value: CacheType::F32, ..split };
                let both = SplitKey { both_ways: true, ..both };
                sources.push(both.tiled(caps, 1, rows).source(caps));
            }
        }
        for (floats, quantized) in WANTED {
            for sinks in BOTH {
                sources.push(MergeKey { head_dim, sinks, floats, quantized }.source(caps));
            }
        }
    }
    sources.into_iter()
}

/// Products and embeddings of every type with a loader.
pub(super) fn products(caps: &Caps) -> impl Iterator<Item = Source> {
    let mut sources = Vec::new();
    let native = bilayer_quant::all().iter().copied().filter(|ty| is_native(*ty));
    for ty in native {
        let layout = Layout::of(ty);
        sources.push(EmbedKey { ty, layout }.source(caps));
        for columns in [1, 2, 4, COLUMNS_MAX, COLUMNS_TILED] {
            for many in BOTH {
                let rows = rows_of(caps, columns, Epilogue::Plain, if many { 1 << 16 } else { 1 });
                let plain = GemvKey {
                    ty,
                    layout,
                    columns,
                    rows,
                    ints: takes_ints(caps, ty),
                    matrices: 1,
                    bias: false,
                    chosen: Chosen::None,
                    ragged: false,
                    epilogue: Epilogue::Plain,
                };
                let gate = Epilogue::Gate(Activation::Silu);
                let gated =
                    GemvKey { rows: (rows / 2).max(1), matrices: 2, epilogue: gate, ..plain };
                let residual = GemvKey { epilogue: Epilogue::Residual, bias: true, ..plain };
                let three = GemvKey { matrices: 3, ..plain };
                sources.extend([plain, gated, residual, three].map(|key| key.source(caps)));
                // Products of experts: alone, or in groups of as many as there are kernels for.
                let chosen = match columns {
                    1 => Chosen::Pair,
                    COLUMNS_MAX | COLUMNS_TILED => Chosen::Group,
                    _ => continue,
                };
                let experts = GemvKey { chosen, ..plain };
                let ragged = GemvKey { bias: true, ints: false, ragged: true, ..experts };
                let gated = GemvKey { chosen, ..gated };
                sources.extend([experts, ragged, gated].map(|key| key.source(caps)));
            }
        }
    }
    sources.into_iter()
}
