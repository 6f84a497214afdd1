//! 32 bytes in plain Rust.

use super::{Bytes, Field, Flags, NarrowBytes, Points, part, u32_at};

impl Bytes for [u8; 32] {
    const WIDTH: usize = 32;

    #[inline(always)]
    fn store(self, to: &mut [u8]) {
        to.copy_from_slice(&self);
    }

    #[inline(always)]
    fn codes(block: &[u8], field: Field, first: usize) -> Self {
        [0; 32].join(block, field, first, 0)
    }

    #[inline(always)]
    fn join(mut self, block: &[u8], field: Field, first: usize, low: u32) -> Self {
        // Runs are at least eight weights long.
        for (i, codes) in self.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (at, shift) = field.place(first + 8 * i);
            for (code, byte) in codes.iter_mut().zip(part::<8>(block, at)) {
                *code |= (byte >> shift & field.mask()) << low;
            }
        }
        self
    }

    #[inline(always)]
    fn look_up(self, values: &[u8; 16]) -> Self {
        self.map(|code| values[usize::from(code & 15)])
    }

    #[inline(always)]
    fn flip(self, mask: u8) -> Self {
        self.map(|code| code ^ mask)
    }

    #[inline(always)]
    fn eights<P: Points>(block: &[u8], first: usize) -> Self {
        let first = first / 8;
        let eights = [0, 1, 2, 3].map(|i| P::eight(block, first + i).to_le_bytes());
        bytemuck::cast(eights)
    }

    #[inline(always)]
    fn sixteens<'a>(sixteen: impl Fn(usize) -> &'a [u8; 16]) -> Self {
        bytemuck::cast([*sixteen(0), *sixteen(1)])
    }

    #[inline(always)]
    fn digits(self, powers: Self) -> Self {
        std::array::from_fn(|i| ((u16::from(self[i].wrapping_mul(powers[i])) * 3) >> 8) as u8)
    }
}

impl NarrowBytes for [u8; 32] {
    #[inline(always)]
    fn centred(self, signs: &[u32; 8], first: usize, zero: u8) -> Self {
        let signs = signs[first / 32];
        std::array::from_fn(|i| match signs >> i & 1 {
            0 => zero + self[i],
            _ => zero - self[i],
        })
    }

    #[inline(always)]
    fn flag(mut self, block: &[u8], flags: Flags, _first: usize) -> Self {
        // Each weight's byte first, then its bit: both are single vector instructions.
        let bits = u32_at(block, flags.at).to_le_bytes();
        let bytes: Self = std::array::from_fn(|i| bits[i / 8]);
        for (i, code) in self.iter_mut().enumerate() {
            *code |= if bytes[i] & (1 << (i % 8)) == 0 { 0 } else { flags.value };
        }
        self
    }
}
