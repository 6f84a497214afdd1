//! The kernel variants that are validated without a GPU: every option with heads of 16, 64 and 128, and attention with
//! heads of other lengths.

use bilayer_graph::{Activation, Pairs, Score};
use bilayer_quant::Type;
use bilayer_quant::cache::{BLOCK, TYPES};

use super::attend::{Bias, MergeKey, SplitKey};
use super::cache::CacheType;
use super::conv::ConvKey;
use super::embed::EmbedKey;
use super::gate::GateKey;
use super::head_norm::HeadNormKey;
use super::layer_norm::LayerNormKey;
use super::matmul::{
    COLUMNS_MAX, COLUMNS_TILED, Chosen, Emit, Epilogue, GemvKey, columns_tiled, input_of,
    rows_emitting, rows_of,
};
use super::rms_norm::RmsNormKey;
use super::rope::RopeKey;
use super::route::RouteKey;
use super::scan::ScanKey;
use super::weights::{Layout, is_native};
use crate::caps::{Caps, Input, Tile};
use crate::kernel::Source;

const BOTH: [bool; 2] = [false, true];

/// Output as floats, as quantized activations, or both.
const WANTED: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

/// With and without a bias or factors, of either score; and from groups.
pub(super) fn route(caps: &Caps) -> Vec<Source> {
    let scores = [Score::Softmax, Score::Sigmoid].into_iter();
    let options = BOTH.into_iter().flat_map(|bias| BOTH.map(|factors| (bias, factors)));
    let keys = scores.flat_map(|score| {
        options.clone().map(move |(bias, factors)| RouteKey {
            score,
            bias,
            factors,
            group_best: None,
        })
    });
    let grouped = [(Score::Softmax, false, 1), (Score::Sigmoid, true, 2)];
    let grouped = grouped.map(|(score, bias, best)| RouteKey {
        score,
        bias,
        factors: false,
        group_best: Some(best),
    });
    keys.chain(grouped).map(|key| key.source(caps)).collect()
}

/// Of two to four taps, with and without a bias.
pub(super) fn conv(caps: &Caps) -> Vec<Source> {
    let keys = (2..=4).flat_map(|taps| BOTH.map(|bias| ConvKey { taps, bias }));
    keys.map(|key| key.source(caps)).collect()
}

/// Of the rows of states that models have, with either update.
pub(super) fn scan(caps: &Caps) -> Vec<Source> {
    let keys = [16, 64, 128, 256].into_iter();
    keys.flat_map(|state_dim| BOTH.map(|delta| ScanKey { state_dim, delta }.source(caps))).collect()
}

/// Of every activation, with and without `up`.
pub(super) fn gate(caps: &Caps) -> Vec<Source> {
    let mut sources = Vec::new();
    for (floats, quantized) in WANTED {
        for activation in Activation::ALL {
            for up in BOTH {
                sources.push(GateKey { activation, up, floats, quantized }.source(caps));
            }
        }
    }
    sources
}

/// With and without a gain, of a value or of a sum.
pub(super) fn rms_norm(caps: &Caps) -> Vec<Source> {
    let of = |(floats, quantized), sum, gain| RmsNormKey { sum, gain, floats, quantized };
    norms(|wanted, sum, option| of(wanted, sum, option).source(caps))
}

/// With and without a gain, of either kind.
pub(super) fn head_norm(caps: &Caps) -> Vec<Source> {
    let keys =
        BOTH.into_iter().flat_map(|gain| BOTH.map(|centered| HeadNormKey { gain, centered }));
    keys.map(|key| key.source(caps)).collect()
}

/// With and without a bias, of a value or of a sum.
pub(super) fn layer_norm(caps: &Caps) -> Vec<Source> {
    let of = |(floats, quantized), sum, bias| LayerNormKey { sum, bias, floats, quantized };
    norms(|wanted, sum, option| of(wanted, sum, option).source(caps))
}

fn norms(source: impl Fn((bool, bool), bool, bool) -> Source) -> Vec<Source> {
    let mut sources = Vec::new();
    for wanted in WANTED {
        for sum in BOTH {
            sources.extend(BOTH.map(|option| source(wanted, sum, option)));
        }
    }
    sources
}

/// The lengths of heads that are checked.
const HEAD_DIMS: [u32; 3] = [16, 64, 128];

/// A rotation of queries alone.
fn plain(head_dim: u32) -> RopeKey {
    RopeKey {
        head_dim,
        query: true,
        append: None,
        norm_q: false,
        norm_k: false,
        rotate: None,
        hadamard: false,
    }
}

