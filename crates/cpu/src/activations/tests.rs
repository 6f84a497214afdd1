//! Prepared columns decode to their activations, with identical bits at every level.

use super::*;

/// Column bytes with the alignment that kernels require.
fn prepared(format: Format, level: Level, x: &[f32]) -> Vec<Quad32> {
    let bytes = format.column_bytes(x.len());
    // Initial garbage reveals bytes that a format does not write.
    let mut out = vec![Quad32::zeroed(); bytes.div_ceil(size_of::<Quad32>())];
    bytemuck::cast_slice_mut(&mut out).fill(0xa5u8);
    format.prepare(level, x, &mut bytemuck::cast_slice_mut(&mut out)[..bytes]);
    bytemuck::cast_slice_mut(&mut out)[bytes..].fill(0u8);
    out
}

fn wave(cols: usize) -> Vec<f32> {
    (0..cols).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 32) as f32)).collect()
}

#[test]
fn a_column_gives_back_its_activations_within_half_a_step() {
    for cols in [32, 96, 128, 160, 896] {
        let x = wave(cols);
        let column = prepared(Format::Q8x32, Level::Scalar, &x);
        for (i, x) in x.iter().enumerate() {
            let (quad, lane) = (&column[i / 128], [0, 8, 2, 10][i % 128 / 32]);
            let back = quad.scales[lane] * f32::from(quad.quants[i % 128]);
            assert!((back - x).abs() <= quad.scales[lane] * 0.5001, "{cols} {i}: {back} {x}");
        }
        for i in cols..cols.next_multiple_of(128) {
            let quad = &column[i / 128];
            assert_eq!(quad.quants[i % 128], 0);
            assert_eq!(quad.scales[[0, 8, 2, 10][i % 128 / 32]], 0.0);
        }
        for quad in &column {
            for (lane, block) in QUAD_LANES.into_iter().enumerate() {
                let quants = &quad.quants[block * 32..][..32];
                let sum: f32 = quants.iter().map(|q| f32::from(*q)).sum();
                assert_eq!(quad.sums[lane], 0.25 * quad.scales[lane] * sum);
            }
        }
    }
    let x = wave(768);
    let column = prepared(Format::Q8x256, Level::Scalar, &x);
    let column: &[Block256] = bytemuck::cast_slice(&bytemuck::cast_slice::<_, u8>(&column)[..1152]);
    for (x, block) in x.chunks(256).zip(column) {
        for (i, x) in x.iter().enumerate() {
            let back = block.scale[i % 8] * f32::from(block.quants[i]);
            assert!((back - x).abs() <= block.scale[0] * 0.5001);
        }
        for (i, quants) in block.quants.chunks(16).enumerate() {
            let exact: i16 = quants.iter().map(|q| i16::from(*q)).sum();
            assert_eq!(block.sums[i], block.scale[0] * f32::from(exact));
            assert_eq!(block.whole_sums[[0, 8][i % 2] + i / 2], exact);
        }
    }
}

#[test]
fn every_level_prepares_the_same_bits() {
    let mut x = wave(1024);
    x[..256].fill(0.0);
    x[256..512].iter_mut().for_each(|x| *x *= 1e30);
    x[512..768].iter_mut().for_each(|x| *x *= 1e-38);
    for level in Level::available() {
        for format in [Format::F32, Format::Q8x32, Format::Q8x256, Format::Q8Row] {
            let expected = prepared(format, Level::Scalar, &x);
            let found = prepared(format, level, &x);
            assert_eq!(
                bytemuck::cast_slice::<_, u8>(&found),
                bytemuck::cast_slice::<_, u8>(&expected),
                "{format:?} at {level}"
            );
        }
    }
}

#[test]
fn what_is_not_finite_shows_in_the_scale_and_zeros_have_none() {
    for level in Level::available() {
        for wrong in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = wave(256);
            x[77] = wrong;
            let column = prepared(Format::Q8x32, level, &x);
            // Activation 77 is in block 2, whose first lane is 2.
            assert!(!column[0].scales[2].is_finite());
            assert!(column[0].scales[0].is_finite());
            let column = prepared(Format::Q8x256, level, &x);
            let block: &Block256 = bytemuck::from_bytes(&bytemuck::cast_slice(&column)[..384]);
            assert!(block.scale.iter().all(|scale| !scale.is_finite()));
        }
        let column = prepared(Format::Q8x32, level, &[0.0; 128]);
        assert_eq!(column[0].scales, [0.0; 16]);
        assert_eq!(column[0].quants, [0; 128]);
    }
}

#[test]
fn a_token_whose_squares_overflow_or_vanish_keeps_its_activations() {
    for (level, factor) in Level::available().flat_map(|level| [(level, 1e30), (level, 1e-25)]) {
        let mut x = wave(256);
        x.iter_mut().for_each(|x| *x *= factor);
        let bytes = prepared(Format::Q8Row, level, &x);
        let column =
            RowColumn::of(&bytemuck::cast_slice(&bytes)[..Format::Q8Row.column_bytes(256)]);
        let peak = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        assert_eq!(column.scale, peak / 127.0, "{factor:e} at {level}");
        for (quant, x) in column.quants.iter().zip(&x) {
            let back = column.scale * f32::from(quant.cast_signed());
            assert!((back - x).abs() <= column.scale * 0.5001, "{back} {x} at {level}");
        }
        x[77] = f32::NAN;
        let bytes = prepared(Format::Q8Row, level, &x);
        let column =
            RowColumn::of(&bytemuck::cast_slice(&bytes)[..Format::Q8Row.column_bytes(256)]);
        assert!(column.scale.is_nan(), "{factor:e} at {level}");
    }
}

/// Activations on both sides of 0 need no zero point, and where weights have no sums there is none.
#[test]
fn a_token_on_one_side_of_zero_has_a_zero_point_and_smaller_steps() {
    let even = wave(256);
    let gelu: Vec<f32> = even.iter().map(|x| 0.2 * x.max(-0.5)).collect();
    let steps_of = |x: &[f32], peak: f32| x.iter().fold(0f32, |most, x| most.max(x.abs())) / peak;
    for level in Level::available() {
        let column = |x: &[f32]| {
            let bytes = prepared(Format::Q8Row, level, x);
            let bytes = &bytemuck::cast_slice(&bytes)[..Format::Q8Row.column_bytes(256)];
            let RowColumn { scale, zero, quants, .. } = RowColumn::of(bytes);
            for (quant, x) in quants.iter().zip(x) {
                let back = scale * (i32::from(quant.cast_signed()) + zero) as f32;
                assert!((back - x).abs() <= scale * 0.5001, "{back} {x} at {level}");
            }
            (scale, zero)
        };
        assert_eq!(column(&even), (steps_of(&even, 127.0), 0), "{level}");
        let negative: Vec<f32> = gelu.iter().map(|x| -x).collect();
        for (x, sign) in [(&gelu, 1), (&negative, -1)] {
            let (scale, zero) = column(x);
            assert!(scale < steps_of(x, 220.0), "{scale} at {level}");
            assert!((100..=126).contains(&(sign * zero)), "{zero} at {level}");
            for allowed in [Zero::Any, Zero::Never] {
                let mut out = Lines::new(PackedRows::bytes_per_token(256).next_multiple_of(64));
                pack_rows(level, x, 256, allowed, out.bytes_mut());
                let packed = PackedRows::of(out.bytes(), 256, 1);
                assert_eq!(packed.zeros == [0], allowed == Zero::Never, "{level}");
                assert_eq!(packed.scales == [scale], allowed == Zero::Any, "{level}");
            }
        }
    }
}
