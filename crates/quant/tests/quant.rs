//! Every quantization type: sizes, golden bytes, round trips within the bound it promises.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "measured errors are shown")]

use std::collections::HashSet;
use std::fs;

#[path = "quant/blocks.rs"]
mod blocks;
#[path = "../../../tests/support/data.rs"]
mod data;

use bilayer_quant::{Error, ROW_HEADER_MAX, Type, all, by_id, by_name};

/// A type's facts, and the FNV-1a of the f32 bytes that four blocks of `noise(seed)` dequantize to.
struct Golden {
    name: &'static str,
    gguf_id: u32,
    block_weights: usize,
    block_bytes: usize,
    seed: u64,
    read: u64,
}

const fn golden(
    name: &'static str,
    gguf_id: u32,
    block: (usize, usize),
    seed: u64,
    read: u64,
) -> Golden {
    Golden { name, gguf_id, block_weights: block.0, block_bytes: block.1, seed, read }
}

/// Made with gguf-py 0.19's numpy code, those of the sparse types and W8A8 with numpy code of their drawing; seeds are those whose blocks read as finite numbers.
const GOLDEN: &[Golden] = &[
    golden("F32", 0, (1, 4), 0, 0x1615_cf11_5708_45b5),
    golden("F16", 1, (1, 2), 0, 0xca3b_3397_0d89_7b61),
    golden("BF16", 30, (1, 2), 0, 0x131b_3326_9ab0_7a72),
    golden("Q4_0", 2, (32, 18), 0, 0x409e_bb3c_f97c_5dd8),
    golden("Q4_1", 3, (32, 20), 0, 0xa46c_4afc_377d_8cdf),
    golden("Q5_0", 6, (32, 22), 0, 0xd116_3b17_38b7_7483),
    golden("Q5_1", 7, (32, 24), 0, 0x7d63_d3a9_a6f1_0a7b),
    golden("Q8_0", 8, (32, 34), 0, 0x7a16_ab6d_cf66_1b4f),
    golden("Q2_K", 10, (256, 84), 0, 0xbd4e_a6c8_5e14_f87f),
    golden("Q3_K", 11, (256, 110), 1, 0xab71_e3c1_b146_904e),
    golden("Q4_K", 12, (256, 144), 0, 0xe3de_17be_1136_ff6c),
    golden("Q5_K", 13, (256, 176), 1, 0xb6f8_8ad5_b2ec_3e74),
    golden("Q6_K", 14, (256, 210), 0, 0xc10d_7720_5b00_657f),
    golden("IQ1_S", 19, (256, 50), 0, 0xd5b3_1bef_fbac_a854),
    golden("IQ1_M", 29, (256, 56), 0, 0x6fd3_3759_2eb2_4395),
    golden("IQ2_XXS", 16, (256, 66), 0, 0x54fa_54b7_1bc3_f770),
    golden("IQ2_XS", 17, (256, 74), 0, 0x4366_7ae1_edc0_c3e8),
    golden("IQ2_S", 22, (256, 82), 0, 0x03e3_c17b_c065_c371),
    golden("IQ3_XXS", 18, (256, 98), 0, 0x5731_55ea_a977_863b),
    golden("IQ3_S", 21, (256, 110), 0, 0xadd4_c8d3_c1e9_b2ba),
    golden("IQ4_NL", 20, (32, 18), 0, 0x1041_d8fd_6ce8_cf36),
    golden("IQ4_XS", 23, (256, 136), 2, 0xad08_561a_e59f_e55b),
    golden("TQ1_0", 34, (256, 54), 0, 0x70ff_af32_28f8_9e06),
    golden("TQ2_0", 35, (256, 66), 0, 0x3abd_3cb2_ddef_c6b7),
    golden("MXFP4", 39, (32, 17), 0, 0x383d_d1cf_482b_a900),
    golden("NVFP4", 40, (64, 36), 0, 0x4ed6_5867_e0fb_8541),
    golden("W8A8", 0x424c_08a8, (32, 32), 3, 0xe000_7e55_a5e7_8dd9),
    golden("S4_4_64", 0x424c_0404, (256, 26), 0, 0xc26f_0767_2f29_6565),
    golden("S4_8_64", 0x424c_0408, (256, 50), 0, 0xba54_a001_3b80_1721),
    golden("S4_12_64", 0x424c_040c, (256, 74), 0, 0xe219_0c2c_d807_832d),
    golden("S4_16_64", 0x424c_0410, (256, 98), 0, 0x660b_78c3_0c02_a8bc),
    golden("S4_24_64", 0x424c_0418, (256, 146), 0, 0x6c3e_48c2_6d9a_66b8),
    golden("S4_32_64", 0x424c_0420, (256, 194), 0, 0x9c1d_274d_ce0f_3177),
    golden("S8_4_64", 0x424c_0804, (256, 34), 0, 0x80e3_25a0_8c59_e1e4),
    golden("S8_8_64", 0x424c_0808, (256, 66), 0, 0xea36_f96c_bcac_b42c),
    golden("S8_12_64", 0x424c_080c, (256, 98), 0, 0xb5ad_9029_eda7_76e0),
    golden("S8_16_64", 0x424c_0810, (256, 130), 0, 0xfe36_5761_cf5d_c293),
    golden("S8_24_64", 0x424c_0818, (256, 194), 0, 0x5c79_260a_4db3_386f),
    golden("S8_32_64", 0x424c_0820, (256, 258), 0, 0xad42_b9d8_efbc_c7d3),
];