/// Both orders of pairs, of whole heads and of parts of them.
pub(super) fn rope(caps: &Caps) -> Vec<Source> {
    let mut sources = Vec::new();
    for head_dim in HEAD_DIMS {
        for pairs in [Pairs::Interleaved, Pairs::Halves] {
            for dims in [head_dim, head_dim / 2, 6] {
                let key = RopeKey { rotate: Some((pairs, dims)), ..plain(head_dim) };
                sources.push(key.source(caps));
            }
        }
    }
    sources
}

/// Append, attention and its merge, of every type of cache.
pub(super) fn attend(caps: &Caps) -> Vec<Source> {
    let mut sources = Vec::new();
    for head_dim in HEAD_DIMS {
        let types = TYPES.map(|(ty, _)| CacheType::of(ty, head_dim as usize));
        let types: Vec<CacheType> = types.into_iter().flatten().collect();
        for (at, &ty) in types.iter().enumerate() {
            let other = types[(at + 1) % types.len()];
            let append =
                RopeKey { query: false, append: Some((ty, Some(other))), ..plain(head_dim) };
            let fused = RopeKey {
                query: true,
                norm_q: true,
                norm_k: true,
                rotate: Some((Pairs::Halves, head_dim)),
                ..append
            };
            let of_keys = RopeKey { append: Some((ty, None)), ..append };
            sources.extend([append, fused, of_keys].map(|key| key.source(caps)));
            if ty.is_in_blocks() && head_dim as usize == 2 * BLOCK {
                sources.push(RopeKey { hadamard: true, ..fused }.source(caps));
            }
            let split = split(head_dim, ty, other);
            // Most models have halves in both.
            let values = if ty.name() == "f16" { vec![other, ty] } else { vec![other] };
            for value in values {
                sources.extend(split_tiles(caps, SplitKey { value: Some(value), ..split }));
            }
            for rows in [1, 4] {
                let in_keys = SplitKey { value_dim: head_dim - 8, value: None, ..split };
                sources.push(in_keys.tiled(caps, 16, rows).source(caps));
            }
            let biases = [None, Some(Bias::Slopes), Some(Bias::Table { reach: 128 })];
            for bias in biases {
                let both = SplitKey { key: CacheType::F32, value: Some(CacheType::F32), ..split };
                let both = SplitKey { both_ways: true, bias, ..both };
                sources.extend([1, 8].map(|rows| both.tiled(caps, 1, rows).source(caps)));
            }
            for bias in &biases[1..] {
                let biased = SplitKey { softcap: true, sinks: true, bias: *bias, ..split };
                sources.push(biased.tiled(caps, 4, 1).source(caps));
            }
        }
        for (floats, quantized) in WANTED {
            for sinks in BOTH {
                sources.push(MergeKey { head_dim, sinks, floats, quantized }.source(caps));
            }
        }
    }
    // Of other lengths the two types of cache that are used most.
    for head_dim in [80, 96, 192, 256] {
        let types = [Type::F16, Type::Q8_0].map(|ty| CacheType::of(ty, head_dim as usize));
        for ty in types.into_iter().flatten() {
            sources.extend(split_tiles(caps, split(head_dim, ty, ty)));
        }
    }
    sources.extend(attend_coop(caps));
    sources
}

/// Causal attention to caches of these types, to be tiled.
fn split(head_dim: u32, key: CacheType, value: CacheType) -> SplitKey {
    SplitKey { value: Some(value), ..SplitKey::plain(key, head_dim as usize) }
}

/// For prefill and decode, with few and many query heads for a key head.
fn split_tiles(caps: &Caps, split: SplitKey) -> [Source; 3] {
    [(1, 8, false), (4, 1, true), (7, 4, false)].map(|(group, rows, special)| {
        let split = SplitKey { softcap: special, sinks: special, ..split };
        split.tiled(caps, group, rows).source(caps)
    })
}

/// Attention with cooperative matrices: heads of f16 of several lengths, and every type of cache that it takes.
fn attend_coop(caps: &Caps) -> Vec<Source> {
    let of_halves =
        Caps { tile: Tile { input: Input::Halves, rows: 64, columns: 64 }, ..caps.clone() };
    let of = |head_dim, ty, group, special| {
        let ty = CacheType::of(ty, head_dim as usize)?;
        let key = SplitKey { softcap: special, sinks: special, ..split(head_dim, ty, ty) };
        Some(key.tiled_coop(&of_halves, group)?.source(caps))
    };
    let lengths = [64, 80, 96, 128, 192, 256].into_iter();
    let options = lengths.flat_map(|dim| [(1, false), (4, true)].map(|option| (dim, option)));
    let floats = options.filter_map(|(dim, (group, special))| of(dim, Type::F16, group, special));
    let types = TYPES.into_iter().map(|(ty, _)| ty).filter(|ty| *ty != Type::F16);
    floats.chain(types.filter_map(|ty| of(128, ty, 4, false))).collect()
}

