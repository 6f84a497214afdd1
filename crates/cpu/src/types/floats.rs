//! Floats: how a vector of values is read.

use crate::lanes::Lanes;

/// A type of floats.
pub(crate) trait Floats {
    /// Bytes of a value.
    const BYTES: usize;

    /// The first N values.
    ///
    /// # Safety
    /// `from` is valid for reading N values at any address.
    unsafe fn load<L: Lanes>(l: L, from: *const u8) -> L::F;
}

macro_rules! floats {
    ($($type:ident: $bytes:literal, $load:ident;)*) => {$(
        pub(crate) struct $type;

        impl Floats for $type {
            const BYTES: usize = $bytes;

            #[inline(always)]
            unsafe fn load<L: Lanes>(l: L, from: *const u8) -> L::F {
                // SAFETY: guaranteed by the caller.
                unsafe { l.$load(from.cast()) }
            }
        }
    )*};
}

floats! {
    F32: 4, load;
    F16: 2, load_f16;
    Bf16: 2, load_bf16;
}
