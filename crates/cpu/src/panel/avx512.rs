//! Writing into panels, 16 rows at a time.

use std::arch::x86_64::*;

use super::{Panel, ROWS};

pub(crate) use crate::x86::avx512::{load, load_floats};

#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn store_floats(to: &mut [f32], value: __m512) {
    let to = &mut to[..16];
    // SAFETY: the slice has 16 elements.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
}

/// Stores the four columns of step `step` of rows `first..first + 16`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn put(panel: &mut Panel, step: usize, first: usize, quants: __m512i) {
    let to = &mut panel.quants[step][first..first + 16];
    // SAFETY: 16 rows of four bytes are written, as many as the slice has.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), quants) }
}

/// Transposes 16 vectors of 16 dwords.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    let mut a = rows;
    for i in 0..8 {
        a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut b = a;
    for i in 0..4 {
        for half in 0..2 {
            b[4 * i + 2 * half] = _mm512_unpacklo_epi64(a[4 * i + half], a[4 * i + 2 + half]);
            b[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a[4 * i + half], a[4 * i + 2 + half]);
        }
    }
    // b[4 i + c]: column 4 l + c of rows 4 i .. 4 i + 4 in lane l.
    let mut out = b;
    for c in 0..4 {
        let low = _mm512_shuffle_i32x4::<0x88>(b[c], b[4 + c]);
        let high = _mm512_shuffle_i32x4::<0x88>(b[8 + c], b[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(low, high);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(low, high);
        let low = _mm512_shuffle_i32x4::<0xdd>(b[c], b[4 + c]);
        let high = _mm512_shuffle_i32x4::<0xdd>(b[8 + c], b[12 + c]);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(low, high);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(low, high);
    }
    out
}

/// Stores values of rows `first..first + 16`, one vector per element of `to`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn store_rows(values: &[__m512i; 16], first: usize, to: &mut [[f32; ROWS]]) {
    for (to, value) in to.iter_mut().zip(values) {
        store_floats(&mut to[first..], _mm512_castsi512_ps(*value));
    }
}
