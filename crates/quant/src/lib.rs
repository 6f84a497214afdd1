//! Quantization types: block layouts, scalar quantize and dequantize, sizes.
//!
//! A GGUF tensor consists of rows of *blocks*; each type defines how many weights a block holds and how they are
//! encoded. One type is one file: a drawing of the bit layout, the block as a `repr(C)` struct, the scalar
//! dequantizer (the reference for every faster kernel), the quantizer where there is one, and one [`Descriptor`].
//! Consumers walk [`all`] or look a type up; no code outside a type's own file branches on its name.
//!
//! This crate knows no files, tensors, shapes, threads or devices. All layouts are little-endian and defined by the
//! GGUF format (`ggml-common.h` of llama.cpp); the code is our own.
//!
//! Read first: [`Type`], [`Descriptor`], and [`q4_0`] as the simplest type.
//!
//! ```
//! use bilayer_quant::Type;
//!
//! let weights: Vec<_> = (0..256u16).map(|i| f32::from(i).sin()).collect();
//! let mut bytes = vec![0; Type::Q4_K.row_bytes(weights.len())?];
//! Type::Q4_K.quantize(&weights, None, &mut bytes)?;
//!
//! let mut back = vec![0.0; weights.len()];
//! Type::Q4_K.dequantize(&bytes, &mut back)?;
//! assert!(weights.iter().zip(&back).all(|(w, b)| (w - b).abs() < 0.1));
//! # Ok::<(), bilayer_quant::Error>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("GGUF blocks are read in place, which needs a little-endian machine");

mod blocks;
pub mod cache;
mod descriptor;
mod error;
mod finite;
mod forms;
mod grid_block;
pub mod grids;
pub mod k_scales;
mod lanes;
mod nearest;
mod rounding;
mod rows;
#[cfg(test)]
mod samples;
mod search;
mod super_block;

pub use descriptor::{Dequantize, Descriptor, Plane, Quantize, ROW_HEADER_MAX, Type};
pub use error::Error;
pub use finite::{first_beyond, first_not_finite};
pub use rounding::Grid;

/// Makes of each line a constant on [`Type`] and an entry of the table.
macro_rules! table {
    ($($module:ident :: $descriptor:ident => $constant:ident),+ $(,)?) => {
        impl Type {
            $(
                #[doc = concat!("The type of [`", stringify!($module), "`](mod@", stringify!($module), ").")]
                pub const $constant: Type = Type::new(&$module::$descriptor);
            )+
        }

        static TABLE: &[Type] = &[$(Type::$constant),+];
    };
}

pub mod bf16;
pub mod f16;
pub mod f32;
pub mod iq1_m;
pub mod iq1_s;
pub mod iq2_s;
pub mod iq2_xs;
pub mod iq2_xxs;
pub mod iq3_s;
pub mod iq3_xxs;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
pub mod plain;
pub mod private;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;
pub mod sparse;
pub mod tq1_0;
pub mod tq2_0;
pub mod w8a8;

table! {
    f32::DESCRIPTOR => F32,
    f16::DESCRIPTOR => F16,
    bf16::DESCRIPTOR => BF16,
    q4_0::DESCRIPTOR => Q4_0,
    q4_1::DESCRIPTOR => Q4_1,
    q5_0::DESCRIPTOR => Q5_0,
    q5_1::DESCRIPTOR => Q5_1,
    q8_0::DESCRIPTOR => Q8_0,
    q2_k::DESCRIPTOR => Q2_K,
    q3_k::DESCRIPTOR => Q3_K,
    q4_k::DESCRIPTOR => Q4_K,
    q5_k::DESCRIPTOR => Q5_K,
    q6_k::DESCRIPTOR => Q6_K,
    iq1_s::DESCRIPTOR => IQ1_S,
    iq1_m::DESCRIPTOR => IQ1_M,
    iq2_xxs::DESCRIPTOR => IQ2_XXS,
    iq2_xs::DESCRIPTOR => IQ2_XS,
    iq2_s::DESCRIPTOR => IQ2_S,
    iq3_xxs::DESCRIPTOR => IQ3_XXS,
    iq3_s::DESCRIPTOR => IQ3_S,
    iq4_nl::DESCRIPTOR => IQ4_NL,
    iq4_xs::DESCRIPTOR => IQ4_XS,
    tq1_0::DESCRIPTOR => TQ1_0,
    tq2_0::DESCRIPTOR => TQ2_0,
    mxfp4::DESCRIPTOR => MXFP4,
    nvfp4::DESCRIPTOR => NVFP4,
    sparse::S4_4_64 => S4_4_64,
    sparse::S4_8_64 => S4_8_64,
    sparse::S4_12_64 => S4_12_64,
    sparse::S4_16_64 => S4_16_64,
    sparse::S4_24_64 => S4_24_64,
    sparse::S4_32_64 => S4_32_64,
    sparse::S8_4_64 => S8_4_64,
    sparse::S8_8_64 => S8_8_64,
    sparse::S8_12_64 => S8_12_64,
    sparse::S8_16_64 => S8_16_64,
    sparse::S8_24_64 => S8_24_64,
    sparse::S8_32_64 => S8_32_64,
    w8a8::DESCRIPTOR => W8A8,
    plain::I8 => I8,
    plain::I16 => I16,
    plain::I32 => I32,
    plain::I64 => I64,
    plain::F64 => F64,
}

/// Every type this build can size and dequantize, in a fixed order.
#[must_use]
pub fn all() -> &'static [Type] {
    TABLE
}

/// The type with this number in a GGUF tensor directory.
///
/// # Errors
/// [`Error::UnknownId`] for ids of removed, internal or newer types.
pub fn by_id(id: u32) -> Result<Type, Error> {
    TABLE.iter().copied().find(|t| t.gguf_id == id).ok_or(Error::UnknownId { id })
}

/// The type with this name, in upper or lower case (`Q4_K`, `q4_k`).
///
/// # Errors
/// [`Error::UnknownName`], which lists the known names.
pub fn by_name(name: &str) -> Result<Type, Error> {
    TABLE
        .iter()
        .copied()
        .find(|t| t.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| Error::UnknownName { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use crate::all;

    #[test]
    fn zeros_stay_zeros_in_the_types_that_hold_them_alone() {
        let value = |i: usize| ((i * 7919 % 997) as f32 / 997.0 - 0.4).sin();
        let is_zero = |i: usize| i * 31 % 7 < 5;
        // Miri takes more than a second for each value.
        let count = if cfg!(miri) { 256 } else { 4096 };
        let values: Vec<f32> =
            (0..count).map(|i| if is_zero(i) { 0.0 } else { value(i) }).collect();
        for ty in all().iter().filter(|ty| ty.quantize.is_some()) {
            let mut blocks = vec![0; ty.row_bytes(values.len()).expect("whole blocks")];
            ty.quantize(&values, None, &mut blocks).expect("finite");
            let mut back = vec![f32::NAN; values.len()];
            ty.dequantize(&blocks, &mut back).expect("whole blocks");
            let are_kept = values.iter().zip(&back).all(|(w, b)| *w != 0.0 || *b == 0.0);
            assert_eq!(are_kept, ty.holds_zero, "{ty}");
        }
    }
}
