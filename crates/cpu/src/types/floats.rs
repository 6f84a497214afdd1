//! Floats: how a vector of values is read.

use crate::lanes::Lanes;

/// A type of floats.
pub(crate) trait Floats {
    /// Bytes of a value.
    const BYTES: usize;

    /// The first N values.
    ///
    /// # Panics
    /// If there are fewer.
    fn read<L: Lanes>(l: L, bytes: &[u8]) -> L::F;
}

macro_rules! floats {
    ($($type:ident: $bytes:literal, $load:ident;)*) => {$(
        pub(crate) struct $type;

        impl Floats for $type {
            const BYTES: usize = $bytes;

            #[inline(always)]
            fn read<L: Lanes>(l: L, bytes: &[u8]) -> L::F {
                let bytes = &bytes[..L::N * Self::BYTES];
                // SAFETY: there are N values.
                unsafe { l.$load(bytes.as_ptr().cast()) }
            }
        }
    )*};
}

floats! {
    F32: 4, load;
    F16: 2, load_f16;
}

pub(crate) struct Bf16;

impl Floats for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    fn read<L: Lanes>(l: L, bytes: &[u8]) -> L::F {
        l.read_bf16(bytes)
    }
}