/// FNV-1a of the bytes that gguf-py writes for 128 values of `uniform(1)`, for types with a fixed rule.
const GOLDEN_WRITTEN: &[(&str, u64)] = &[
    ("F16", 0x1178_a4d9_8291_5378),
    ("BF16", 0xe919_adaf_2da5_eaef),
    ("Q4_0", 0xb354_0e16_d532_e80a),
    ("Q4_1", 0xa34c_c6ee_4fbc_51c5),
    ("Q5_0", 0x2062_f3f4_e782_6f13),
    ("Q5_1", 0x7580_a0b4_b585_3504),
    ("Q8_0", 0xdb4c_1acc_3766_0e3f),
    ("MXFP4", 0xab29_203a_2d47_1b3c),
];

/// Types whose rule ignores importance.
const DEAF: &[&str] = &["F32", "F16", "BF16", "Q8_0", "W8A8"];

/// Weights in the round-trip tests: a multiple of every block.
const WEIGHTS: usize = 64 * 256;

#[test]
fn the_table_is_consistent() {
    let ids: HashSet<_> = all().iter().map(|t| t.gguf_id).collect();
    let names: HashSet<_> = all().iter().map(|t| t.name).collect();
    assert_eq!((ids.len(), names.len()), (all().len(), all().len()), "ids and names are unique");
    for t in all() {
        assert_eq!(t.is_gguf(), t.gguf_id < 1 << 16, "{t}: numbers above are private");
    }
    for &t in all() {
        let mut end = 0;
        for plane in t.planes {
            assert_eq!(plane.offset, end, "{t}: plane {} starts where the last ended", plane.name);
            assert!(plane.len > 0, "{t}: plane {} is empty", plane.name);
            end += plane.len;
        }
        assert_eq!(end, t.block_bytes, "{t}: planes cover the block");
        assert_eq!(t.quantize.is_some(), t.error_max.is_finite(), "{t}: a bound where we write");
    }
    for known in GOLDEN {
        let t = by_name(known.name).unwrap();
        let found = (t.gguf_id, t.block_weights, t.block_bytes);
        assert_eq!(found, (known.gguf_id, known.block_weights, known.block_bytes), "{t}");
    }
}

#[test]
fn types_are_found_by_id_and_name() {
    for &t in all() {
        assert_eq!(by_id(t.gguf_id), Ok(t));
        assert_eq!(by_name(t.name), Ok(t));
        assert_eq!(by_name(&t.name.to_lowercase()), Ok(t));
        assert_eq!((format!("{t}"), format!("{t:?}")), (t.name.into(), t.name.into()));
    }
    assert_eq!(Type::Q4_K, by_id(12).unwrap());
    assert_ne!(Type::Q4_K, Type::Q5_K);
    // 4 and 5 were removed from the format, 9 and 15 never occur in a file.
    for id in [4, 5, 9, 15, 1000, u32::MAX] {
        assert_eq!(by_id(id), Err(Error::UnknownId { id }));
    }
    for name in ["", "Q4", "Q4_K_M", "q9_0"] {
        let error = by_name(name).unwrap_err();
        assert_eq!(error, Error::UnknownName { name: name.into() });
        assert!(error.to_string().contains("Q4_K, Q5_K"), "the message lists what is known");
    }
}

