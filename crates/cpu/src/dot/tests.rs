//! Tests every type at every level against exact sums, on adversarial rows and activations.

use super::*;
use crate::activations::{Block256, PreparedColumns, Quad32, RowColumn};

/// Tolerated f32 rounding, relative to the sum of absolute products, offsets included.
const ROUNDING: f64 = 1e-5;

/// A small random generator: xorshift64*, Vigna 2016.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Contents of blocks, apart from scales.
#[derive(Clone, Copy, Debug)]
enum Codes {
    Random,
    /// All codes, and the scales inside a super-block, at one extreme.
    All(u8),
}

/// Consecutive rows with finite scales of any sign and magnitude.
fn rows(ty: Type, rows: usize, cols: usize, codes: Codes, random: &mut Random) -> Vec<u8> {
    if ty.block_weights == 1 {
        return floats(ty, rows * cols, random);
    }
    if !ty.has_lone_blocks() {
        return scaled_rows(ty, rows, cols, codes, random);
    }
    let mut values = vec![0.0; ty.block_weights];
    let mut bytes = Vec::new();
    while bytes.len() < rows * cols / ty.block_weights * ty.block_bytes {
        let block = block(ty, codes, random);
        (ty.dequantize)(&block, &mut values);
        // Some types store a scale among the codes, which may be infinite.
        if values.iter().all(|value| value.is_finite()) {
            bytes.extend(block);
        } else if let Codes::All(_) = codes {
            return self::rows(ty, rows, cols, Codes::Random, random);
        }
    }
    bytes
}

/// Rows whose header is a scale.
fn scaled_rows(ty: Type, rows: usize, cols: usize, codes: Codes, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows {
        let size = [1e-6, 0.01, 1.0, 100.0][random.next() as usize % 4];
        bytes.extend((random.unit() * size).to_le_bytes());
        (0..cols / ty.block_weights).for_each(|_| bytes.extend(block(ty, codes, random)));
    }
    bytes
}

/// One block.
fn block(ty: Type, codes: Codes, random: &mut Random) -> Vec<u8> {
    let mut block: Vec<u8> = match codes {
        Codes::Random => (0..ty.block_bytes).map(|_| random.next() as u8).collect(),
        Codes::All(byte) => vec![byte; ty.block_bytes],
    };
    for plane in ty.planes {
        let field = &mut block[plane.offset..][..plane.len];
        match (plane.name, plane.len) {
            ("d" | "dmin" | "m", 2) => {
                let exponent = [1e-6, 0.01, 1.0, 100.0][random.next() as usize % 4];
                let scale = half::f16::from_f32(random.unit() * exponent);
                field.copy_from_slice(&scale.to_le_bytes());
            }
            ("e", 1) => field[0] = 110 + (random.next() % 20) as u8,
            _ => {}
        }
    }
    block
}

/// The weights that the blocks would have with half of their codes' bits inverted.
///
/// Kernels that bias codes to be unsigned round in proportion to the codes, not to the weights: a row of zeros
/// between large scales may have a larger error than its own magnitude.
fn turned(ty: Type, blocks: &[u8], values: &mut [f32]) {
    let mut turned = blocks.to_vec();
    // Whole rows are summed as integers, whatever bias their codes have.
    let is_biased = ty.has_lone_blocks();
    for block in turned.chunks_mut(ty.block_bytes).take_while(|_| is_biased) {
        for plane in ty.planes.iter().filter(|plane| ["quants", "low"].contains(&plane.name)) {
            block[plane.offset..][..plane.len].iter_mut().for_each(|byte| *byte ^= 0xcc);
        }
    }
    (ty.dequantize)(&turned, values);
}

/// Values of an unquantized type.
fn floats(ty: Type, count: usize, random: &mut Random) -> Vec<u8> {
    let values: Vec<f32> = (0..count).map(|_| random.unit() * 3.0).collect();
    let mut bytes = vec![0; count * ty.block_bytes];
    match ty.quantize {
        Some(quantize) => quantize(&values, None, &mut bytes),
        None if ty == Type::F64 => {
            let doubles: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            bytes.copy_from_slice(bytemuck::cast_slice(&doubles));
        }
        None => bytes.fill_with(|| random.next() as u8),
    }
    bytes
}

/// Contents of activations.
const ACTIVATIONS: [fn(&mut Random, usize) -> f32; 4] = [
    |random, _| random.unit(),
    |random, i| random.unit() * [1e-8, 1.0, 1e4][i / 32 % 3],
    |_, i| if i.is_multiple_of(2) { 1.0 } else { -1.0 },
    |_, _| -0.75,
];

