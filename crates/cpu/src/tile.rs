//! GEMM micro-kernels: a panel of weights times a tile of tokens, per instruction level.
//!
//! All but AMX process 32 rows side by side: a vector holds rows, activations are broadcast, and the results of a
//! token are 32 consecutive f32. Integer tiles read a [`Panel`], float tiles a [`FloatPanel`]; both stay in the inner
//! caches while they are swept over all tiles of tokens.

use std::ops::Range;

use bilayer_quant::Type;

#[cfg(target_arch = "x86_64")]
use crate::activations::Parts;
use crate::activations::{Block, Format, SPAN};
use crate::level::{Level, by_level};
use crate::panel::{Adjust, Fill, FloatPanel, Form, Panel, Quants, ROWS, Span};
use crate::stream::{Ahead, prefetch_lines};
use fused::Fused;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_wide;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
mod float;
pub(crate) mod fused;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod sse42;
pub(crate) mod whole_row;

/// Asserts that a strip holds `rows` results of each of `tokens` tokens.
#[inline(always)]
pub(crate) fn check_strip(strip: &[f32], stride: usize, tokens: usize, rows: usize) {
    assert!(tokens > 0 && stride >= rows && strip.len() >= (tokens - 1) * stride + rows);
}

/// Hides two addresses from the optimizer: reads through them happen after this line. Otherwise the compiler hoists
/// the loads of many steps and runs out of registers, which halves the speed.
#[inline(always)]
#[cfg_attr(
    not(any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(unused_mut, reason = "only these assemblers change them")
)]
pub(crate) fn in_order<A, B>(mut a: *const A, mut b: *const B) -> (*const A, *const B) {
    // SAFETY: there are no instructions.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    unsafe {
        std::arch::asm!("/* {0} {1} */", inout(reg) a, inout(reg) b, options(nostack, preserves_flags));
    }
    (a, b)
}

/// Evaluates an expression with `$n` as the constant number of tokens, at most `$max`, which is at most 8.
macro_rules! by_tokens {
    ($tokens:expr, $n:ident up to $max:expr => $call:expr) => {
        by_tokens!(@ $tokens, $n, $max, $call, [1 2 3 4 5 6 7 8])
    };
    (@ $tokens:expr, $n:ident, $max:expr, $call:expr, [$($count:literal)+]) => {
        match $tokens {
            // Constant conditions: no code is made for more.
            $($count => {
                if const { $count <= $max } {
                    const $n: usize = $count;
                    $call
                } else {
                    unreachable!("a tile has no {} tokens", $count)
                }
            })+
            tokens => unreachable!("a tile has no {tokens} tokens"),
        }
    };
}
pub(crate) use by_tokens;

/// Interleaves 16 rows' spans into the panel's rows `first..first + 16`.
pub(crate) type Interleave =
    unsafe fn(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel);

/// One span of 32 rows times a tile of tokens.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// The weights.
    pub panel: &'a Panel,
    /// The packed activations.
    pub block: Block<'a>,
    /// Lines to prefetch meanwhile.
    pub ahead: Ahead,
    /// Distance from a token's 32 results to those of the next.
    pub stride: usize,
}

/// Adds a product to `strip`.
pub(crate) type Tile = unsafe fn(product: Product<'_>, strip: &mut [f32]);

/// The integer kernels of a level for a form. Unsafe to call on a CPU without the level.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub adjust: Adjust,
    pub interleave: Interleave,
    pub tile: Tile,
}

/// Adds panel x activations to `strip`, like [`Tile`].
pub(crate) type FloatTile = unsafe fn(
    panel: &[[f32; ROWS]],
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
);

/// Packed f32 activations `[panel.len(), tokens]`.
#[derive(Clone, Copy)]
pub(crate) struct FloatActivations<'a> {
    pub values: &'a [f32],
    pub tokens: usize,
    /// Prefetch distance in bytes.
    pub ahead: usize,
}

impl FloatActivations<'_> {
    /// Prefetches the values needed soon.
    #[inline(always)]
    pub fn fetch(self) {
        let start = self.values.as_ptr().cast::<u8>().wrapping_add(self.ahead);
        prefetch_lines(start, (4 * self.values.len()).div_ceil(64));
    }
}

/// The float kernels of a level. Unsafe to call on a CPU without the level.
#[derive(Clone, Copy)]
pub(crate) struct FloatTiles {
    /// Columns per panel. More columns mean fewer tile starts, but use more of the inner caches.
    pub cols: usize,
    pub interleave: FloatInterleave,
    pub tile: FloatTile,
}

/// Interleaves columns `cols` of 16 rows, each [`SPAN`] long, into the panel's rows `first..first +
/// 16`.
pub(crate) type FloatInterleave =
    unsafe fn(rows: &[[f32; SPAN]], cols: Range<usize>, first: usize, panel: &mut FloatPanel);

/// Number of tokens from which panels may be asked for every type: [`Tiling::tokens_min`] is at most this.
pub(crate) const TOKENS_MIN_MAX: usize = bilayer_graph::EXACT_ROWS_MAX + 1;