#[test]
fn golden_blocks_dequantize_to_recorded_values() {
    for known in GOLDEN {
        let t = by_name(known.name).unwrap();
        let values = read(t, &noise(known.seed, t.row_bytes(4 * t.block_weights).unwrap()));
        let found = fnv(&bytes_of(&values));
        assert_eq!(
            found,
            known.read,
            "{t}: {found:#x}, beginning {:?}",
            &values[..t.block_weights.min(8)]
        );
    }
}

/// Plain numbers, whose bytes are their values: they need no golden blocks, and are not used for weights.
const PLAIN: &[&str] = &["I8", "I16", "I32", "I64", "F64"];

#[test]
fn every_type_has_golden_blocks() {
    for &ty in all() {
        let is_plain = PLAIN.contains(&ty.name);
        let is_known = GOLDEN.iter().any(|known| known.name == ty.name);
        assert!(is_plain || is_known, "{ty} has no golden blocks");
    }
    for name in PLAIN {
        assert!(by_name(name).is_ok(), "{name} is no type");
    }
}

#[test]
fn golden_values_quantize_to_recorded_bytes() {
    for &(name, expected) in GOLDEN_WRITTEN {
        let t = by_name(name).unwrap();
        assert_eq!(fnv(&write(t, &uniform(1, 128), None)), expected, "{t}");
    }
}

/// Blocks computed by hand, one per encoding of weights.
#[test]
fn blocks_read_as_drawn() {
    let half = |value: f32| half::f16::from_f32(value).to_le_bytes().to_vec();
    let mut q4_0 = half(0.5);
    q4_0.extend([0x8f; 16]);
    assert_eq!(read(Type::Q4_0, &q4_0), [[3.5; 16], [0.0; 16]].concat());

    let mut q8_0 = half(2.0);
    q8_0.extend((0..32).map(|i: i8| (i - 16) as u8));
    let expected: Vec<f32> = (0..32).map(|i| 2.0 * (i as f32 - 16.0)).collect();
    assert_eq!(read(Type::Q8_0, &q8_0), expected);

    let mut mxfp4 = vec![128];
    mxfp4.extend([0xf2; 16]);
    assert_eq!(read(Type::MXFP4, &mxfp4), [[2.0; 16], [-12.0; 16]].concat());

    // The two smallest exponents are of subnormal numbers.
    for e in 0..4u8 {
        let mut block = vec![e];
        block.extend([0x22; 16]);
        let expected = (2.0 * f64::from(i32::from(e) - 128).exp2()) as f32;
        assert_eq!(read(Type::MXFP4, &block), [expected; 32], "exponent {e}");
    }

    // d = 1, dmin = 1/2; scale 5 and minimum 7 for the first 32 weights, 33 and 18 for the last.
    let mut q4_k = [half(1.0), half(0.5)].concat();
    q4_k.extend([5, 0, 0, 33 >> 4 << 6, 7, 0, 0, 18 >> 4 << 6, 0, 0, 0, 2 << 4 | 1]);
    q4_k.extend([0x31; 128]);
    let values = read(Type::Q4_K, &q4_k);
    assert_eq!((values[0], values[31], values[32]), (5.0 - 3.5, 1.5, 0.0));
    assert_eq!((values[224], values[255]), (33.0 * 3.0 - 9.0, 90.0));
}