/// The activations that a prepared column represents, and the half step by which each may differ from its original.
fn decoded(format: Format, columns: Activations<'_>, index: usize) -> Vec<(f64, f64)> {
    let one = |scale: f32, quant: i8| {
        (f64::from(scale) * f64::from(quant), f64::from(scale) * 0.5001 + 1e-36)
    };
    match format {
        Format::F32 => columns.column::<f32>(index).iter().map(|x| (f64::from(*x), 0.0)).collect(),
        Format::Q8x32 => {
            let quads = columns.column::<Quad32>(index).iter();
            quads
                .flat_map(|quad| {
                    (0..128).map(|i| one(quad.scales[[0, 8, 2, 10][i / 32]], quad.quants[i]))
                })
                .collect()
        }
        Format::Q8x256 => {
            let blocks = columns.column::<Block256>(index).iter();
            blocks.flat_map(|block| block.quants.iter().map(|q| one(block.scale[0], *q))).collect()
        }
        Format::Q8Row => {
            let column = RowColumn::of(columns.column(index));
            let whole = |q: &u8| i32::from(q.cast_signed()) + column.zero;
            let of = |q| (f64::from(column.scale) * f64::from(whole(q)), one(column.scale, 0).1);
            column.quants.iter().map(of).collect()
        }
        #[cfg(target_arch = "x86_64")]
        packed => unreachable!("no column is {packed:?}"),
    }
}

/// The kernels of a level, and those for CPUs that compute 512 bits in two halves, if they are others.
fn dots(ty: Type, cols: usize, level: Level) -> impl Iterator<Item = Dot> {
    let chosen = dot(ty, cols, level);
    let entry = entries(ty, cols).iter().find(|entry| entry.name == chosen.name);
    let of = |kernels: Kernels| Dot { kernels, ..chosen };
    let all = entry.map_or(vec![], |entry| {
        entry.halved.map(of).into_iter().chain([of(entry.kernels)]).collect()
    });
    if all.is_empty() { vec![chosen] } else { all }.into_iter()
}

/// Checks all results of one case against exact sums over the prepared and over the original activations.
fn check(
    ty: Type,
    level: Level,
    shape: (usize, usize, usize),
    codes: Codes,
    fill: fn(&mut Random, usize) -> f32,
    random: &mut Random,
) {
    for dot in dots(ty, shape.1, level) {
        check_dot(dot, level, shape, codes, fill, random);
    }
}

/// [`check`] of some kernels.
fn check_dot(
    dot: Dot,
    level: Level,
    (row_count, cols, count): (usize, usize, usize),
    codes: Codes,
    fill: fn(&mut Random, usize) -> f32,
    random: &mut Random,
) {
    let ty = dot.ty;
    let weights = rows(ty, row_count, cols, codes, random);
    let mut values = vec![0.0; row_count * cols];
    (ty.dequantize)(&weights, &mut values);
    let mut turned_values = values.clone();
    turned(ty, &weights, &mut turned_values);
    let activations: Vec<f32> = (0..count * cols).map(|i| fill(random, i % cols)).collect();
    let columns = PreparedColumns::new(dot.format, level, &activations, cols);
    let columns = columns.get();
    // An odd address, as possible for a row in a mapped file.
    let mut shifted = vec![0];
    shifted.extend(&weights);
    let mut out = vec![f32::NAN; row_count * count];
    dot.run(&shifted[1..], columns, &mut out);
    for c in 0..count {
        let decoded = decoded(dot.format, columns, c);
        for r in 0..row_count {
            let (mut near, mut exact, mut size, mut step) = (0.0, 0.0, 0.0, 0.0);
            for i in 0..cols {
                let (w, x) =
                    (f64::from(values[r * cols + i]), f64::from(activations[c * cols + i]));
                near += w * decoded[i].0;
                exact += w * x;
                let turned = f64::from(turned_values[r * cols + i]);
                size += (w.abs() + turned.abs()) * decoded[i].0.abs();
                step += w.abs() * decoded[i].1;
            }
            let found = f64::from(out[c * row_count + r]);
            let place = format!("{} {cols} cols, {codes:?}, row {r}, column {c}", dot.name);
            let bound = ROUNDING * size + 1e-30;
            assert!((found - near).abs() <= bound, "{place}: {found} for {near}, bound {bound}");
            let bound = bound + step;
            assert!((found - exact).abs() <= bound, "{place}: {found} for {exact}, bound {bound}");
        }
    }
}

#[test]
fn every_type_at_every_level_is_exact_but_for_f32_rounding() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for ty in bilayer_quant::all() {
        let lengths: &[usize] = match ty.block_weights {
            256 => &[256, 768, 2304],
            64 => &[64, 192, 576],
            32 => &[32, 64, 96, 128, 160, 864, 1024],
            _ => &[1, 31, 32, 33, 100, 1024],
        };
        for level in Level::available() {
            for cols in lengths {
                for codes in [Codes::Random, Codes::All(0), Codes::All(0xff), Codes::All(0x80)] {
                    for fill in ACTIVATIONS {
                        check(*ty, level, (2, *cols, 1), codes, fill, &mut random);
                    }
                }
            }
        }
    }
}