/// What a level multiplies matrices with: its row of the table of levels, as far as this module sees it.
pub(crate) struct Tiling {
    /// Names of the integer and the float kernels.
    pub names: [&'static str; 2],
    /// Maximum tokens per tile of an activation format, limited by the level's registers.
    pub tokens_max: fn(Format) -> usize,
    /// Maximum tokens of a chunk of int8 with a scale that is the only one, if more.
    pub tokens_alone: usize,
    /// The activation format for a type's weights.
    pub format: fn(&Quants) -> Format,
    /// The integer kernels of a type.
    pub tiles: fn(&Quants) -> Tiles,
    /// The float kernels.
    pub float_tiles: FloatTiles,
    /// Float kernels in which each value of panel and activations is the bits of a pair of bf16, for weights in BF16.
    pub pair_tiles: Option<FloatTiles>,
    /// The kernels of rows with one scale.
    pub row_tiles: whole_row::RowTiles,
    /// The fast path of a type into panels, if there is one. It requires 16 complete rows and 256 columns.
    pub fill: fn(&Quants) -> Option<Fill>,
    /// The kernel of a type for few tokens, if there is one. It requires 32 complete rows of whole 256 columns.
    pub fused: fn(Type) -> Option<Fused>,
    /// Number of tokens from which panels with a fast path are faster than [`crate::dot`].
    pub tokens_min: fn(&Quants) -> usize,
    /// How prompts are multiplied with rounded weights (`panel/rounded.rs`) of a type, or of floats, where that is faster.
    pub rounding: fn(Option<&Quants>) -> Option<Rounding>,
    /// Whether products of many tokens run on AMX tiles.
    pub has_matrix_unit: bool,
}

/// Products with rounded weights at a level.
#[derive(Clone, Copy)]
pub(crate) struct Rounding {
    /// The form of the panels: with one scale per 256, or with integer scales, which are 1.
    pub form: Form,
    /// Number of tokens from which they are faster than exact ones.
    pub tokens_min: usize,
}

/// [`Tiling::rounding`] of levels that gain nothing from it.
pub(crate) fn never(_: Option<&Quants>) -> Option<Rounding> {
    None
}

/// The row of a level.
pub(crate) trait Tiled {
    /// The row.
    const TILING: Tiling;
}

impl Tiling {
    /// The row of a level.
    pub fn of(level: Level) -> &'static Tiling {
        by_level!(level, Row => &<Row as Tiled>::TILING)
    }

    /// The activation format for a type's weights.
    pub fn format(&self, quants: &Quants) -> Format {
        (self.format)(quants)
    }

    /// The activation format for weights of a type that are multiplied as floats.
    pub fn float_format(&self, ty: Type) -> Format {
        match ty == Type::BF16 && self.pair_tiles.is_some() {
            #[cfg(target_arch = "x86_64")]
            true => Format::Bf16,
            _ => Format::F32,
        }
    }

    /// Rows of a panel of a type: 32, or 16 with codes of 16 bits.
    pub fn panel_rows(&self, quants: &Quants) -> usize {
        match self.format(quants) {
            #[cfg(target_arch = "x86_64")]
            Format::Q12x256 => ROWS / 2,
            _ => ROWS,
        }
    }
}

/// [`Tiling::format`] of most levels: eight bits, with a scale for as many columns as the weights' form has.
fn format_of_form(quants: &Quants) -> Format {
    if quants.form.is_per_256() { Format::Q8x256 } else { Format::Q8x32 }
}

/// [`Tiling::tokens_min`] of most levels.
fn few_columns(_: &Quants) -> usize {
    5
}

/// A form's relation of activations to weights, for generic tiles.
pub(crate) trait Shape {
    /// The form.
    const FORM: Form;
    /// Steps of four columns per scale.
    const STEPS: usize = Self::FORM.group() / 4;
    /// Whether the activations' sums initialize the integer sums.
    const SIGNED: bool = Self::FORM.is_signed();
    /// Whether activations have one scale per 256 columns.
    const PER_256: bool = Self::FORM.is_per_256();
    /// Number of packed sums per group.
    const SUMS: usize = if Self::PER_256 { Self::STEPS / 4 } else { 1 };
    /// Whether the minimums are multiplied with f32 sums.
    const FLOAT_SUMS: bool = matches!(Self::FORM, Form::Affine32K);
}

macro_rules! shapes {
    ($($name:ident),*) => {$(
        #[doc = concat!("[`Form::", stringify!($name), "`].")]
        pub(crate) struct $name;
        impl Shape for $name {
            const FORM: Form = Form::$name;
        }
    )*};
}

shapes!(Signed32, Affine32, Signed32K, Affine32K, Signed16K, Affine16K, Signed256K);

/// `$function::<Shape>` for the form `$form`.
macro_rules! by_form {
    ($form:expr, $function:ident) => {
        match $form {
            crate::panel::Form::Signed32 => $function::<crate::tile::Signed32>,
            crate::panel::Form::Affine32 => $function::<crate::tile::Affine32>,
            crate::panel::Form::Signed32K => $function::<crate::tile::Signed32K>,
            crate::panel::Form::Affine32K => $function::<crate::tile::Affine32K>,
            crate::panel::Form::Signed16K => $function::<crate::tile::Signed16K>,
            crate::panel::Form::Affine16K => $function::<crate::tile::Affine16K>,
            crate::panel::Form::Signed256K => $function::<crate::tile::Signed256K>,
        }
    };
}
pub(crate) use by_form;

/// Initial values of the integer sums of a group, per token: zero if not signed.
///
/// # Safety
/// The parts are those of a block of N tokens in the shape's format that has this group.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn starts<S: Shape, const N: usize>(parts: &Parts, group: usize) -> [i32; N] {
    let mut starts = [0; N];
    if S::SIGNED {
        for (t, start) in starts.iter_mut().enumerate() {
            for sum in 0..S::SUMS {
                // SAFETY: a block has `SUMS` sums for each of its groups and tokens.
                *start += unsafe { *parts.sums.add((group * S::SUMS + sum) * N + t) };
            }
        }
    }
    starts
}