#[test]
fn reference_blocks_read_the_same() {
    let Some(folder) = data::shared("quant/blocks") else { return };
    let manifest = fs::read(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let manifest = manifest.as_object().unwrap();
    assert_eq!(manifest.len(), 23);
    for (name, facts) in manifest {
        let t = by_name(name).unwrap();
        let fact = |key: &str| usize::try_from(facts[key].as_u64().unwrap()).unwrap();
        assert_eq!(fact("ggml_type"), t.gguf_id as usize, "{t}");
        assert_eq!(fact("block_elements"), t.block_weights, "{t}");
        assert_eq!(fact("block_bytes"), t.block_bytes, "{t}");
        assert_eq!(t.row_bytes(fact("elements")).unwrap(), fact("bytes"), "{t}");

        // Bit for bit, including signs of zero: the order of operations is fixed for every type.
        let values = read(t, &fs::read(folder.join(format!("{name}.blocks"))).unwrap());
        let expected = f32s(&fs::read(folder.join(format!("{name}.f32"))).unwrap());
        assert_eq!(values.len(), expected.len(), "{t}");
        for (i, (value, expected)) in values.iter().zip(&expected).enumerate() {
            assert_eq!(value.to_bits(), expected.to_bits(), "{t} [{i}]: {value} for {expected}");
        }
    }
}

#[test]
fn reference_values_are_written_the_same() {
    let Some(folder) = data::shared("quant/blocks") else { return };
    let source = f32s(&fs::read(folder.join("source.f32")).unwrap());
    for name in ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"] {
        let expected = fs::read(folder.join(format!("quantised-{name}.bin"))).unwrap();
        let found = write(by_name(name).unwrap(), &source, None);
        assert_eq!(found.len(), expected.len(), "{name}");
        let differing = found.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differing, None, "{name}: first differing byte");
    }
}

#[test]
fn round_trips_stay_within_the_bound() {
    let values = gaussian(3, WEIGHTS);
    let importance = importance(4);
    for t in written() {
        let plain = error(t, &values, None, None);
        let weighed = error(t, &values, Some(&importance), Some(&importance));
        println!("{t}: {plain:.5}, with importance {weighed:.5}, bound {}", t.error_max);
        assert!(plain <= t.error_max, "{t}: {plain} > {}", t.error_max);
        assert!(weighed <= t.error_max, "{t} with importance: {weighed} > {}", t.error_max);
        // A bound far above the measured error would test nothing.
        assert!(t.error_max == 0.0 || plain > 0.9 * t.error_max, "{t}: {plain} makes it loose");
    }
}

#[test]
fn importance_lowers_the_error_where_it_counts() {
    let values = gaussian(5, WEIGHTS);
    let importance = importance(6);
    for t in written() {
        let without = error(t, &values, None, Some(&importance));
        let with = error(t, &values, Some(&importance), Some(&importance));
        if DEAF.contains(&t.name) {
            assert_eq!(with, without, "{t} follows a fixed rule");
        } else {
            assert!(with < 0.99 * without, "{t}: {with} with importance, {without} without");
        }
    }
}

#[test]
fn finite_values_come_back_finite() {
    let mut huge = gaussian(7, 256);
    huge[77] = 3e38;
    let mut cases = vec![
        ("zeros", vec![0.0; 256]),
        ("negative zeros", vec![-0.0; 256]),
        ("one value", vec![0.7; 256]),
        ("one negative value", vec![-0.7; 256]),
        ("one huge value", huge),
        ("largest", vec![f32::MAX; 256]),
        ("both ends", (0..256).map(|i| if i % 2 == 0 { f32::MAX } else { f32::MIN }).collect()),
        ("smallest subnormals", vec![f32::from_bits(1); 256]),
        ("negative only", gaussian(8, 256).iter().map(|x| -x.abs()).collect()),
        ("far from zero", gaussian(9, 256).iter().map(|x| 1000.0 + x).collect()),
        ("far below zero", gaussian(9, 256).iter().map(|x| -1000.0 + x).collect()),
        ("a lone spike", (0..256).map(|i| if i == 100 { -1.0 } else { 0.0 }).collect()),
    ];
    for exponent in (-44..=37).step_by(3) {
        let scale = 10f32.powi(exponent);
        cases.push(("scaled", gaussian(10, 256).iter().map(|x| x * scale).collect()));
    }
    let weights = [
        None,
        Some(vec![0.0; 256]),
        Some(vec![f32::MAX; 256]),
        Some(vec![1e-40; 256]),
        Some(vec![f32::NAN; 256]),
        Some(vec![-1.0; 256]),
        Some((0..256).map(|i| if i % 37 == 0 { f32::INFINITY } else { 0.0 }).collect()),
        Some((0..256).map(|i| if i == 5 { 1e30 } else { 1e-30 }).collect()),
    ];
    for t in written() {
        for (what, values) in &cases {
            for (w, importance) in weights.iter().enumerate() {
                let back = read(t, &write(t, values, importance.as_deref()));
                let bad = back.iter().find(|x| !x.is_finite());
                assert_eq!(bad, None, "{t}, {what}, importance {w}");
                if what.contains("zeros") {
                    assert!(back.iter().all(|x| *x == 0.0), "{t}: {what} stay zero");
                }
            }
        }
    }
}

