//! Unpacked weights as bytes with scales: one unpacking per quantized type.
//!
//! Blocks of at most [`SPAN`] columns of one row are unpacked to a [`Span`], in vectors of a level; `types/` states
//! where their bits lie. The tiles then interleave spans in the order of their instructions. Most types take a
//! shorter way, several rows side by side (`panel/side_by_side.rs`, `panel/quads.rs`).

use std::marker::PhantomData;

use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};

use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
use crate::stream::PanelRows;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod floats;
mod layout;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
pub(crate) mod quads;
pub(crate) mod rounded;
#[cfg(target_arch = "x86_64")]
pub(crate) mod side_by_side;
mod sparse;
pub(crate) mod stored;
#[cfg(target_arch = "x86_64")]
mod tiles;

use crate::activations::SPAN;
use crate::bytes::NarrowBytes;
use crate::types::{self, for_each_type};
#[cfg(target_arch = "x86_64")]
use amx::FillTiles;
pub(crate) use layout::{Adjust, Fill, FloatPanel, Mins, Panel, ROWS};
use stored::{OfBlocks, OfQuads};

/// The unpacking of a type with blocks of 256, with its fast paths.
macro_rules! super_block {
    (q4_k::Q4K) => {
        super_block!(q4_k::Q4K, Some(tiles::fill_q4_k))
    };
    (q6_k::Q6K) => {
        super_block!(q6_k::Q6K, Some(tiles::fill_q6_k))
    };
    ($stem:ident::$type:ident) => {
        super_block!($stem::$type, None)
    };
    ($stem:ident::$type:ident, $fill_tiles:expr) => {{
        let quants = Quants::of::<OfBlocks<types::$stem::$type>>();
        #[cfg(target_arch = "x86_64")]
        let quants = side_by_side::with_fills::<
            types::$stem::$type,
            { <types::$stem::$type as types::SuperBlock>::BYTES },
        >(Quants { fill_tiles: $fill_tiles, ..quants });
        Some(quants)
    }};
}

/// The unpacking of a type with blocks of 32; one activation scale per 32 does not go with scales of 16.
macro_rules! quads {
    ($stem:ident::$type:ident) => {
        match <types::$stem::$type as types::Quads>::GROUP {
            32 => {
                let quants = Quants::of::<OfQuads<types::$stem::$type>>();
                #[cfg(target_arch = "x86_64")]
                let quants = quads::with_fills::<
                    types::$stem::$type,
                    { 8 * <types::$stem::$type as types::Quads>::BLOCK },
                >(quants);
                Some(quants)
            }
            _ => None,
        }
    };
}
use super_block as both;

/// All dense types; those without an unpacking are dequantized to f32.
macro_rules! table {
    ($($ty:ident $stem:ident::$type:ident $family:ident;)*) => {
        &[$((Type::$ty, $family!($stem::$type)),)*]
    };
}
static TABLE: &[(Type, Option<Quants>)] = for_each_type!(table);

fn all() -> impl Iterator<Item = (Type, &'static Quants)> {
    let dense = TABLE.iter().filter_map(|(ty, quants)| Some((*ty, quants.as_ref()?)));
    dense.chain(sparse::TABLE.iter().map(|(ty, quants)| (*ty, quants)))
}

/// The unpacking of a type, if it has one.
pub(crate) fn quants(ty: Type) -> Option<&'static Quants> {
    all().find(|(known, _)| *known == ty).map(|(_, quants)| quants)
}

/// The unpacking of a type to rounded spans (`panel/rounded.rs`); `None` for types without integer products that are not
/// floats.
pub(crate) fn round(ty: Type) -> Option<UnpackRows> {
    quants(ty).map(|quants| quants.round).or_else(|| floats::round(ty))
}

