//! Tests GEMM against an f64 reference, for every level, type and awkward shape.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use bilayer_quant::Type;

use super::*;
use crate::activations::PreparedColumns;

/// Reproducible, approximately normal random numbers.
pub(crate) fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next() + next() + next()).collect()
}

fn quantized(ty: Type, rows: usize, cols: usize, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; rows * ty.row_bytes(cols).unwrap()];
    if ty.quantize.is_some() {
        ty.quantize(&noise(rows * cols, seed), None, &mut bytes).unwrap();
    } else {
        for (byte, value) in bytes.iter_mut().zip(noise(rows * cols, seed)) {
            *byte = (value.abs() * 40.0) as u8;
        }
    }
    let mut weights = vec![0.0; rows * cols];
    ty.dequantize(&bytes, &mut weights).unwrap();
    (bytes, weights)
}

fn product(gemm: &Gemm, bytes: &[u8], x: &[f32], tokens: usize) -> Vec<f32> {
    let rows = bytes.len() / gemm.row_bytes;
    let packed = gemm.packing.pack_all(x, tokens);
    let mut scratch = vec![0xff; gemm.scratch_bytes(tokens)];
    let mut out = vec![f32::NAN; rows * tokens];
    gemm.run(bytes, packed.get(), &mut scratch, &mut out);
    out
}

/// Bound on the rounding of a packed activation.
fn rounding(format: Format, x: &[f32], cols: usize) -> Vec<f64> {
    let per = match format {
        Format::F32 => return vec![0.0; x.len()],
        // With one plane the weights are rounded too; both roundings are counted here.
        #[cfg(target_arch = "x86_64")]
        Format::Tiles { planes: 1 } => {
            return x.iter().map(|x| f64::from(x.abs()) / 127.0).collect();
        }
        #[cfg(target_arch = "x86_64")]
        Format::Bf16 => return x.iter().map(|x| f64::from(x.abs()) / 255.0 + 1e-38).collect(),
        #[cfg(target_arch = "x86_64")]
        Format::Tiles { .. } => return x.iter().map(|x| f64::from(x.abs()) / 21000.0).collect(),
        Format::Q8x32 => 32,
        Format::Q8x256 => 256,
        #[cfg(target_arch = "x86_64")]
        Format::Q8x256Pairs => 256,
        #[cfg(target_arch = "x86_64")]
        Format::Q12x256 => {
            return peaks(x, 256).into_iter().map(|peak| peak / 4090.0).collect();
        }
        Format::Q8Row => cols,
    };
    peaks(x, per).into_iter().map(|peak| peak / 253.0).collect()
}

/// For each value the largest magnitude of its chunk.
fn peaks(x: &[f32], per: usize) -> Vec<f64> {
    x.chunks(per)
        .flat_map(|x| {
            let peak = x.iter().fold(0.0f64, |peak, x| peak.max(f64::from(x.abs())));
            x.iter().map(move |_| peak)
        })
        .collect()
}

/// Bound on the rounding of a weight of the panel.
fn weight_rounding(format: Format, weights: &[f32]) -> Vec<f64> {
    match format {
        // To 1/32 of the step of the largest scale, of whose 128 steps at least half are used.
        #[cfg(target_arch = "x86_64")]
        Format::Q12x256 => peaks(weights, 256).into_iter().map(|peak| peak / 2000.0).collect(),
        _ => vec![0.0; weights.len()],
    }
}

fn check(ty: Type, level: Level, (rows, cols, tokens): (usize, usize, usize)) {
    let (bytes, weights) = quantized(ty, rows, cols, 11);
    let x = noise(tokens * cols, 5);
    check_product(&gemm(ty, cols, level), (&bytes, &weights), &x, (rows, cols, tokens));
}

