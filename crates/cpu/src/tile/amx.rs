//! AMX tiles: 16x16 f32 results from 16 weight rows and 16 tokens in bf16, 32 columns per step.
//!
//! Weights are unpacked to f32 and rounded to bf16, so all types share one path, and a product accumulates over all
//! columns inside the tile unit without scaling in between. Two tiles of rows are multiplied with two tiles of
//! tokens, so each loaded kilobyte is used twice. Price: int8 tiles would be twice as fast, but only with a single
//! scale for all columns; with one scale per 32 they are slower. Rounding to bf16 (at most 2^-8 of each number) loses
//! less precision than int8 with shared scales.
//!
//! Where 2^-8 is too coarse (float weights), numbers are split into a rounded part and a rounded residual; the
//! product of two residuals, 2^-16, is omitted.
//!
//! The intrinsics are unstable, so this is assembly. The compiler never allocates tile registers; each block still
//! declares the ones it clobbers.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use crate::level::rows::{Amx, Avx512Vnni};
use crate::panel::amx::{TileBytes, bits, put_bits};
use crate::panel::avx512::transpose;
use crate::panel::{Form, Span};
use crate::tile::{Tiled, Tiling, never};

impl Tiled for Amx {
    const TILING: Tiling = Tiling { rounding: never, has_matrix_unit: true, ..Avx512Vnni::TILING };
}

/// Columns of a bf16 tile.
pub(crate) const TILE_COLS: usize = 32;

/// Rows or tokens of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// This thread's tile unit, configured for eight full tiles until dropped.
pub(crate) struct Configured(PhantomData<*const ()>);

