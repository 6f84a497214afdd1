//! Blocks within rows: each is coded by itself, read from anywhere in its row, and not improved by changing a bit.

use std::panic::catch_unwind;

use super::{all, error, gaussian, read, write, written};
use bilayer_quant::{Error, Type, w8a8};

/// Costs as of activations.
fn costs(seed: u64, len: usize) -> Vec<f32> {
    gaussian(seed, len).iter().map(|x| x.exp()).collect()
}

#[test]
fn each_block_is_coded_by_itself() {
    for t in written().filter(|t| t.has_lone_blocks()) {
        // Blocks are searched eight at a time; eleven of them leave a part.
        for count in [1, 8, 11] {
            let n = t.block_weights;
            let (values, importance) = (gaussian(21, count * n), costs(22, count * n));
            for importance in [None, Some(&importance[..])] {
                let row = write(t, &values, importance);
                for (k, block) in row.chunks(t.block_bytes).enumerate() {
                    let range = k * n..(k + 1) * n;
                    let alone = write(t, &values[range.clone()], importance.map(|of| &of[range]));
                    assert_eq!(block, alone, "{t}: block {k} of {count}");
                }
            }
        }
    }
}

#[test]
fn columns_of_a_row_read_as_in_the_row() {
    for &t in all() {
        let n = t.block_weights;
        let bytes = super::noise(7, t.row_bytes(40 * n).unwrap());
        let row = read(t, &bytes);
        for (first, count) in [(0, 40), (0, 1), (39, 1), (3, 36), (1, 33), (40, 0)] {
            let mut part = vec![f32::NAN; count * n];
            t.dequantize_cols(&bytes, first * n, &mut part);
            let expected = &row[first * n..(first + count) * n];
            assert_eq!(super::bits(&part), super::bits(expected), "{t}: {count} from {first}");
        }
        for (first, len) in [(40 * n, n), (0, 41 * n)] {
            let read = || t.dequantize_cols(&bytes, first, &mut vec![0.0; len]);
            assert!(catch_unwind(read).is_err(), "{t}: {len} from {first} are beyond the row");
        }
        if n > 1 {
            for (first, len) in [(1, n), (0, n - 1)] {
                let read = || t.dequantize_cols(&bytes, first, &mut vec![0.0; len]);
                assert!(catch_unwind(read).is_err(), "{t}: {len} from {first} are no blocks");
            }
        }
    }
}

#[test]
fn the_bytes_tell_how_many_rows_with_a_header_there_are() {
    let t = Type::W8A8;
    // 192 weights, as rows of 192, 96, 64 and 32.
    for rows in [1, 2, 3, 6] {
        let (values, mut bytes) = (gaussian(23, 192), vec![0; 192 + 4 * rows]);
        t.quantize(&values, None, &mut bytes).unwrap();
        let mut back = vec![0.0; 192];
        t.dequantize(&bytes, &mut back).unwrap();
        let cols = 192 / rows;
        for (row, values) in bytes.chunks(4 + cols).zip(values.chunks(cols)) {
            let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
            assert!((w8a8::scale(row) * 127.0 / peak - 1.0).abs() < 0.0005, "{rows} rows");
        }
        for (x, back) in values.iter().zip(&back) {
            assert!((x - back).abs() < 0.02, "{rows} rows: {x} {back}");
        }
    }
    // No row; 4 and 12 of a part of a block, 5 of no whole number of weights; a part of a header; part of the codes.
    for bytes in [192, 192 + 16, 192 + 48, 192 + 20, 192 + 5, 190, 100, 0] {
        let expected = Error::Length { quant: t, what: "bytes", expected: 196, found: bytes };
        let found = t.dequantize(&vec![0; bytes], &mut [0.0; 192]);
        assert_eq!(found, Err(expected), "{bytes} bytes");
    }
    assert_eq!(t.dequantize(&[], &mut []), Ok(()));
    assert!(t.dequantize(&[0; 4], &mut []).is_err());
}

/// √(Σw(x - x')²) of a block, with a search's costs of errors: larger weights count more.
fn loss(t: Type, block: &[u8], values: &[f32], w: &[f64]) -> f64 {
    let back = read(t, block);
    let squares = values.iter().zip(back).map(|(x, back)| f64::from(x - back).powi(2));
    squares.zip(w).map(|(square, w)| square * w).sum()
}

/// Of codes, signs, scales and points, each is the best while the others stay. Only the shared scales of K types are
/// fitted to codes that then change once more.
#[test]
fn no_bit_of_a_block_makes_it_better_when_flipped() {
    // Q8_0 has a rule of its own; TQ2_0 has room for a fourth digit that is not part of the type.
    let is_searched = |t: &Type| ![Type::Q8_0, Type::TQ2_0].contains(t) && t.has_lone_blocks();
    for t in written().filter(|t| t.block_weights > 1).filter(is_searched) {
        let allowed = if t.name.ends_with("_K") { 0.003 } else { 1e-6 };
        for seed in 0..2 {
            let n = t.block_weights;
            let (values, importance) = (gaussian(30 + seed, n), costs(40 + seed, n));
            // Types that keep some weights only have the costs as given.
            let as_given = t.kept_of_64().is_some();
            let mean = importance.iter().sum::<f32>() / n as f32;
            let square = values.iter().map(|x| x * x).sum::<f32>() / n as f32;
            let own = |i: usize| f64::from((2.0 * square + values[i] * values[i]).sqrt());
            let w: Vec<f64> = (0..n)
                .map(|i| f64::from(importance[i] / mean) * if as_given { 1.0 } else { own(i) })
                .collect();
            let mut block = write(t, &values, Some(&importance));
            let least = loss(t, &block, &values, &w);
            for bit in 0..8 * block.len() {
                block[bit / 8] ^= 1 << (bit % 8);
                let gain = 1.0 - loss(t, &block, &values, &w) / least;
                block[bit / 8] ^= 1 << (bit % 8);
                // Not a number where the scale is none.
                assert!(gain.max(0.0) <= allowed, "{t}: bit {bit} of row {seed} gains {gain}");
            }
        }
    }
}

#[test]
fn a_type_is_a_key_and_a_word() {
    use std::collections::HashMap;
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    let types: HashMap<Type, usize> = all().iter().enumerate().map(|(k, t)| (*t, k)).collect();
    for (k, t) in all().iter().enumerate() {
        assert_eq!(types[t], k);
    }
    let hash = |t: Type| BuildHasherDefault::<DefaultHasher>::default().hash_one(t);
    assert_ne!(hash(Type::Q4_K), hash(Type::Q5_K));
    assert_eq!(format!("{:>6}|{:<6}|{:?}", Type::Q4_K, Type::F16, Type::F32), "  Q4_K|F16   |F32");
}

#[test]
fn importance_changes_no_more_than_it_should() {
    // Equal costs are those of no importance, where there is no other rule.
    for t in written().filter(|t| t.block_weights == 256 && t.kept_of_64().is_none()) {
        if t.name.starts_with("TQ") {
            continue;
        }
        let values = gaussian(50, 512);
        let [plain, equal] = [None, Some(&[3.0; 512][..])].map(|of| error(t, &values, of, None));
        assert!((equal / plain - 1.0).abs() < 0.01, "{t}: {plain} and {equal}");
    }
}