#[test]
fn ordinary_extremes_keep_their_meaning() {
    for t in written() {
        // Sparse types keep a part of equal weights only.
        let values = if t.kept_of_64().is_some() { &[][..] } else { &[0.75, -0.75, 1000.0, -3e-4] };
        for &value in values {
            let constant = vec![value; 256];
            let back = read(t, &write(t, &constant, None));
            let worst = back.iter().map(|x| (x - value).abs() / value.abs()).fold(0.0, f32::max);
            let bound = match t.name {
                // Its scales are powers of two: its rule clips values above 3/4 of the next.
                "MXFP4" => 0.25,
                // Its smallest weight is 2^-10.
                "NVFP4" if value.abs() < 1e-3 => 1.01,
                _ => 0.05,
            };
            assert!(worst < bound, "{t}: a constant {value} comes back {worst} off");
        }
        // The scales of NVFP4 lose bits below 2^-6.
        let factor = if t == Type::NVFP4 { 1.0 } else { 1e-3 };
        let values = gaussian(11, WEIGHTS);
        let scaled: Vec<_> = values.iter().map(|x| x * factor).collect();
        let found = error(t, &scaled, None, None);
        // With one scale for a whole row, the error depends on the row's largest weight.
        let bound = if t.has_lone_blocks() { t.error_max } else { error(t, &values, None, None) };
        assert!(found <= 1.02 * bound, "{t}: {found} on small weights");
    }
}

#[test]
fn any_bytes_can_be_read_from_any_address() {
    for &t in all() {
        for seed in 0..20 {
            let row_bytes = t.row_bytes(3 * t.block_weights).unwrap();
            let bytes = noise(seed, row_bytes + 1);
            let (even, odd) = (&bytes[..row_bytes], &bytes[1..]);
            let aligned = odd.to_vec();
            assert_eq!(bits(&read(t, odd)), bits(&read(t, &aligned)), "{t}");
            assert_eq!(read(t, even).len(), 3 * t.block_weights);
        }
    }
}

#[test]
fn wrong_lengths_are_errors() {
    for &t in all() {
        assert_eq!(t.row_bytes(0), Ok(0));
        let header = t.row_header_bytes;
        assert!(header <= ROW_HEADER_MAX);
        assert_eq!(t.row_bytes(6 * t.block_weights), Ok(header + 6 * t.block_bytes));
        let (values, bytes) = (2 * t.block_weights, header + 2 * t.block_bytes);
        for wrong in [0, t.block_bytes, bytes - 1, bytes + 1] {
            let expected = length(t, "bytes", bytes, wrong);
            assert_eq!(
                t.dequantize(&vec![0; wrong], &mut vec![0.0; values]),
                Err(expected.clone())
            );
            if t.quantize.is_some() {
                let source = vec![0.0; values];
                assert_eq!(t.quantize(&source, None, &mut vec![0; wrong]), Err(expected));
            }
        }
        if t.block_weights > 1 {
            let weights = values - 1;
            let expected = Err(Error::PartialBlock { quant: t, weights });
            assert_eq!(t.row_bytes(weights), expected.map(|()| 0));
            assert!(t.dequantize(&vec![0; bytes], &mut vec![0.0; weights]).is_err());
        }
        if t.block_bytes > t.block_weights {
            let weights = usize::MAX / t.block_weights * t.block_weights;
            assert_eq!(t.row_bytes(weights), Err(Error::TooLarge { quant: t, weights }));
        }
        let source = vec![0.0; values];
        let found = t.quantize(&source, Some(&source[1..]), &mut vec![0; bytes]);
        let expected = match t.quantize {
            Some(_) => length(t, "importance", values, values - 1),
            None => Error::ReadOnly(t),
        };
        assert_eq!(found, Err(expected));
    }
}