/// Up to [`SPAN`] consecutive weights of a row: weight i = `unit · scales[i / g] · quants[i] + min_unit · mins[i /
/// g]`, where g weights share a scale. Signed types ignore the minimums and store their quants biased by
/// [`Quants::bias`]: weight i = `unit · scales[i / g] · (quants[i] - bias)`.
///
/// For K types, scales (-128 to 127) and minimums are the stored integers; for all others the units are 1.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Span {
    /// The integers, in column order.
    pub quants: [u8; SPAN],
    /// A factor per group of g.
    pub scales: [f32; 16],
    /// An addend per group of g.
    pub mins: [f32; 16],
    /// The unit of the scales.
    pub unit: f32,
    /// The unit of the addends.
    pub min_unit: f32,
    /// Padding to whole cache lines.
    pub unused: [f32; 14],
}

/// The scale structure of a type, and the matching quantization of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Signed weights in groups of 32, one activation scale per 32.
    Signed32,
    /// Weights with minimums in groups of 32, one activation scale per 32.
    Affine32,
    /// Signed weights in groups of 32, one activation scale per 256.
    Signed32K,
    /// Weights with minimums in groups of 32, one activation scale per 256.
    Affine32K,
    /// Signed weights in groups of 16, one activation scale per 256.
    Signed16K,
    /// Weights with minimums in groups of 16, one activation scale per 256.
    Affine16K,
    /// Signed weights in groups of 256, one activation scale per 256.
    Signed256K,
}

impl Form {
    /// Number of weights that share a scale.
    pub const fn group(self) -> usize {
        match self {
            Form::Signed32 | Form::Affine32 | Form::Signed32K | Form::Affine32K => 32,
            Form::Signed16K | Form::Affine16K => 16,
            Form::Signed256K => SPAN,
        }
    }

    /// Whether quants are signed and biased, instead of having minimums.
    pub const fn is_signed(self) -> bool {
        matches!(self, Form::Signed32 | Form::Signed32K | Form::Signed16K | Form::Signed256K)
    }

    /// Whether activations have one scale per 256 columns.
    pub const fn is_per_256(self) -> bool {
        !matches!(self, Form::Signed32 | Form::Affine32)
    }
}

/// A type's file in `panel/`.
pub(crate) trait Unpack {
    /// The scale structure.
    const FORM: Form;
    /// The bias of signed quants; 0 if there are minimums.
    const BIAS: u8;
    /// The largest quant as stored in a span.
    const HIGHEST: u8;

    /// Unpacks the blocks of one row's next columns, at most [`SPAN`], in vectors of a level.
    fn unpack<V: NarrowBytes>(blocks: &[u8], span: &mut Span);
}

/// Unpacks rows to as many spans with the instructions of a level that this CPU has.
pub(crate) type UnpackRows = fn(level: Level, rows: PanelRows<'_>, spans: &mut [Span]);

/// The unpacking of one type.
#[derive(Clone, Copy)]
pub(crate) struct Quants {
    /// The scale structure.
    pub form: Form,
    /// The bias of signed quants.
    pub bias: u8,
    /// The largest quant as stored.
    pub highest: u8,
    /// The fast path into the panels of AVX2, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub fill_avx2: Option<Fill>,
    /// The fast path into the panels of AVX-VNNI, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub fill_avxvnni: Option<Fill>,
    /// The fast path into the panels of AVX-512, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub fill: Option<Fill>,
    /// The fast path into AMX tiles, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub fill_tiles: Option<FillTiles>,
    /// The way through spans, of any number of rows and columns.
    pub unpack: UnpackRows,
    /// [`Quants::unpack`] of whole spans, rounded (`panel/rounded.rs`).
    pub round: UnpackRows,
}

impl Quants {
    /// Of spans with rounded weights, in one of the signed forms with one activation scale per 256.
    pub fn rounded(round: UnpackRows, form: Form) -> Quants {
        Quants::new(form, [rounded::BIAS, u8::MAX], [round; 2])
    }

    const fn of<U: Unpack>() -> Quants {
        Quants::new(
            U::FORM,
            [U::BIAS, U::HIGHEST],
            [to_spans::<U>, |level, rows, spans| {
                to_spans::<U>(level, rows, spans);
                rounded::round_exact(level, U::FORM, U::BIAS, spans);
            }],
        )
    }

    /// Without fast paths.
    const fn new(form: Form, [bias, highest]: [u8; 2], [unpack, round]: [UnpackRows; 2]) -> Quants {
        Quants {
            form,
            bias,
            highest,
            #[cfg(target_arch = "x86_64")]
            fill_avx2: None,
            #[cfg(target_arch = "x86_64")]
            fill_avxvnni: None,
            #[cfg(target_arch = "x86_64")]
            fill: None,
            #[cfg(target_arch = "x86_64")]
            fill_tiles: None,
            unpack,
            round,
        }
    }
}

/// Unpacks rows to spans.
fn to_spans<U: Unpack>(level: Level, rows: PanelRows<'_>, spans: &mut [Span]) {
    transform(level, ToSpans::<U>(rows, PhantomData), spans);
}

struct ToSpans<'a, U>(PanelRows<'a>, PhantomData<U>);

