//! Micro-kernels: a panel of weights times a tile of tokens, per instruction level.
//!
//! All but AMX work on 32 rows side by side: a vector holds rows, activations are broadcast, and the
//! results of a token are 32 consecutive f32. The integer tiles read a [`Panel`], the float tiles a
//! [`FloatPanel`]; both stay in the nearest caches while they are swept over all tiles of tokens.

use bytemuck::{Pod, Zeroable};

use crate::gemm::packing::{Block, Format};
use crate::level::Level;
use crate::panel::{Ahead, Form, Quants, Rows, Span, prefetch_lines};

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

/// At most 256 columns of 32 rows, four columns of a row side by side as integer dot products want.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Panel {
    /// `[columns / 4, rows, 4]`.
    pub quants: [[[u8; 4]; ROWS]; 64],
    /// `[groups, rows]`.
    pub scales: [[f32; ROWS]; 16],
    /// `[groups, rows]`.
    pub mins: [[f32; ROWS]; 16],
    /// What the scales and the minimums are multiples of, where a level keeps them as integers (see [`avx2`]).
    pub units: [[f32; ROWS]; 2],
}

/// At most 256 columns of 32 rows, `[columns, rows]`.
pub(crate) type FloatPanel = [[f32; ROWS]; crate::panel::SPAN];

/// What a level changes on the way from spans to a panel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Adjust {
    /// Added to every quant.
    pub quants: u8,
    /// What the panel's minimums are.
    pub mins: Mins,
}

/// What a panel's minimums are. They meet the activations' sums, which may be stored multiplied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mins {
    /// Not read.
    None,
    /// The spans' minimums times this.
    Times(f32),
    /// The spans' scales times this.
    #[cfg(target_arch = "x86_64")]
    ScalesTimes(f32),
}

impl Adjust {
    /// For tiles that multiply unsigned quants, biased by 128 where signed: the activations' sums are
    /// packed times -128, so that they start the integer sums of signed types.
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

/// The same addresses, about which the compiler knows nothing more: what is read through them is read
/// after this line. Left alone, it gathers the loads of many steps first and runs out of registers,
/// which costs half the speed.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn in_order<A, B>(mut a: *const A, mut b: *const B) -> (*const A, *const B) {
    // SAFETY: there are no instructions.
    unsafe {
        std::arch::asm!("/* {0} {1} */", inout(reg) a, inout(reg) b, options(nostack, preserves_flags));
    }
    (a, b)
}

/// Puts 16 rows' spans into the panel's rows `first..first + 16`.
pub(crate) type Interleave =
    unsafe fn(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel);

/// Unpacks 256 columns of 16 rows into the panel's rows `first..first + 16`, at once and adjusted: what [`Interleave`]
/// makes of their spans. `ahead` is asked for meanwhile.
pub(crate) type Fill = unsafe fn(rows: Rows<'_>, ahead: Ahead, first: usize, panel: &mut Panel);

/// One span of 32 rows and of a tile's tokens.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// The weights.
    pub panel: &'a Panel,
    /// The packed activations.
    pub block: Block<'a>,
    /// What is asked for meanwhile.
    pub ahead: Ahead,
    /// From a token's 32 results to those of the next.
    pub stride: usize,
}

/// Adds a product to `strip`.
pub(crate) type Tile = unsafe fn(product: Product<'_>, strip: &mut [f32]);

/// The integer kernels of a level for a form. Unsafe to call unless the processor has the level.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub adjust: Adjust,
    pub interleave: Interleave,
    pub tile: Tile,
}

/// Adds panel x activations to `strip`, as [`Tile`].
pub(crate) type FloatTile =
    unsafe fn(panel: &[[f32; ROWS]], columns: Columns<'_>, strip: &mut [f32], stride: usize);

/// Packed f32 activations `[panel.len(), tokens]`.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub values: &'a [f32],
    pub tokens: usize,
    /// From each of the values to one that is wanted soon, bytes.
    pub ahead: usize,
}

impl Columns<'_> {
    /// Asks for all that is wanted soon.
    #[inline(always)]
    pub fn fetch(self) {
        let start = self.values.as_ptr().cast::<u8>().wrapping_add(self.ahead);
        prefetch_lines(start, (4 * self.values.len()).div_ceil(64));
    }
}

/// The float kernels of a level. Unsafe to call unless the processor has the level.
#[derive(Clone, Copy)]
pub(crate) struct FloatTiles {
    /// Columns of a panel. More of them are fewer starts of a tile, but take more of the nearest cache.
    pub cols: usize,
    pub interleave: FloatInterleave,
    pub tile: FloatTile,
}

/// Puts columns `cols` of 16 rows, each [`crate::panel::SPAN`] long, into the panel's rows
/// `first..first + 16`.
pub(crate) type FloatInterleave = unsafe fn(
    rows: &[[f32; crate::panel::SPAN]],
    cols: std::ops::Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
);

/// Most tokens in a tile of floats.
pub(crate) fn float_tokens_max(level: Level) -> usize {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx2_f32::TOKENS,
        _ => tokens_max(level),
    }
}

/// Most tokens in a tile of integers. A level's registers decide.
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

/// What a level's integer tiles multiply a type's weights with.
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

/// How a form's activations meet its weights, for the tiles' generics.
pub(crate) trait Shape {
    /// The form.
    const FORM: Form;
    /// Steps of four columns that share a scale.
    const STEPS: usize = Self::FORM.group() / 4;
    /// Whether the integer sums start from the activations' sums.
    const SIGNED: bool = Self::FORM.is_signed();
    /// Whether activations have one scale per 256 columns.
    const PER_256: bool = Self::FORM.is_per_256();
    /// Packed sums that cover a group.
    const SUMS: usize = if Self::PER_256 { Self::STEPS / 4 } else { 1 };
    /// Whether the minimums meet sums stored as f32.
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