#[test]
fn values_no_block_can_hold_are_errors() {
    for t in written() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 256];
            values[200] = bad;
            let mut bytes = vec![0; t.row_bytes(256).unwrap()];
            let result = t.quantize(&values, None, &mut bytes);
            if t.block_weights == 1 {
                result.unwrap();
                let back = read(t, &bytes)[200];
                assert!(back == bad || back.is_nan() && bad.is_nan(), "{t} keeps {bad}: {back}");
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::NotFinite { index: 200, .. }), "{t}: {error}");
            }
        }
    }
}

#[test]
fn plain_numbers_convert_to_the_nearest_float() {
    let cases: [(Type, Vec<u8>, f32); 5] = [
        (Type::I8, (-5i8).to_le_bytes().into(), -5.0),
        (Type::I16, (-500i16).to_le_bytes().into(), -500.0),
        (Type::I32, 16_777_217i32.to_le_bytes().into(), 16_777_216.0),
        (Type::I64, (1i64 << 40).to_le_bytes().into(), 1_099_511_627_776.0),
        (Type::F64, 0.1f64.to_le_bytes().into(), 0.1),
    ];
    for (t, bytes, expected) in cases {
        assert_eq!(read(t, &bytes), [expected], "{t}");
    }
}

fn written() -> impl Iterator<Item = Type> {
    all().iter().copied().filter(|t| t.quantize.is_some())
}

fn length(quant: Type, what: &'static str, expected: usize, found: usize) -> Error {
    Error::Length { quant, what, expected, found }
}

fn write(t: Type, values: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xaa; t.row_bytes(values.len()).unwrap()];
    t.quantize(values, importance, &mut bytes).unwrap();
    bytes
}

fn read(t: Type, bytes: &[u8]) -> Vec<f32> {
    // One row.
    let blocks = (bytes.len() - t.row_header_bytes) / t.block_bytes;
    let mut values = vec![f32::NAN; blocks * t.block_weights];
    t.dequantize(bytes, &mut values).unwrap();
    values
}

/// √(Σw(x - x')² / Σwx²) of a round trip, quantized with `importance` and measured with `w`.
fn error(t: Type, values: &[f32], importance: Option<&[f32]>, w: Option<&[f32]>) -> f32 {
    let back = read(t, &write(t, values, importance));
    let (mut lost, mut whole) = (0.0, 0.0);
    for (i, (x, back)) in values.iter().zip(back).enumerate() {
        let w = w.map_or(1.0, |w| f64::from(w[i]));
        lost += w * f64::from(x - back).powi(2);
        whole += w * f64::from(*x).powi(2);
    }
    (lost / whole).sqrt() as f32
}

/// SplitMix64, which is fixed, unlike generators of libraries.
fn words(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    words(seed).flat_map(u64::to_le_bytes).take(len).collect()
}

/// Multiples of 2^-23 from -1 to 1.
fn uniform(seed: u64, len: usize) -> Vec<f32> {
    words(seed).map(|word| (word >> 40) as f32 / 8_388_608.0 - 1.0).take(len).collect()
}

/// Standard normal values, by Box and Muller.
fn gaussian(seed: u64, len: usize) -> Vec<f32> {
    let fraction = |word: u64| ((word >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let mut words = words(seed);
    let mut draw = || fraction(words.next().unwrap());
    (0..len)
        .map(|_| ((-2.0 * draw().ln()).sqrt() * (std::f64::consts::TAU * draw()).cos()) as f32)
        .collect()
}

/// Importance as of activations: positive, with a few columns far above the rest.
fn importance(seed: u64) -> Vec<f32> {
    gaussian(seed, WEIGHTS).iter().map(|x| x.exp()).collect()
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}