impl<U: Unpack> Transform for ToSpans<'_, U> {
    type Out = [Span];

    #[inline(always)]
    fn run<L: Lanes>(self, _l: L, spans: &mut [Span]) {
        for (row, span) in spans.iter_mut().enumerate() {
            U::unpack::<L::Bytes>(self.0.row(row), span);
        }
    }
}

/// The values of f16 bits, without branches and without subnormal f32 intermediates (which cost a hundred cycles
/// each, and the scales of Q6_K are often subnormal f16).
#[inline(always)]
pub(crate) fn f16_values<const N: usize>(bits: [u16; N]) -> [f32; N] {
    const REBIAS: u32 = 112 << 23;
    let mut values = [0.0; N];
    for (value, bits) in values.iter_mut().zip(bits) {
        let magnitude = u32::from(bits & 0x7fff);
        let subnormal = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
        let normal = (magnitude << 13) + REBIAS;
        let special = normal + REBIAS;
        let finite = if magnitude < 0x0400 { subnormal } else { normal };
        let found = if magnitude < 0x7c00 { finite } else { special };
        *value = f32::from_bits(found | u32::from(bits & 0x8000) << 16);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random bytes.
    fn noise(count: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn every_f16_has_its_value() {
        for bits in 0..=u16::MAX {
            let [value] = f16_values([bits]);
            let expected = half::f16::from_bits(bits).to_f32();
            assert!(value == expected || value.is_nan() && expected.is_nan(), "{bits:04x}");
        }
    }

    /// Three rows of a type: bytes per row, all bytes, and their weights.
    fn three_rows(ty: Type, cols: usize) -> (usize, Vec<u8>, Vec<f32>) {
        let row_bytes = cols / ty.block_weights * ty.block_bytes;
        let mut weights: Vec<f32> = noise(3 * cols, 7)
            .into_iter()
            .enumerate()
            .map(|(i, byte)| (f32::from(byte) - 100.0) * (1 + i / 32 % 5) as f32)
            .collect();
        let mut bytes = vec![0; 3 * row_bytes];
        ty.quantize(&weights, None, &mut bytes).expect("whole finite blocks");
        ty.dequantize(&bytes, &mut weights).expect("whole blocks");
        (row_bytes, bytes, weights)
    }

    #[test]
    fn rounded_spans_are_within_half_a_step_of_the_weights() {
        for (ty, quants) in all() {
            let (row_bytes, bytes, weights) = three_rows(ty, SPAN);
            for level in Level::available() {
                let mut spans = [Span::zeroed(); 3];
                let rows = PanelRows { weights: &bytes, row_bytes, start: 0, len: row_bytes };
                (quants.round)(level, rows, &mut spans);
                for (span, weights) in spans.iter().zip(weights.chunks_exact(SPAN)) {
                    let largest = weights.iter().fold(0.0f32, |most, w| most.max(w.abs()));
                    for (quant, weight) in span.quants.iter().zip(weights) {
                        let found = span.unit * (f32::from(*quant) - f32::from(rounded::BIAS));
                        let bound = largest / 254.0 * 1.001;
                        assert!((found - weight).abs() <= bound, "{ty} {level}: {found} {weight}");
                    }
                }
            }
        }
    }

    #[test]
    fn spans_spell_what_dequantizing_gives() {
        for (ty, quants) in all() {
            for cols in [32, 96, 256].into_iter().filter(|cols| cols % ty.block_weights == 0) {
                let (row_bytes, bytes, expected) = three_rows(ty, cols);
                for level in Level::available() {
                    let mut spans = [Span::zeroed(); 3];
                    let rows = PanelRows { weights: &bytes, row_bytes, start: 0, len: row_bytes };
                    (quants.unpack)(level, rows, &mut spans);
                    for (i, expected) in expected.iter().enumerate() {
                        let (span, col) = (&spans[i / cols], i % cols);
                        let (q, group) = (span.quants[col], col / quants.form.group());
                        assert!(q <= quants.highest, "{ty} {level}");
                        let scale = span.unit * span.scales[group];
                        let found = if quants.form.is_signed() {
                            scale * (f32::from(q) - f32::from(quants.bias))
                        } else {
                            scale * f32::from(q) + span.min_unit * span.mins[group]
                        };
                        let bound = 1e-5 * expected.abs().max(scale.abs() * 32.0);
                        assert!((found - expected).abs() <= bound, "{ty} {level} {i}");
                    }
                }
            }
        }
    }

    /// Types whose codes are no fields of their blocks, and the sparse ones.
    #[cfg(target_arch = "x86_64")]
    const NEVER_FILLED: &[Type] = &[
        Type::IQ1_S,
        Type::IQ1_M,
        Type::IQ2_XXS,
        Type::IQ2_XS,
        Type::IQ2_S,
        Type::IQ3_XXS,
        Type::IQ3_S,
        Type::TQ1_0,
        Type::S4_4_64,
        Type::S4_8_64,
        Type::S4_12_64,
        Type::S4_16_64,
        Type::S4_24_64,
        Type::S4_32_64,
        Type::S8_4_64,
        Type::S8_8_64,
        Type::S8_12_64,
        Type::S8_16_64,
        Type::S8_24_64,
        Type::S8_32_64,
    ];

    /// Types with blocks of 32.
    #[cfg(target_arch = "x86_64")]
    const BLOCKS_OF_32: &[Type] =
        &[Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q8_0, Type::IQ4_NL, Type::MXFP4];

    /// Whoever loses a fast path, or gains one, is told. No CPU is needed for it.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn types_without_a_fast_path_into_panels_are_listed() {
        use crate::tile::Tiling;

        for (level, more) in [
            (Level::Avx2, &[Type::TQ2_0][..]),
            (Level::AvxVnni, BLOCKS_OF_32),
            (Level::Avx512Vnni, &[]),
            (Level::Avx512Bf16, &[]),
            (Level::Amx, &[]),
        ] {
            let fill = Tiling::of(level).fill;
            for (ty, quants) in all() {
                let is_listed = NEVER_FILLED.contains(&ty) || more.contains(&ty);
                assert_eq!(fill(quants).is_none(), is_listed, "{ty} {level}");
            }
        }
        for level in [Level::Scalar, Level::Sse42] {
            let fill = Tiling::of(level).fill;
            assert!(all().all(|(_, quants)| fill(quants).is_none()), "{level}");
        }
        assert!(quants(Type::NVFP4).is_none(), "one scale per 16 has no panels");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_short_way_into_a_panel_ends_where_the_long_one_does() {
        use crate::stream::Ahead;
        use crate::tile::Tiling;

        // 16-bit integers in place of a float may look like a NaN.
        let equal = |long: &[f32], short: &[f32]| {
            let mut both = long.iter().zip(short);
            both.all(|(long, short)| long == short || long.to_bits() == short.to_bits())
        };
        for level in Level::available() {
            let tiling = Tiling::of(level);
            for (ty, quants) in all() {
                let Some(fill) = (tiling.fill)(quants) else { continue };
                // Three spans per row, of which the second is requested.
                let len = SPAN / ty.block_weights * ty.block_bytes;
                let (row_bytes, start) = (3 * len, len);
                let bytes = finite_blocks(ty, 3 * 16 * len / ty.block_bytes);
                let rows = PanelRows { weights: &bytes, row_bytes, start, len };
                let tiles = (tiling.tiles)(quants);
                for first in (0..tiling.panel_rows(quants)).step_by(16) {
                    let (mut spans, mut long, mut short) =
                        ([Span::zeroed(); 16], Panel::zeroed(), Panel::zeroed());
                    // SAFETY: the level is available.
                    unsafe {
                        (quants.unpack)(level, rows, &mut spans);
                        (tiles.interleave)(&spans, first, tiles.adjust, &mut long);
                        fill(rows, Ahead::of(&[]), first, &mut short);
                    }
                    assert!(long.quants == short.quants, "{ty}: quants");
                    for (name, long, short) in [
                        ("scales", long.scales.as_flattened(), short.scales.as_flattened()),
                        ("minimums", long.mins.as_flattened(), short.mins.as_flattened()),
                        ("units", long.units.as_flattened(), short.units.as_flattened()),
                    ] {
                        assert!(equal(long, short), "{ty} {level}: {name}");
                    }
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_short_way_into_tiles_ends_where_the_long_one_does() {
        use crate::panel::amx::TileBytes;
        use crate::tile::amx;

        if !Level::Amx.is_available() {
            return;
        }
        for (ty, quants) in all() {
            let Some(fill) = quants.fill_tiles else { continue };
            let bytes = finite_blocks(ty, 3 * 16);
            let (row_bytes, start) = (3 * ty.block_bytes, ty.block_bytes);
            let rows = PanelRows { weights: &bytes, row_bytes, start, len: start };
            for count in [1, 7, 16] {
                let (mut long, mut short) = ([[7; 1024]; 8], [[7; 1024]; 8]);
                let mut spans = [Span::zeroed(); 16];
                // SAFETY: the level is available.
                unsafe {
                    (quants.unpack)(Level::Amx, rows, &mut spans[..count]);
                    for (row, span) in spans[..count].iter().enumerate() {
                        amx::put_span(span, quants.form, quants.bias, row, &mut long);
                    }
                    fill(rows, count, &mut short);
                }
                // Zeros may differ in sign.
                let values = |tiles: &[TileBytes; 8]| {
                    let words = bytemuck::cast_slice::<u8, u16>(tiles.as_flattened());
                    words.iter().map(|bits| if bits & 0x7fff == 0 { 0 } else { *bits }).collect()
                };
                let (long, short): (Vec<u16>, Vec<u16>) = (values(&long), values(&short));
                assert!(long == short, "{ty}, {count} rows");
            }
        }
    }

    /// Random blocks without infinite weights.
    #[cfg(target_arch = "x86_64")]
    fn finite_blocks(ty: Type, count: usize) -> Vec<u8> {
        let mut bytes = noise(count * ty.block_bytes, 3);
        for block in bytes.chunks_exact_mut(ty.block_bytes) {
            let mut values = vec![0.0; ty.block_weights];
            ty.dequantize(block, &mut values).expect("a block");
            if values.iter().any(|value| !value.is_finite()) {
                block.fill(0x31);
            }
        }
        bytes
    }
}