fn check_product(
    gemm: &Gemm,
    (bytes, weights): (&[u8], &[f32]),
    x: &[f32],
    (rows, cols, tokens): (usize, usize, usize),
) {
    let name = gemm.name;
    let out = product(gemm, bytes, x, tokens);
    let format = gemm.packing.at(tokens).format;
    let is_rounded = gemm.rounds(tokens);
    let slack = rounding(format, x, cols);
    for row in 0..rows {
        let w = &weights[row * cols..(row + 1) * cols];
        let weight_slack = match is_rounded {
            true => peaks(w, 256).into_iter().map(|peak| peak / 250.0).collect(),
            false => weight_rounding(format, w),
        };
        for token in 0..tokens {
            let range = token * cols..(token + 1) * cols;
            let (mut exact, mut bound) = (0.0f64, 1e-30f64);
            let rounded = slack[range.clone()].iter().zip(&weight_slack);
            for ((w, x), (slack, weight_slack)) in w.iter().zip(&x[range]).zip(rounded) {
                let (w, x) = (f64::from(*w), f64::from(*x));
                exact += w * x;
                bound += w.abs() * (slack + x.abs() * (cols as f64 * 1.2e-7));
                bound += weight_slack * (x.abs() + slack);
            }
            let found = f64::from(out[token * rows + row]);
            assert!(
                (found - exact).abs() <= bound,
                "{name} [{rows}, {cols}] x {tokens}: row {row}, token {token}: \
                 {found}, exactly {exact} ± {bound}"
            );
        }
    }
}

#[test]
fn every_type_agrees_with_f64_at_every_level() {
    for ty in bilayer_quant::all().iter().copied() {
        let cols = if ty.block_weights <= 32 { 480 } else { 512 };
        for level in Level::available() {
            check(ty, level, (35, cols, 7));
            check(ty, level, (35, cols, 26));
            // Whole panels, which few tokens multiply otherwise, and 3 rows more.
            for tokens in [4, 8] {
                check(ty, level, (67, 512, tokens));
            }
        }
    }
}

/// Integer sums use as few bits as possible: here every weight, scale and activation is as large as it can be.
#[test]
fn the_largest_numbers_do_not_overflow() {
    let (rows, cols, tokens) = (32, 512, 5);
    let types = bilayer_quant::all().iter().copied().filter(|ty| panel::quants(*ty).is_some());
    for ty in types {
        for (scales, rest) in [0x00, 0x7f, 0x80, 0xff]
            .into_iter()
            .flat_map(|scales: u8| [0x00, 0xff].map(|rest: u8| (scales, rest)))
        {
            let mut block = Vec::new();
            for plane in ty.planes {
                match plane.name {
                    "d" | "dmin" | "m" => block.extend(half::f16::ONE.to_le_bytes()),
                    "e" => block.push(127),
                    // A block of a sparse type names no place of a group twice.
                    "places" => block.extend((0..plane.len).map(|slot| {
                        let kept = ty.kept_of_64().unwrap();
                        (slot % kept * (64 / kept)) as u8
                    })),
                    // The upper nibbles are those of a shared scale of 1.
                    "scales" if ty == Type::IQ1_M => block.extend(
                        [0x00, 0x00, 0xc0, 0x30].iter().flat_map(|d| [scales, scales & 15 | d]),
                    ),
                    name if name.starts_with("scales") => block.extend(vec![scales; plane.len]),
                    _ => block.extend(vec![rest; plane.len]),
                }
            }
            let bytes = block.repeat(rows * cols / ty.block_weights);
            let mut weights = vec![0.0; rows * cols];
            ty.dequantize(&bytes, &mut weights).unwrap();
            // All of one sign, all of the other, and each with its weight's sign.
            let x: Vec<f32> = (0..tokens * cols)
                .map(|i| match i / cols {
                    0 | 3 => 1.0,
                    1 | 4 => -1.0,
                    _ => 1.0f32.copysign(weights[i % cols]),
                })
                .collect();
            for level in Level::available() {
                let gemm = gemm(ty, cols, level);
                check_product(&gemm, (&bytes, &weights), &x, (rows, cols, tokens));
            }
        }
    }
}

/// From the number of tokens on from which it pays, a product is that of the rounded weights; below it is exact, and so it
/// is for rows that are not whole spans.
#[test]
fn rounded_weights_agree_within_their_rounding() {
    let (rows, cols) = (19, 512);
    for ty in bilayer_quant::all().iter().copied() {
        for level in Level::available() {
            let (exact, rounded) = (gemm(ty, cols, level), gemm_rounded(ty, cols, level));
            let Some(many) = (13..=256).find(|tokens| rounded.rounds(*tokens)) else {
                assert_eq!(exact.packing, rounded.packing, "{ty} {level}");
                continue;
            };
            let (bytes, weights) = quantized(ty, rows, cols, 11);
            let x = noise((many + 3) * cols, 5);
            let x = |tokens| &x[..tokens * cols];
            for tokens in [many, many + 3] {
                check_product(&rounded, (&bytes, &weights), x(tokens), (rows, cols, tokens));
            }
            let few = |gemm| product(gemm, &bytes, x(many - 1), many - 1);
            assert!(few(&exact) == few(&rounded), "{ty} {level}");
            if ty.block_weights < SPAN {
                let odd = gemm_rounded(ty, cols + 32, level).packing;
                assert_eq!(odd, gemm(ty, cols + 32, level).packing, "{ty} {level}");
            }
            let mut x = x(many).to_vec();
            x[3 * cols + 300] = f32::NAN;
            for (i, value) in product(&rounded, &bytes, &x, many).iter().enumerate() {
                assert_eq!(value.is_finite(), i / rows != 3, "{ty} {level} {i}: {value}");
            }
        }
    }
}

