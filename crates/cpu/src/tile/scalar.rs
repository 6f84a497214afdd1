//! The tiles in plain Rust: the reference for the other levels, and the fallback for unknown CPUs.
//!
//! The innermost loops run over the 32 rows, so a compiler may vectorize them.

use std::ops::Range;

use crate::activations::SPAN;
use crate::level::rows::Scalar;
use crate::panel::{Adjust, FloatPanel, Mins, Panel, Quants, ROWS, Span};
use crate::tile::{
    FloatActivations, FloatTiles, Product, Shape, Tile, Tiled, Tiles, Tiling, by_form, few_columns,
    format_of_form, never, whole_row,
};

impl Tiled for Scalar {
    const TILING: Tiling = Tiling {
        names: ["int8 scalar", "f32 scalar"],
        tokens_alone: 0,
        tokens_max: |_| 4,
        format: format_of_form,
        tiles,
        float_tiles: FloatTiles { cols: 128, interleave: float_interleave, tile: float_tile },
        pair_tiles: None,
        row_tiles: whole_row::PORTABLE,
        fill: |_| None,
        fused: |_| None,
        tokens_min: few_columns,
        rounding: never,
        has_matrix_unit: false,
    };
}

fn tiles(quants: &Quants) -> Tiles {
    let tile: Tile = by_form!(quants.form, tile);
    Tiles { adjust: Adjust::unsigned(quants.form, quants.bias), interleave, tile }
}

/// See [`crate::tile::Interleave`].
fn interleave(spans: &[Span; 16], first: usize, adjust: Adjust, panel: &mut Panel) {
    for (row, span) in spans.iter().enumerate() {
        for (step, quants) in span.quants.as_chunks::<4>().0.iter().enumerate() {
            panel.quants[step][first + row] = quants.map(|quant| quant.wrapping_add(adjust.quants));
        }
        for group in 0..16 {
            panel.scales[group][first + row] = span.unit * span.scales[group];
            if let Mins::Times(factor) = adjust.mins {
                panel.mins[group][first + row] = span.min_unit * span.mins[group] * factor;
            }
        }
    }
}

/// See [`Tile`]: integer sums per group and token are exact, everything after them is f32.
fn tile<S: Shape>(product: Product<'_>, strip: &mut [f32]) {
    let Product { panel, block, ahead, stride } = product;
    ahead.fetch();
    let tokens = block.tokens;
    let steps = bytemuck::cast_slice::<u8, [i8; 4]>(block.quants());
    let (sums, scales) = (block.sums(), block.scales());
    for token in 0..tokens {
        let mut out = [0.0f32; ROWS];
        for group in 0..block.cols / 4 / S::STEPS {
            let index = group * tokens + token;
            let start = match S::SIGNED {
                true => {
                    (0..S::SUMS).map(|sum| sums[(group * S::SUMS + sum) * tokens + token]).sum()
                }
                false => 0,
            };
            let mut dots = [start; ROWS];
            for step in group * S::STEPS..(group + 1) * S::STEPS {
                let x = steps[step * tokens + token].map(i32::from);
                for (dot, w) in dots.iter_mut().zip(&panel.quants[step]) {
                    *dot += (0..4).map(|k| i32::from(w[k]) * x[k]).sum::<i32>();
                }
            }
            let sum = match (S::SIGNED, S::FLOAT_SUMS) {
                (true, _) => 0.0,
                (false, true) => block.float_sums()[index],
                (false, false) => sums[index] as f32,
            };
            let scale = if S::PER_256 { 1.0 } else { scales[index] };
            for row in 0..ROWS {
                out[row] += panel.scales[group][row] * (dots[row] as f32 * scale);
                if !S::SIGNED {
                    out[row] += panel.mins[group][row] * (sum * scale);
                }
            }
        }
        let scale = if S::PER_256 { scales[token] } else { 1.0 };
        for (strip, out) in strip[token * stride..][..ROWS].iter_mut().zip(out) {
            *strip += out * scale;
        }
    }
}

fn float_interleave(
    rows: &[[f32; SPAN]],
    cols: Range<usize>,
    first: usize,
    panel: &mut FloatPanel,
) {
    for (row, weights) in rows.iter().enumerate() {
        for (weight, panel) in weights[cols.clone()].iter().zip(panel.iter_mut()) {
            panel[first + row] = *weight;
        }
    }
}

fn float_tile(
    panel: &[[f32; ROWS]],
    columns: FloatActivations<'_>,
    strip: &mut [f32],
    stride: usize,
) {
    columns.fetch();
    for (token, strip) in strip.chunks_mut(stride).enumerate().take(columns.tokens) {
        let mut out = [0.0f32; ROWS];
        for (weights, x) in panel.iter().zip(columns.values.chunks_exact(columns.tokens)) {
            for (out, weight) in out.iter_mut().zip(weights) {
                *out += weight * x[token];
            }
        }
        for (strip, out) in strip.iter_mut().zip(out) {
            *strip += out;
        }
    }
}
