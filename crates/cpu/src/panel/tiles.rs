//! Fast paths of single types into AMX tiles.

use std::arch::x86_64::*;
use std::mem::offset_of;

use bilayer_quant::{q4_k, q6_k};

use crate::bytes::part;
use crate::level::rows;
use crate::panel::amx::{self, TileBytes};
use crate::panel::avx512;
use crate::stream::PanelRows;
use crate::types::SuperBlock;
use crate::types::q4_k::Q4K;
use crate::types::q6_k::Q6K;
use crate::types::x86::{numbers, units};
use crate::x86::apart;
use crate::x86::avx2::{load, load_128};

/// See [`amx::FillTiles`]. A group has at most sixteen distinct weights, so both groups of 32 bytes are looked up in a
/// register: only 32 of 64 weights are rounded.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c")]
pub(super) fn fill_q4_k(rows: PanelRows<'_>, count: usize, tiles: &mut [TileBytes; 8]) {
    let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let steps = _mm512_cvtepi32_ps(steps);
    for row in 0..count {
        let block: &[u8; size_of::<q4_k::Block>()] = rows.row(row).as_array().expect("a block");
        let lines = Lines::of(block);
        let chunks = block[offset_of!(q4_k::Block, quants)..].as_chunks::<32>().0;
        for (pair, bytes) in chunks.iter().enumerate() {
            let (low, high) = (lines.at(2 * pair, steps), lines.at(2 * pair + 1, steps));
            let table = amx::bits(_mm512_cvtne2ps_pbh(high, low));
            let bytes = _mm512_cvtepu8_epi16(load(bytes));
            let low = _mm512_and_si512(bytes, _mm512_set1_epi16(15));
            let high = _mm512_or_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi16(16));
            let (low, high) =
                (_mm512_permutexvar_epi16(low, table), _mm512_permutexvar_epi16(high, table));
            amx::put_bits(low, row, &mut tiles[2 * pair]);
            amx::put_bits(high, row, &mut tiles[2 * pair + 1]);
        }
    }
}

/// A row's scales and minimums, within one cache line: a store that crosses lines does not forward.
#[repr(align(64))]
struct Lines {
    /// Eight scales, then eight minimums.
    numbers: [f32; 16],
}

impl Lines {
    /// Reads a block's.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx2,f16c")]
    fn of(block: &[u8]) -> Lines {
        let head = load_128(part(block, 0));
        let [packed, _] = numbers::<Q4K, rows::Avx512Vnni>(block);
        let packed = _mm512_cvtepu8_epi32(packed);
        let units = _mm512_castps128_ps512(_mm_cvtph_ps(head));
        let order = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        let units = _mm512_permutexvar_ps(order, units);
        // Minimums are subtracted.
        let units = _mm512_mask_xor_ps(units, 0xff00, units, _mm512_set1_ps(-0.0));
        let mut numbers = [0.0; 16];
        let product = _mm512_mul_ps(units, _mm512_cvtepi32_ps(packed));
        avx512::store_floats(&mut numbers, product);
        Lines { numbers }
    }

    /// The values of a group's quants.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn at(&self, group: usize, quants: __m512) -> __m512 {
        let scale = _mm512_set1_ps(*apart(&self.numbers[group]));
        let min = _mm512_set1_ps(*apart(&self.numbers[8 + group]));
        _mm512_fmadd_ps(quants, scale, min)
    }
}

/// See [`amx::FillTiles`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,gfni,avx2,f16c")]
pub(super) fn fill_q6_k(rows: PanelRows<'_>, count: usize, tiles: &mut [TileBytes; 8]) {
    /// A row's quants and scales, within cache lines: a store that crosses lines does not forward.
    #[repr(align(64))]
    struct Unpacked {
        quants: [[u8; 16]; 16],
        scales: [f32; 16],
    }
    let mut lines = Unpacked { quants: [[0; 16]; 16], scales: [0.0; 16] };
    for row in 0..count {
        let block: &[u8; size_of::<q6_k::Block>()] = rows.row(row).as_array().expect("a block");
        for (half, to) in lines.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let to = to.as_flattened_mut().as_chunks_mut::<64>().0;
            for (i, to) in to.iter_mut().enumerate() {
                let codes = Q6K::codes::<__m512i>(block, 128 * half + 64 * i);
                let quants = _mm512_sub_epi8(codes, _mm512_set1_epi8(32));
                // SAFETY: 64 bytes are written to a reference to 64.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), quants) };
            }
        }
        let packed = load_128(part(block, offset_of!(q6_k::Block, scales)));
        let d = _mm512_broadcastss_ps(units::<Q6K>(block)[0]);
        let product = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(packed)));
        avx512::store_floats(&mut lines.scales, product);
        for (step, tile) in tiles.iter_mut().enumerate() {
            let mut halves = [_mm512_setzero_ps(); 2];
            for (half, values) in halves.iter_mut().enumerate() {
                let group = 2 * step + half;
                let quants = _mm512_cvtepi8_epi32(load_128(&lines.quants[group]));
                let scale = _mm512_set1_ps(*apart(&lines.scales[group]));
                *values = _mm512_mul_ps(_mm512_cvtepi32_ps(quants), scale);
            }
            let [low, high] = halves;
            amx::put_bits(amx::bits(_mm512_cvtne2ps_pbh(high, low)), row, tile);
        }
    }
}