impl Configured {
    /// Configures the tile unit.
    ///
    /// # Safety
    /// The CPU has AMX and the system allows it: [`crate::level::Level::Amx`] is available.
    pub unsafe fn new() -> Configured {
        /// Intel 64 manual, volume 1, table 18-1: palette 1, bytes per row from 16, rows from 48 on.
        #[repr(C, align(64))]
        struct Config([u8; 64]);
        static CONFIG: Config = Config({
            let mut bytes = [0; 64];
            bytes[0] = 1;
            let mut tile = 0;
            while tile < 8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = 16;
                tile += 1;
            }
            bytes
        });
        // SAFETY: the caller has AMX; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &CONFIG, options(nostack, readonly)) };
        Configured(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the unit was configured, so AMX is available. A released unit is not saved on context switches.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Adds 32 rows x 32 tokens, or 16 if there is no second tile of them, to `out` (tiles row 0 token 0, row 0 token 1,
/// row 1 token 0, row 1 token 1); all slices of tiles have equal length, the number of steps.
pub(crate) fn multiply(
    _unit: &Configured,
    weights: [&[TileBytes]; 2],
    x: (&[TileBytes], Option<&[TileBytes]>),
    out: &mut [TileBytes; 4],
) {
    match x {
        (x0, Some(x1)) => multiply_2x2(weights, [x0, x1], out),
        (x0, None) => multiply_2x1(weights, x0, out),
    }
}

fn multiply_2x2(weights: [&[TileBytes]; 2], x: [&[TileBytes]; 2], out: &mut [TileBytes; 4]) {
    let steps = weights[0].len();
    assert!(steps > 0 && [weights[1], x[0], x[1]].iter().all(|tiles| tiles.len() == steps));
    // SAFETY: `multiply` received proof of a configured unit; each address advances through `steps` tiles, `out` is
    // four.
    unsafe {
        asm!(
            "tileloadd tmm0, [{out} + {stride}*1]",
            "tileloadd tmm1, [{out} + {stride}*1 + 1024]",
            "tileloadd tmm2, [{out} + {stride}*1 + 2048]",
            "tileloadd tmm3, [{out} + {stride}*1 + 3072]",
            "2:",
            "tileloaddt1 tmm4, [{w0} + {stride}*1]",
            "tileloadd tmm6, [{x0} + {stride}*1]",
            "tileloaddt1 tmm5, [{w1} + {stride}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tileloadd tmm7, [{x1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "add {x0}, 1024",
            "add {x1}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {stride}*1], tmm0",
            "tilestored [{out} + {stride}*1 + 1024], tmm1",
            "tilestored [{out} + {stride}*1 + 2048], tmm2",
            "tilestored [{out} + {stride}*1 + 3072], tmm3",
            w0 = inout(reg) weights[0].as_ptr() => _,
            w1 = inout(reg) weights[1].as_ptr() => _,
            x0 = inout(reg) x[0].as_ptr() => _,
            x1 = inout(reg) x[1].as_ptr() => _,
            steps = inout(reg) steps => _,
            out = in(reg) out.as_mut_ptr(),
            stride = in(reg) 64usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

fn multiply_2x1(weights: [&[TileBytes]; 2], x: &[TileBytes], out: &mut [TileBytes; 4]) {
    let steps = weights[0].len();
    assert!(steps > 0 && weights[1].len() == steps && x.len() == steps);
    // SAFETY: `multiply` received proof of a configured unit; each address advances through `steps` tiles, `out` is
    // four.
    unsafe {
        asm!(
            "tileloadd tmm0, [{out} + {stride}*1]",
            "tileloadd tmm2, [{out} + {stride}*1 + 2048]",
            "2:",
            "tileloaddt1 tmm4, [{w0} + {stride}*1]",
            "tileloadd tmm6, [{x0} + {stride}*1]",
            "tileloaddt1 tmm5, [{w1} + {stride}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "add {x0}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {stride}*1], tmm0",
            "tilestored [{out} + {stride}*1 + 2048], tmm2",
            w0 = inout(reg) weights[0].as_ptr() => _,
            w1 = inout(reg) weights[1].as_ptr() => _,
            x0 = inout(reg) x.as_ptr() => _,
            steps = inout(reg) steps => _,
            out = in(reg) out.as_mut_ptr(),
            stride = in(reg) 64usize,
            out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
            options(nostack),
        );
    }
}

/// Writes a row's span of `8` x 32 weights as row `row` of eight tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn put_span(span: &Span, form: Form, bias: u8, row: usize, tiles: &mut [TileBytes]) {
    let bias = f32::from(bias);
    for (step, tile) in tiles.iter_mut().enumerate().take(8) {
        let mut halves = [_mm512_setzero_ps(); 2];
        for (half, out) in halves.iter_mut().enumerate() {
            let first = 32 * step + 16 * half;
            let group = first / form.group();
            let quants: &[u8; 16] = &span.quants.as_chunks().0[first / 16];
            // SAFETY: 16 bytes are read from a reference to 16.
            let quants = unsafe { _mm_loadu_si128(quants.as_ptr().cast()) };
            let quants = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(quants));
            let scale = span.unit * span.scales[group];
            let min = match form.is_signed() {
                true => -bias * scale,
                false => span.min_unit * span.mins[group],
            };
            *out = _mm512_fmadd_ps(quants, _mm512_set1_ps(scale), _mm512_set1_ps(min));
        }
        put(_mm512_cvtne2ps_pbh(halves[1], halves[0]), row, tile);
    }
}

/// Writes weights as row `row` of tiles, rounded, and the rounding residuals as the same row of `rests` (none, or as
/// many). Columns beyond the last are zero. Returns whether any residual is nonzero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn put_floats(
    weights: &[f32],
    row: usize,
    tiles: &mut [TileBytes],
    rests: &mut [TileBytes],
) -> bool {
    let mut lost = _mm512_setzero_si512();
    for (step, tile) in tiles.iter_mut().enumerate() {
        let (rounded, rest) = split(&weights[(32 * step).min(weights.len())..]);
        put(rounded, row, tile);
        if let Some(tile) = rests.get_mut(step) {
            put(rest, row, tile);
            lost = _mm512_or_si512(lost, bits(rest));
        }
    }
    _mm512_test_epi32_mask(lost, lost) != 0
}

/// Packs up to 16 tokens `[tokens, cols]` as tiles, and the rounding residuals to `rests` (none, or as many). Tokens
/// and columns beyond the last are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) fn pack(x: &[f32], cols: usize, tiles: &mut [TileBytes], rests: &mut [TileBytes]) {
    for (step, tile) in tiles.iter_mut().enumerate() {
        let mut rounded = [_mm512_setzero_si512(); 16];
        let mut rest = rounded;
        for (token, x) in x.chunks_exact(cols).enumerate() {
            let parts = split(&x[32 * step..]);
            (rounded[token], rest[token]) = (bits(parts.0), bits(parts.1));
        }
        put_all(&transpose(rounded), tile);
        if let Some(tile) = rests.get_mut(step) {
            put_all(&transpose(rest), tile);
        }
    }
}

/// The next 32 numbers rounded to bf16, and the rounded residuals. Missing numbers are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
#[inline]
fn split(x: &[f32]) -> (__m512bh, __m512bh) {
    let mut halves = [_mm512_setzero_ps(); 2];
    for (half, out) in halves.iter_mut().enumerate() {
        let x = &x[(16 * half).min(x.len())..];
        let mask = ((1u32 << x.len().min(16)) - 1) as u16;
        // SAFETY: as many numbers are read as the slice has.
        *out = unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr()) };
    }
    let rounded = _mm512_cvtne2ps_pbh(halves[1], halves[0]);
    let words = bits(rounded);
    let back = [_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64::<1>(words)];
    for (half, back) in halves.iter_mut().zip(back) {
        let back = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(back));
        *half = _mm512_sub_ps(*half, _mm512_castsi512_ps(back));
    }
    (rounded, _mm512_cvtne2ps_pbh(halves[1], halves[0]))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn put(value: __m512bh, row: usize, tile: &mut TileBytes) {
    put_bits(bits(value), row, tile);
}

#[target_feature(enable = "avx512f")]
#[inline]
fn put_all(rows: &[__m512i; 16], tile: &mut TileBytes) {
    for (to, row) in tile.as_chunks_mut::<64>().0.iter_mut().zip(rows) {
        // SAFETY: 64 bytes are written to a reference to 64.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), *row) }
    }
}

/// Copies the first `rows` and `tokens` of a tile of results `[16 rows, 16 tokens]` to `out` `[tokens, stride]`.
#[target_feature(enable = "avx512f")]
pub(crate) fn scatter(
    tile: &TileBytes,
    (rows, tokens): (usize, usize),
    out: &mut [f32],
    stride: usize,
) {
    let mut values = [_mm512_setzero_si512(); 16];
    for (value, row) in values.iter_mut().zip(tile.as_chunks::<64>().0) {
        *value = crate::panel::avx512::load(row);
    }
    let mask = ((1u32 << rows.min(16)) - 1) as u16;
    for (token, value) in transpose(values).into_iter().enumerate().take(tokens) {
        let to = &mut out[token * stride..][..rows.min(16)];
        // SAFETY: as many numbers are written as the slice has.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, _mm512_castsi512_ps(value)) };
    }
}