/// Types with a loader.
fn native() -> impl Iterator<Item = Type> {
    bilayer_quant::all().iter().copied().filter(|ty| is_native(*ty))
}

/// Tables of every type with a loader.
pub(super) fn embed(caps: &Caps) -> Vec<Source> {
    native().map(|ty| EmbedKey { ty, layout: Layout::of(ty) }.source(caps)).collect()
}

/// Products of every type with a loader, those with experts' matrices included.
pub(super) fn products(caps: &Caps) -> Vec<Source> {
    let mut sources = Vec::new();
    for ty in native() {
        for columns in [1, 2, 4, COLUMNS_MAX] {
            sources.extend(products_of(caps, ty, columns));
        }
        // Which tiles are the fastest is measured.
        for tile in caps.tiles() {
            let caps = Caps { tile, ..caps.clone() };
            let columns = columns_tiled(&caps, input_of(&caps, ty, COLUMNS_TILED));
            sources.extend(products_of(&caps, ty, columns));
        }
    }
    sources
}

/// Products that apply the factor of a norm, or emit the next product's input.
fn emitting(caps: &Caps, keys: &[GemvKey]) -> Vec<Source> {
    let mut sources = Vec::new();
    for &key in keys {
        sources.push(GemvKey { scaled: true, ..key }.source(caps));
        let emits = match key.epilogue {
            Epilogue::Plain => &[][..],
            Epilogue::Gate(_) => &[Emit::Quantized],
            Epilogue::Residual => &[Emit::Norm(Input::Floats), Emit::Norm(Input::Quantized)],
        };
        for &emit in emits.iter().filter(|emit| caps.dot4 || **emit == Emit::Norm(Input::Floats)) {
            let key = GemvKey { rows: rows_emitting(caps, key.rows), emit, ..key };
            let other = match emit {
                Emit::Quantized => GemvKey { scaled: true, ..key },
                _ => GemvKey { bias: false, ..key },
            };
            sources.extend([key, other].map(|key| key.source(caps)));
        }
    }
    sources
}

fn products_of(caps: &Caps, ty: Type, columns: u32) -> Vec<Source> {
    let mut sources = Vec::new();
    for many in BOTH {
        let input = input_of(caps, ty, columns);
        let matrix_rows = if many { 1 << 16 } else { 1 };
        let rows = rows_of(caps, input, columns, Epilogue::Plain, matrix_rows);
        let plain = GemvKey::plain(ty, columns, rows, input);
        let gate = Epilogue::Gate(Activation::Silu);
        let gated = GemvKey { rows: (rows / 2).max(1), matrices: 2, epilogue: gate, ..plain };
        let residual = GemvKey { epilogue: Epilogue::Residual, bias: true, ..plain };
        let three = GemvKey { matrices: 3, ..plain };
        let keys = [plain, gated, residual, three];
        sources.extend(keys.map(|key| key.source(caps)));
        // A single row may take floats where several take integers.
        let mut few = keys.to_vec();
        if columns == 1 && input == Input::Quantized {
            let floats = keys.map(|key| GemvKey { input: Input::Floats, ..key });
            sources.extend(floats.map(|key| key.source(caps)));
            few.extend(floats);
        }
        if columns <= caps.emit_columns() {
            few.push(GemvKey { bias: true, ..plain });
            sources.extend(emitting(caps, &few));
        }
        // Products of experts: single, or in groups of all sizes with a kernel.
        let chosen = match columns {
            1 => Chosen::Pair,
            COLUMNS_MAX | COLUMNS_TILED => Chosen::Group,
            _ => continue,
        };
        let experts = GemvKey { chosen, ..plain };
        let floats = rows_of(caps, Input::Floats, columns, Epilogue::Plain, matrix_rows);
        let ragged =
            GemvKey { bias: true, input: Input::Floats, ragged: true, rows: floats, ..experts };
        let gated = GemvKey { chosen, ..gated };
        let factors = GemvKey { factors: true, ..experts };
        sources.extend([experts, ragged, gated, factors].map(|key| key.source(caps)));
    }
    sources
}