/// The shortest prompts for which weights are rounded, per type and level.
#[cfg(target_arch = "x86_64")]
#[test]
fn floats_are_rounded_at_avx2_and_all_types_at_avx512() {
    let rounds = |ty, level: Level, tokens| {
        level.is_available().then(|| gemm_rounded(ty, 256, level).rounds(tokens))
    };
    for (ty, level, few, many) in [
        (Type::F16, Level::Avx2, 31, 32),
        (Type::Q4_K, Level::Avx2, 4096, usize::MAX),
        (Type::F32, Level::Avx512Vnni, 15, 16),
        (Type::Q4_K, Level::Avx512Vnni, 255, 256),
        (Type::W8A8, Level::Avx512Vnni, 4096, usize::MAX),
    ] {
        assert_ne!(rounds(ty, level, few), Some(true), "{ty} {level}");
        assert!(many == usize::MAX || rounds(ty, level, many) != Some(false), "{ty} {level}");
    }
}

#[test]
fn every_number_of_tokens_agrees() {
    for ty in [Type::Q4_K, Type::Q8_0, Type::Q6_K, Type::F16, Type::W8A8] {
        for level in Level::available().filter(|level| *level != Level::Scalar) {
            for tokens in 1..=70 {
                check(ty, level, (65, 256, tokens));
            }
        }
    }
}

#[test]
fn odd_rows_and_columns_agree() {
    for level in Level::available() {
        for rows in [1, 15, 16, 17, 32, 48, 64, 100, 128, 150, 160] {
            check(Type::Q4_K, level, (rows, 768, 9));
            check(Type::Q4_K, level, (rows, 768, 37));
            check(Type::Q4_0, level, (rows, 32, 3));
            check(Type::Q5_1, level, (rows, 288, 3));
        }
        for cols in [1, 31, 100, 129, 257, 300] {
            check(Type::F32, level, (40, cols, 5));
            check(Type::BF16, level, (40, cols, 5));
        }
    }
}

