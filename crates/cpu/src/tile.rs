//! GEMM micro-kernels: a panel of weights times a tile of tokens, per instruction level.
//!
//! All but AMX process 32 rows side by side: a vector holds rows, activations are broadcast, and the results of a
//! token are 32 consecutive f32. Integer tiles read a [`Panel`], float tiles a [`FloatPanel`]; both stay in the inner
//! caches while they are swept over all tiles of tokens.

use bytemuck::{Pod, Zeroable};

use crate::gemm::packing::{Block, Format};
use crate::level::Level;
use crate::panel::{Ahead, Form, PanelRows, Quants, Span, prefetch_lines};

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_f32;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_f32;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_f32;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod scalar;

/// Rows of a panel.
pub(crate) const ROWS: usize = 32;

/// At most 256 columns of 32 rows, with four columns of a row adjacent as required by integer dot products.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Panel {
    /// `[columns / 4, rows, 4]`.
    pub quants: [[[u8; 4]; ROWS]; 64],
    /// `[groups, rows]`.
    pub scales: [[f32; ROWS]; 16],
    /// `[groups, rows]`.
    pub mins: [[f32; ROWS]; 16],
    /// The units of scales and minimums, where a level keeps those as integers (see [`avx2`]).
    pub units: [[f32; ROWS]; 2],
}

/// At most 256 columns of 32 rows, `[columns, rows]`.
pub(crate) type FloatPanel = [[f32; ROWS]; crate::panel::SPAN];

/// The changes a level makes when it interleaves spans to a panel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adjust {
    /// Added to every quant.
    pub quants: u8,
    /// The source of the panel's minimums.
    pub mins: Mins,
}

/// The source of a panel's minimums. They are multiplied with the activations' sums, which may be stored with a
/// factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mins {
    /// Unused.
    None,
    /// The spans' minimums times this factor.
    Times(f32),
    /// The spans' scales times this factor.
    #[cfg(target_arch = "x86_64")]
    ScalesTimes(f32),
}

impl Adjust {
    /// For tiles that multiply unsigned quants, biased by 128 where signed: the activations' sums are packed times
    /// -128 and initialize the integer sums of signed types.
    pub(crate) fn unsigned(form: Form, bias: u8) -> Adjust {
        let mins = match form {
            Form::Signed32 | Form::Signed32K | Form::Signed16K => Mins::None,
            Form::Affine32K => Mins::Times(1.0),
            Form::Affine32 | Form::Affine16K => Mins::Times(-1.0 / 128.0),
        };
        Adjust { quants: if form.is_signed() { 128 - bias } else { 0 }, mins }
    }

    /// For tiles that multiply two's complement.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn signed(form: Form, bias: u8) -> Adjust {
        Adjust { quants: 0u8.wrapping_sub(bias), ..Adjust::unsigned(form, bias) }
    }
}

/// Asserts that a strip holds `rows` results of each of `tokens` tokens.
#[inline(always)]
pub(crate) fn check_strip(strip: &[f32], stride: usize, tokens: usize, rows: usize) {
    assert!(tokens > 0 && stride >= rows && strip.len() >= (tokens - 1) * stride + rows);
}

/// Hides two addresses from the optimizer: reads through them happen after this line. Otherwise the compiler hoists
/// the loads of many steps and runs out of registers, which halves the speed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn in_order<A, B>(mut a: *const A, mut b: *const B) -> (*const A, *const B) {
    // SAFETY: there are no instructions.
    unsafe {
        std::arch::asm!("/* {0} {1} */", inout(reg) a, inout(reg) b, options(nostack, preserves_flags));
    }
    (a, b)
}

/// Interleaves 16 rows' spans into the panel's rows `first..first + 16`.
pub(crate) type Interleave =
    unsafe fn(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel);

/// Unpacks 256 columns of 16 rows directly into the panel's rows `first..first + 16`, adjusted: equivalent to
/// [`Interleave`] of their spans. Prefetches `ahead` meanwhile.
pub(crate) type Fill =
    unsafe fn(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel);

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

/// Interleaves columns `cols` of 16 rows, each [`crate::panel::SPAN`] long, into the panel's rows `first..first +
/// 16`.
pub(crate) type FloatInterleave = unsafe fn(
    rows: &[[f32; crate::panel::SPAN]],
    cols: std::ops::Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
);

/// Maximum tokens per float tile.
pub(crate) fn float_tokens_max(level: Level) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2_f32::TOKENS,
        _ => tokens_max(level),
    }
}

/// Maximum tokens per integer tile, limited by a level's registers.
pub(crate) fn tokens_max(level: Level) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::TOKENS,
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => avxvnni::TOKENS,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => avx512::TOKENS,
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonDotprod | Level::NeonI8mm => neon::TOKENS,
        _ => 4,
    }
}

/// The activation format for a level's integer tiles and a type's weights.
pub(crate) fn format(level: Level, quants: &Quants) -> Format {
    match level {
        _ if !quants.form.is_per_256() => Format::Int8x32,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::format_256(quants),
        _ => Format::Int8x256,
    }
}

/// The integer kernels of a level.
pub(crate) fn tiles(level: Level, quants: &Quants) -> Tiles {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2::tiles(quants),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => avxvnni::tiles(quants),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => avx512::tiles(quants),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => neon::tiles(quants),
        #[cfg(target_arch = "aarch64")]
        Level::NeonDotprod => neon_dotprod::tiles(quants),
        #[cfg(target_arch = "aarch64")]
        Level::NeonI8mm => neon_i8mm::tiles(quants),
        _ => scalar::tiles(quants),
    }
}

/// The float kernels of a level.
pub(crate) fn float_tiles(level: Level) -> FloatTiles {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => avx2_f32::TILES,
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => avx512_f32::TILES,
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::NeonDotprod | Level::NeonI8mm => neon_f32::TILES,
        _ => scalar::FLOAT_TILES,
    }
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

shapes!(Signed32, Affine32, Signed32K, Affine32K, Signed16K, Affine16K);

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
        }
    };
}
pub(crate) use by_form;
