//! Types that are not part of GGUF: their ids, their entry in a file's metadata, their form on devices without kernels.
//!
//! Their ids are in a private range (`0x424C`, "BL", in the upper half), which other readers refuse as unknown, and a
//! file lists their names under [`KEY`].

use crate::Type;

/// The metadata key under which a file lists its types outside of GGUF: an array of `<id>=<name>`.
pub const KEY: &str = "bilayer.tensor_types";

/// The upper half of the ids of types outside of GGUF.
pub(crate) const ID: u32 = 0x424C_0000;

/// A type of GGUF that represents a row of another type, in more bytes.
#[derive(Clone, Copy, Debug)]
pub struct Dense {
    /// The type.
    pub ty: Type,
    /// Converts one row; the result has exactly the bytes of as many weights.
    pub widen: fn(row: &[u8], dense: &mut [u8]),
}

impl Type {
    /// Whether the type is part of GGUF; a file with other types lists them under [`KEY`].
    #[must_use]
    pub fn is_gguf(self) -> bool {
        self.gguf_id & 0xFFFF_0000 != ID
    }
}