#[test]
fn integer_levels_agree_but_for_the_order_of_f32_sums() {
    for ty in bilayer_quant::all().iter().copied().filter(|ty| panel::quants(*ty).is_some()) {
        let (rows, cols, tokens) = (32, 512, 13);
        let (bytes, weights) = quantized(ty, rows, cols, 3);
        let x = noise(tokens * cols, 4);
        let oracle = product(&gemm(ty, cols, Level::Scalar), &bytes, &x, tokens);
        for level in Level::available() {
            let gemm = gemm(ty, cols, level);
            // Other activations.
            #[cfg(target_arch = "x86_64")]
            if matches!(gemm.packing.at(tokens).format, Format::Tiles { .. } | Format::Q12x256) {
                continue;
            }
            let found = product(&gemm, &bytes, &x, tokens);
            for (i, (found, expected)) in found.iter().zip(&oracle).enumerate() {
                let (token, row) = (i / rows, i % rows);
                let bound: f32 = (0..cols)
                    .map(|col| (weights[row * cols + col] * x[token * cols + col]).abs())
                    .sum();
                assert!((found - expected).abs() <= 3e-6 * bound, "{ty} {level} {i}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_reaches_every_result_of_its_token() {
    for ty in [Type::Q4_0, Type::Q4_K, Type::Q6_K, Type::F16, Type::F32, Type::IQ2_XXS, Type::W8A8]
    {
        let (rows, cols) = (20, 512);
        let (bytes, _) = quantized(ty, rows, cols, 9);
        for (level, tokens) in Level::available().flat_map(|level| [(level, 9), (level, 40)]) {
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = noise(tokens * cols, 2);
                x[3 * cols + 300] = odd;
                let out = product(&gemm(ty, cols, level), &bytes, &x, tokens);
                for (i, value) in out.iter().enumerate() {
                    assert_eq!(value.is_finite(), i / rows != 3, "{ty} {level} {odd} {i}: {value}");
                }
            }
        }
    }
}

/// What a quant of a token stands for, and its reciprocal.
fn step_of_a_token(x: &[f32]) -> (f32, f32) {
    let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let limit = 5.0 * (square / x.len() as f64).sqrt();
    let mut sorted = x.to_vec();
    sorted.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
    let is_outlier = |x: &&f32| f64::from(x.abs()) > limit;
    let (outliers, rest) = sorted.split_at(sorted.iter().take(8).filter(is_outlier).count());
    let least = outliers.first().map_or(0.0, |outlier| outlier.abs() * (127.0 / 32767.0));
    let above = rest.iter().fold(0.0f32, |most, x| most.max(*x));
    let below = rest.iter().fold(0.0f32, |most, x| most.max(-x));
    let (peak, half) = (above.max(below), (0.5 * above + 0.5 * below).max(least));
    if half <= 0.75 * peak {
        return (half / 126.0, 126.0 / half);
    }
    (peak.max(least) / 127.0, 127.0 / peak.max(least))
}

/// Whole rows are integers until the one multiplication by their scales: plain arithmetic gives the same bits, at every
/// level, for any number of tokens, in one panel or several, for the largest products too, with outliers: more than eight
/// of them, equal ones, and one that is many times larger than all others; and with zero points, where nearly all activations
/// are on one side of 0.
#[test]
fn rows_with_one_scale_are_exact_to_the_bit() {
    use crate::dot::dot;

    for (rows, cols, tokens) in [(35, 32, 9), (33, 544, 7), (64, 1600, 3), (3, 96, 26)] {
        let d = |row: usize| 0.003 * (1.0 + row as f32);
        let code = |row: usize, col: usize| match row % 5 {
            0 => -128i8,
            1 => 127,
            _ => (((row * 31 + col * 17) % 255) as i32 - 127) as i8,
        };
        let mut bytes = Vec::new();
        for row in 0..rows {
            bytes.extend(d(row).to_le_bytes());
            bytes.extend((0..cols).map(|col| code(row, col).cast_unsigned()));
        }
        let mut x = noise(tokens * cols, 6);
        x[..cols].fill(1.5);
        x[cols..2 * cols].fill(-0.25);
        x[2 * cols..3 * cols].iter_mut().for_each(|x| *x *= 0.1);
        let planted = if cols < 500 { 1 } else { 11 };
        for (i, x) in x[2 * cols..].iter_mut().step_by(29).take(planted).enumerate() {
            *x = [6.5, -4.0, 7.25, -4.0][i % 4];
        }
        if tokens > 3 {
            x[3 * cols..4 * cols].fill(1e-4);
            x[4 * cols - 1] = -9.0;
            x[4 * cols..5 * cols].iter_mut().for_each(|x| *x = 0.3 * x.abs() - 0.04);
            x[4 * cols + 7] = 20.0;
            x[5 * cols..6 * cols].iter_mut().for_each(|x| *x = 0.1 - x.abs());
        }
        let mut expected = Vec::new();
        for x in x.chunks(cols) {
            let (step, inverse) = step_of_a_token(x);
            let quants: Vec<i64> =
                x.iter().map(|x| (x * inverse).round_ties_even() as i64).collect();
            for row in 0..rows {
                let products = quants.iter().enumerate().map(|(i, q)| q * i64::from(code(row, i)));
                expected.push(products.sum::<i64>() as f32 * (d(row) * step));
            }
        }
        for level in Level::available() {
            let found = product(&gemm(Type::W8A8, cols, level), &bytes, &x, tokens);
            assert!(found == expected, "{level} [{rows}, {cols}] x {tokens}");
            let dot = dot(Type::W8A8, cols, level);
            let columns = PreparedColumns::new(dot.format, level, &x, cols);
            let mut out = vec![f32::NAN; rows * tokens];
            dot.run(&bytes, columns.get(), &mut out);
            assert!(out == expected, "{} [{rows}, {cols}] x {tokens}", dot.name);
        }
    }
}

#[test]
fn equal_packings_are_shared_between_types() {
    let packing = |ty| gemm(ty, 512, Level::detect()).packing;
    assert_eq!(packing(Type::Q4_K), packing(Type::Q6_K));
    assert_eq!(packing(Type::Q4_0), packing(Type::Q5_1));
    assert_eq!(packing(Type::Q8_0), packing(Type::IQ4_NL));
    assert_ne!(packing(Type::F32), packing(Type::Q8_0));
}
