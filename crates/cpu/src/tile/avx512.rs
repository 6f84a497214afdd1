//! The integer tile at 512 bits: 32 rows x up to 6 tokens with VNNI.
//!
//! Two vectors of 16 rows meet each token's four activations, broadcast; 12 dot products run side by
//! side, which hides their latency, and per group of weights their sums become f32 and are multiplied
//! by the scales. Quants are unsigned, signed ones 128 too high, so that integer sums start from the
//! activations' sums times -128. Price: converting and scaling cost a fifth of the time in groups of
//! 32, a third in groups of 16.

use std::arch::x86_64::*;

use crate::gemm::packing::Block;
use crate::panel::{Form, Span};
use crate::tile::{Adjust, Mins, Panel, ROWS, Shape, Tile, Tiles, by_form};

pub(super) fn tiles(form: Form, bias: u8) -> Tiles {
    let tile: Tile = by_form!(form, any_tile);
    Tiles { adjust: Adjust::unsigned(form, bias), interleave, tile }
}

/// 16 vectors of 16 dwords, transposed.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
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

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load<T>(from: &[T; 64]) -> __m512i {
    const { assert!(size_of::<T>() == 1) };
    // SAFETY: 64 bytes are read from a reference to 64.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_floats(from: &[f32]) -> __m512 {
    let from = &from[..16];
    // SAFETY: the slice has 16 elements.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store_floats(to: &mut [f32], value: __m512) {
    let to = &mut to[..16];
    // SAFETY: the slice has 16 elements.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
}

/// See [`crate::tile::Interleave`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    let bias = _mm512_set1_epi8(adjust.quants as i8);
    for part in 0..4 {
        let mut rows = [_mm512_setzero_si512(); 16];
        for (row, span) in rows.iter_mut().zip(spans) {
            *row = _mm512_add_epi8(load(&span.quants.as_chunks::<64>().0[part]), bias);
        }
        for (step, value) in transpose(rows).into_iter().enumerate() {
            let to = &mut panel.quants[16 * part + step][first..first + 16];
            // SAFETY: 16 rows of four bytes are written, as many as the slice has.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) };
        }
    }
    lines(spans, first, |span| &span.scales, 1.0, &mut panel.scales);
    if let Mins::Times(factor) = adjust.mins {
        lines(spans, first, |span| &span.mins, factor, &mut panel.mins);
    }
}

/// Transposes 16 spans' scales or minimums, times `factor`.
#[target_feature(enable = "avx512f")]
#[inline]
fn lines(
    spans: &[Span; 16],
    first: usize,
    part: impl Fn(&Span) -> &[f32; 16],
    factor: f32,
    panel: &mut [[f32; ROWS]; 16],
) {
    let factor = _mm512_set1_ps(factor);
    let mut rows = [_mm512_setzero_si512(); 16];
    for (row, span) in rows.iter_mut().zip(spans) {
        *row = _mm512_castps_si512(_mm512_mul_ps(load_floats(part(span)), factor));
    }
    for (to, value) in panel.iter_mut().zip(transpose(rows)) {
        store_floats(&mut to[first..], _mm512_castsi512_ps(value));
    }
}

/// See [`Tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn any_tile<S: Shape>(panel: &Panel, block: Block<'_>, strip: &mut [f32]) {
    match block.tokens {
        1 => tile::<S, 1>(panel, block, strip),
        2 => tile::<S, 2>(panel, block, strip),
        3 => tile::<S, 3>(panel, block, strip),
        4 => tile::<S, 4>(panel, block, strip),
        5 => tile::<S, 5>(panel, block, strip),
        6 => tile::<S, 6>(panel, block, strip),
        tokens => unreachable!("{tokens} tokens in a chunk of at most 6"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn tile<S: Shape, const N: usize>(panel: &Panel, block: Block<'_>, strip: &mut [f32]) {
    let (strip, _) = strip.as_chunks_mut::<ROWS>();
    let strip: &mut [[f32; ROWS]; N] = strip.try_into().expect("one row of the strip a token");
    let (steps, _) = block.quants().as_chunks::<4>();
    let (steps, _) = steps.as_chunks::<N>();
    let (sums, _) = block.sums().as_chunks::<N>();
    let (scales, _) = block.scales().as_chunks::<N>();
    let mut acc = [[_mm512_setzero_ps(); 2]; N];
    if !S::PER_256 {
        for (acc, strip) in acc.iter_mut().zip(&*strip) {
            *acc = [load_floats(strip), load_floats(&strip[16..])];
        }
    }
    for (group, steps) in steps.chunks_exact(S::STEPS).enumerate() {
        let start = if S::SIGNED { sums[group] } else { [0; N] };
        let dots = dots::<S, N>(&panel.quants[group * S::STEPS..], steps, start);
        let w = &panel.scales[group];
        let w = [load_floats(w), load_floats(&w[16..])];
        for t in 0..N {
            for half in 0..2 {
                let mut dot = _mm512_cvtepi32_ps(dots[t][half]);
                if !S::PER_256 {
                    dot = _mm512_mul_ps(dot, _mm512_set1_ps(scales[group][t]));
                }
                acc[t][half] = _mm512_fmadd_ps(dot, w[half], acc[t][half]);
            }
        }
        if !S::SIGNED {
            let sums = if S::FLOAT_SUMS {
                block.float_sums().as_chunks::<N>().0[group]
            } else if S::PER_256 {
                sums[group].map(|sum| sum as f32)
            } else {
                std::array::from_fn(|t| sums[group][t] as f32 * scales[group][t])
            };
            let m = &panel.mins[group];
            let m = [load_floats(m), load_floats(&m[16..])];
            for t in 0..N {
                for half in 0..2 {
                    acc[t][half] = _mm512_fmadd_ps(_mm512_set1_ps(sums[t]), m[half], acc[t][half]);
                }
            }
        }
    }
    for t in 0..N {
        for half in 0..2 {
            let to = &mut strip[t][16 * half..];
            let value = if S::PER_256 {
                let scale = _mm512_set1_ps(scales[0][t]);
                _mm512_fmadd_ps(acc[t][half], scale, load_floats(to))
            } else {
                acc[t][half]
            };
            store_floats(to, value);
        }
    }
}

/// The integer sums of one group: `start` + quants x activations.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn dots<S: Shape, const N: usize>(
    quants: &[[[u8; 4]; ROWS]],
    steps: &[[[u8; 4]; N]],
    start: [i32; N],
) -> [[__m512i; 2]; N] {
    let mut dots = [[_mm512_setzero_si512(); 2]; N];
    if S::SIGNED {
        for t in 0..N {
            dots[t] = [_mm512_set1_epi32(start[t]); 2];
        }
    }
    for (w, x) in quants[..S::STEPS].iter().zip(&steps[..S::STEPS]) {
        let w: &[[u8; 64]; 2] = bytemuck::cast_ref(w);
        let w = [load(&w[0]), load(&w[1])];
        for t in 0..N {
            let x = _mm512_set1_epi32(i32::from_le_bytes(x[t]));
            dots[t][0] = _mm512_dpbusd_epi32(dots[t][0], w[0], x);
            dots[t][1] = _mm512_dpbusd_epi32(dots[t][1], w[1], x);
        }
    }
    dots
}