#[test]
fn any_number_of_rows_and_columns_lands_in_its_place() {
    let mut random = Random(0x0123_4567_89ab_cdef);
    for ty in bilayer_quant::all() {
        let cols = ty.block_weights.max(32) * 3;
        for level in Level::available() {
            for count in [1, 2, 3, 4, 5, 6, 7, 8, 9, 23] {
                for row_count in 1..=5 {
                    let shape = (row_count, cols, count);
                    check(*ty, level, shape, Codes::Random, ACTIVATIONS[0], &mut random);
                }
            }
        }
    }
}

#[test]
fn rows_beyond_a_tile_meet_all_groups_of_columns() {
    let mut random = Random(77);
    for ty in [Type::Q4_K, Type::Q8_0, Type::F16] {
        let row_count = 2 * TILE_BYTES / ty.row_bytes(512).expect("whole blocks") + 3;
        check(
            ty,
            Level::detect(),
            (row_count, 512, 10),
            Codes::Random,
            ACTIVATIONS[0],
            &mut random,
        );
    }
}

#[test]
fn an_activation_that_is_not_finite_shows_in_every_row() {
    let mut random = Random(5);
    for ty in bilayer_quant::all() {
        let cols = ty.block_weights.max(32) * 2;
        let mut weights = rows(*ty, 3, cols, Codes::Random, &mut random);
        // A row of zeros must not mask it, even one with a scale of zero.
        let zeros = weights.len() / 3;
        if ty.name != "MXFP4" {
            weights[..zeros].fill(0);
        }
        for level in Level::available() {
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x: Vec<f32> = (0..cols).map(|_| random.unit()).collect();
                x[cols - 5] = wrong;
                let dot = dot(*ty, cols, level);
                let columns = PreparedColumns::new(dot.format, level, &x, cols);
                let mut out = [0.0; 3];
                dot.run(&weights, columns.get(), &mut out);
                let name = dot.name;
                // Infinity times zero is NaN, so no weight can mask it.
                assert!(out.iter().all(|v| !v.is_finite()), "{name} {wrong}: {out:?}");
            }
        }
    }
}

#[test]
fn no_columns_and_no_rows_are_fine_and_wrong_sizes_are_not() {
    let dot = dot(Type::Q8_0, 64, Level::Scalar);
    dot.run(&[], Activations { data: &[], cols: 64, count: 0 }, &mut []);
    let columns = PreparedColumns::new(dot.format, Level::Scalar, &[1.0; 64], 64);
    dot.run(&[], columns.get(), &mut []);
    let wrong = std::panic::catch_unwind(|| {
        dot.run(&[0; 67], columns.get(), &mut [0.0]);
    });
    assert!(wrong.is_err(), "67 bytes are not whole rows");
    let wrong = std::panic::catch_unwind(|| {
        dot.run(&[0; 68], columns.get(), &mut [0.0, 0.0]);
    });
    assert!(wrong.is_err(), "one row against one column is one result");
}

/// The kernels that each type has, whatever this CPU supports: a name for the type, and the levels of its architecture.
#[test]
fn every_type_has_its_kernel_at_each_level() {
    const X86: bool = cfg!(target_arch = "x86_64");
    const FLOATS: &[Level] = match X86 {
        true => &[Level::Scalar, Level::Avx2, Level::Avx512Vnni],
        false => &[Level::Scalar, Level::Neon],
    };
    const SPARSE: &[Level] = match X86 {
        true => FLOATS,
        false => BYTES,
    };
    const BYTES: &[Level] = match X86 {
        true => &[Level::Scalar, Level::Avx2, Level::AvxVnni, Level::Avx512Vnni],
        false => &[Level::Scalar, Level::Neon, Level::NeonDotprod],
    };
    for ty in bilayer_quant::all() {
        let stem = ty.name.to_lowercase();
        let (stem, levels) = match ty.name {
            "I8" | "I16" | "I32" | "I64" | "F64" => ("generic", FLOATS),
            "F32" | "F16" | "BF16" => (&*stem, FLOATS),
            _ if ty.kept_of_64().is_some() => (&*stem, SPARSE),
            _ => (&*stem, BYTES),
        };
        let name = |level: &Level| format!("{stem}.{level}");
        let found: Vec<_> =
            entries(*ty, 512).iter().map(|entry| (entry.level, entry.name)).collect();
        let expected: Vec<_> = levels.iter().map(|level| (*level, name(level))).collect();
        let found: Vec<_> = found.into_iter().map(|(level, name)| (level, name.into())).collect();
        assert_eq!(found, expected, "{ty}");
        // Each level of this CPU takes the best of them.
        for level in Level::available() {
            let best = levels.iter().rfind(|own| **own <= level && own.is_available());
            assert_eq!(dot(*ty, 512, level).name, name(best.unwrap()), "{ty} at {level}");
        }
    }
    // Rows of W8A8 that are too long for whole sums.
    assert_eq!(dot(Type::W8A8, 1 << 17, Level::Scalar).name, "generic.scalar");
}
