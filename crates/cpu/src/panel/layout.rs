//! The layout of a panel: weights of 32 rows side by side, as the tiles multiply them.

use bytemuck::{Pod, Zeroable};

use super::Form;
use crate::activations::SPAN;
use crate::stream::{Ahead, PanelRows};

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
    /// The units of scales and minimums, where a level keeps those as integers (see `tile/avx2.rs`).
    pub units: [[f32; ROWS]; 2],
}

/// At most 256 columns of 32 rows, `[columns, rows]`.
pub(crate) type FloatPanel = [[f32; ROWS]; SPAN];

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
            Form::Signed32 | Form::Signed32K | Form::Signed16K | Form::Signed256K => Mins::None,
            Form::Affine32K => Mins::Times(1.0),
            Form::Affine32 | Form::Affine16K => Mins::Times(-1.0 / 128.0),
        };
        Adjust { quants: if form.is_signed() { 128 - bias } else { 0 }, mins }
    }

    /// For tiles that multiply two's complement.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn signed(form: Form, bias: u8) -> Adjust {
        Adjust { quants: 0u8.wrapping_sub(bias), ..Adjust::unsigned(form, bias) }
    }
}

/// Unpacks 256 columns of 16 rows directly into the panel's rows `first..first + 16`, adjusted: equivalent to
/// interleaving of their spans. Prefetches `ahead` meanwhile.
pub(crate) type Fill =
    unsafe fn(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel);
