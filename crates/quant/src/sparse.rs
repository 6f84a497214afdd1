//! S4_N_64 and S8_N_64: balanced sparse types, which store N of every 64 weights in 4 or 8 bits.
//!
//! A block is 256 columns of one row, four groups of 64; N is 4, 8, 12, 16, 24 or 32 (93.75 to 50 % zeros).
//!
//! ```text
//! byte  0        2                2 + 4 N
//!       [ d: f16 ][ places: 4 N bytes ][ quants: 4 N codes of 4 or 8 bits ]
//!       slot s = N g + k             the kept weight k of group g                    g < 4, k < N
//!       column of slot s             64 g + places[s]                places rise within a group, below 64
//!       8 bits:  q[s] = quants[s]                             weight = d · (q - 128)
//!       4 bits:  q[2 i], q[2 i + 1] = low, high nibble of quants[i]     weight = d · (q - 8)
//! ```
//!
//! | bits per weight | N = 4 | 8 | 12 | 16 | 24 | 32 |
//! |---|---|---|---|---|---|---|
//! | S4 | 0.81 | 1.56 | 2.31 | 3.06 | 4.56 | 6.06 |
//! | S8 | 1.06 | 2.06 | 3.06 | 4.06 | 6.06 | 8.06 |
//!
//! Every group has equally many weights, so that blocks have one size and a kernel needs no counts: it looks up the
//! activations of all slots of a group in one 64-byte table. A group with fewer nonzero weights is filled up with
//! zeros. Only the lowest six bits of a place count. [`Type::quantize`] keeps, in each group, the N weights of largest
//! importance · weight² (Wanda's score; magnitude without importance), so a matrix that is already sparse keeps
//! exactly its nonzero weights.
//!
//! These types are not part of GGUF; see [`private`](crate::private).

use crate::blocks::{f16_bits, f16_value};
use crate::private::{Dense, ID};
use crate::{Descriptor, Grid, Plane, Type, q4_0, q8_0};

/// Columns of a group.
pub const GROUP: usize = 64;

/// Groups of a block.
const GROUPS: usize = 4;

/// Columns of a block.
pub const BLOCK: usize = GROUP * GROUPS;

/// The layout of a block that keeps `N` of 64 weights in `BITS` bits.
#[derive(Clone, Copy, Debug)]
pub struct Layout<const N: usize, const BITS: usize>;

impl<const N: usize, const BITS: usize> Layout<N, BITS> {
    /// Slots of a block.
    pub const SLOTS: usize = GROUPS * N;
    /// Offset of the places.
    pub const PLACES: usize = 2;
    /// Offset of the codes.
    pub const QUANTS: usize = Self::PLACES + Self::SLOTS;
    /// Bytes of a block.
    pub const BYTES: usize = Self::QUANTS + Self::SLOTS * BITS / 8;
    /// The code of a weight of zero.
    pub const BIAS: u8 = 1 << (BITS - 1);

    /// The scale, as f16 bits.
    #[inline(always)]
    #[must_use]
    pub fn d(block: &[u8]) -> u16 {
        u16::from_le_bytes([block[0], block[1]])
    }

    /// The column of a slot within its group.
    #[inline(always)]
    #[must_use]
    pub fn place(block: &[u8], slot: usize) -> usize {
        usize::from(block[Self::PLACES + slot]) % GROUP
    }

    /// The code of a slot.
    #[inline(always)]
    #[must_use]
    pub fn code(block: &[u8], slot: usize) -> u8 {
        match BITS {
            8 => block[Self::QUANTS + slot],
            _ => block[Self::QUANTS + slot / 2] >> (slot % 2 * 4) & 15,
        }
    }

    /// The slots of a block in order: column within the block, weight as a multiple of the scale.
    #[inline(always)]
    fn slots(block: &[u8]) -> impl Iterator<Item = (usize, i16)> {
        (0..Self::SLOTS).map(|slot| {
            let q = i16::from(Self::code(block, slot)) - i16::from(Self::BIAS);
            (slot / N * GROUP + Self::place(block, slot), q)
        })
    }
}

impl Type {
    /// How many of every 64 weights a balanced sparse type keeps; `None` for dense types.
    #[must_use]
    pub fn kept_of_64(self) -> Option<usize> {
        FAMILY.iter().find(|member| member.ty == self).map(|member| member.kept)
    }
}

/// The dense form of a sparse type: equal scales and codes, zeros in between.
pub(crate) fn dense(ty: Type) -> Option<Dense> {
    FAMILY.iter().find(|member| member.ty == ty).map(|member| member.dense)
}

struct Member {
    ty: Type,
    kept: usize,
    dense: Dense,
    grid: Grid,
}

/// Makes a descriptor of each line, and the table of the family.
macro_rules! family {
    ($($name:ident: $kept:literal of 64 in $bits:literal bits, error $error:literal;)+) => {
        $(
            /// Entry in the table of types.
            pub static $name: Descriptor = Descriptor {
                name: stringify!($name),
                gguf_id: ID | $bits << 8 | $kept,
                block_weights: BLOCK,
                block_bytes: Layout::<$kept, $bits>::BYTES,
                row_header_bytes: 0,
                planes: &Plane::split([
                    ("d", 2),
                    ("places", GROUPS * $kept),
                    ("quants", GROUPS * $kept * $bits / 8),
                ]),
                quantize: Some(quantize::<$kept, $bits>),
                dequantize: dequantize::<$kept, $bits>,
                error_max: $error,
                holds_zero: true,
            };
        )+

        static FAMILY: &[Member] = &[$(Member {
            ty: Type::new(&$name),
            kept: $kept,
            dense: match $bits {
                8 => Dense { ty: Type::Q8_0, widen: widen_8::<$kept> },
                _ => Dense { ty: Type::Q4_0, widen: widen_4::<$kept> },
            },
            grid: Grid {
                block: Some(BLOCK),
                codes: codes($bits),
                scale: grid_scale::<$kept, $bits>,
                write: grid_write::<$kept, $bits>,
            },
        }),+];
    };
}

family! {
    S4_4_64: 4 of 64 in 4 bits, error 0.84;
    S4_8_64: 8 of 64 in 4 bits, error 0.725;
    S4_12_64: 12 of 64 in 4 bits, error 0.63;
    S4_16_64: 16 of 64 in 4 bits, error 0.545;
    S4_24_64: 24 of 64 in 4 bits, error 0.405;
    S4_32_64: 32 of 64 in 4 bits, error 0.29;
    S8_4_64: 4 of 64 in 8 bits, error 0.84;
    S8_8_64: 8 of 64 in 8 bits, error 0.725;
    S8_12_64: 12 of 64 in 8 bits, error 0.63;
    S8_16_64: 16 of 64 in 8 bits, error 0.545;
    S8_24_64: 24 of 64 in 8 bits, error 0.4;
    S8_32_64: 32 of 64 in 8 bits, error 0.281;
}

fn dequantize<const N: usize, const BITS: usize>(bytes: &[u8], values: &mut [f32]) {
    let blocks = bytes.chunks_exact(Layout::<N, BITS>::BYTES);
    for (block, values) in blocks.zip(values.as_chunks_mut::<BLOCK>().0) {
        let d = f16_value(Layout::<N, BITS>::d(block));
        values.fill(0.0);
        for (column, q) in Layout::<N, BITS>::slots(block) {
            values[column] += d * f32::from(q);
        }
    }
}

fn quantize<const N: usize, const BITS: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    bytes: &mut [u8],
) {
    let values = values.as_chunks::<BLOCK>().0;
    let importance = importance.map(|importance| importance.as_chunks::<BLOCK>().0);
    let blocks = bytes.chunks_exact_mut(Layout::<N, BITS>::BYTES);
    for (index, (values, block)) in values.iter().zip(blocks).enumerate() {
        let importance = importance.map(|importance| &importance[index]);
        quantize_block::<N, BITS>(values, importance, block);
    }
}

/// A kept weight.
#[derive(Clone, Copy, Default)]
struct Kept {
    place: u8,
    value: f64,
    /// The cost of a squared error.
    cost: f64,
}

fn quantize_block<const N: usize, const BITS: usize>(
    values: &[f32; BLOCK],
    importance: Option<&[f32; BLOCK]>,
    block: &mut [u8],
) {
    let mut kept = [Kept::default(); BLOCK];
    let kept = &mut kept[..Layout::<N, BITS>::SLOTS];
    choose::<N>(values, importance, kept);
    encode::<N, BITS>(kept, scale::<BITS>(kept), block);
}

/// The N weights of each group with the largest cost · weight², by place.
fn choose<const N: usize>(
    values: &[f32; BLOCK],
    importance: Option<&[f32; BLOCK]>,
    kept: &mut [Kept],
) {
    for (group, kept) in kept.chunks_exact_mut(N).enumerate() {
        let mut all: [Kept; GROUP] = std::array::from_fn(|place| {
            let column = GROUP * group + place;
            // Negative importance and NaN count as zero.
            let cost = importance.map_or(1.0, |of| match of[column] {
                cost if cost > 0.0 => f64::from(cost.min(f32::MAX)),
                _ => 0.0,
            });
            Kept { place: place as u8, value: f64::from(values[column]), cost }
        });
        let score = |kept: &Kept| (kept.cost * kept.value * kept.value, kept.value.abs());
        all.sort_by(|a, b| {
            let ((a, a_size), (b, b_size)) = (score(a), score(b));
            b.total_cmp(&a).then(b_size.total_cmp(&a_size))
        });
        kept.copy_from_slice(&all[..N]);
        kept.sort_by_key(|kept| kept.place);
    }
}

/// The scale of a block, as f16 bits.
fn scale<const BITS: usize>(kept: &[Kept]) -> u16 {
    f16_bits(if BITS == 8 { peak(kept) / 127.0 } else { searched(kept) } as f32)
}

/// The lowest and the highest code as multiples of the scale. 8-bit codes are symmetric.
const fn codes(bits: usize) -> [f64; 2] {
    if bits == 8 { [-127.0, 127.0] } else { [-8.0, 7.0] }
}

fn encode<const N: usize, const BITS: usize>(kept: &[Kept], d: u16, block: &mut [u8]) {
    let unit = f64::from(f16_value(d));
    let bias = f64::from(Layout::<N, BITS>::BIAS);
    let [low, high] = codes(BITS);
    block.fill(0);
    block[..2].copy_from_slice(&d.to_le_bytes());
    for (slot, kept) in kept.iter().enumerate() {
        let q = if unit == 0.0 { 0.0 } else { (kept.value / unit).round().clamp(low, high) };
        let code = (q + bias) as u8;
        block[Layout::<N, BITS>::PLACES + slot] = kept.place;
        match BITS {
            8 => block[Layout::<N, BITS>::QUANTS + slot] = code,
            _ => block[Layout::<N, BITS>::QUANTS + slot / 2] |= code << (slot % 2 * 4),
        }
    }
}

/// The grid of a balanced sparse type, of whose groups zeros are left out.
pub(crate) fn grid(ty: Type) -> Option<Grid> {
    FAMILY.iter().find(|member| member.ty == ty).map(|member| member.grid)
}

fn grid_scale<const N: usize, const BITS: usize>(values: &[f32]) -> f32 {
    let values = values.as_array().expect("a block");
    let mut kept = [Kept::default(); BLOCK];
    let kept = &mut kept[..Layout::<N, BITS>::SLOTS];
    choose::<N>(values, None, kept);
    f16_value(scale::<BITS>(kept))
}

fn grid_write<const N: usize, const BITS: usize>(values: &[f32], scale: f32, block: &mut [u8]) {
    let values = values.as_array().expect("a block");
    let mut kept = [Kept::default(); BLOCK];
    let kept = &mut kept[..Layout::<N, BITS>::SLOTS];
    choose::<N>(values, None, kept);
    encode::<N, BITS>(kept, f16_bits(scale), block);
}

fn peak(kept: &[Kept]) -> f64 {
    kept.iter().fold(0.0, |peak, kept| peak.max(kept.value.abs()))
}

/// The scale that minimizes the cost of four-bit codes, of those that map the largest magnitude to 6.8 to 9.2 on
/// either side.
fn searched(kept: &[Kept]) -> f64 {
    let peak = peak(kept);
    // Without any cost all weights count equally.
    let free = kept.iter().all(|kept| kept.cost == 0.0);
    let (mut best, mut scale) = (0.0, 0.0);
    for step in 0..50 {
        let top = (6.8 + 0.1 * f64::from(step / 2)) * if step % 2 == 0 { 1.0 } else { -1.0 };
        let (mut product, mut square) = (0.0, 0.0);
        for kept in kept {
            let q = (kept.value / peak * top).round().clamp(-8.0, 7.0);
            let cost = if free { 1.0 } else { kept.cost };
            product += cost * kept.value * q;
            square += cost * q * q;
        }
        // The part of the squares that the scale explains; a peak of zero makes it NaN, which is never larger.
        let explained = product * product / square;
        if explained > best {
            (best, scale) = (explained, product / square);
        }
    }
    scale
}

/// Blocks of S8 as Q8_0.
fn widen_8<const N: usize>(blocks: &[u8], dense: &mut [u8]) {
    let blocks = blocks.chunks_exact(Layout::<N, 8>::BYTES);
    for (block, dense) in blocks.zip(dense.chunks_exact_mut(8 * size_of::<q8_0::Block>())) {
        let mut codes = [0i8; BLOCK];
        for (column, q) in Layout::<N, 8>::slots(block) {
            codes[column] = q.clamp(-128, 127) as i8;
        }
        let parts = dense.chunks_exact_mut(size_of::<q8_0::Block>());
        for (part, quants) in parts.zip(codes.as_chunks::<32>().0) {
            let block = q8_0::Block { d: Layout::<N, 8>::d(block), quants: *quants };
            part.copy_from_slice(bytemuck::bytes_of(&block));
        }
    }
}

/// Blocks of S4 as Q4_0.
fn widen_4<const N: usize>(blocks: &[u8], dense: &mut [u8]) {
    let blocks = blocks.chunks_exact(Layout::<N, 4>::BYTES);
    for (block, dense) in blocks.zip(dense.chunks_exact_mut(8 * size_of::<q4_0::Block>())) {
        let mut codes = [8u8; BLOCK];
        for (column, q) in Layout::<N, 4>::slots(block) {
            codes[column] = (q + 8) as u8;
        }
        let parts = dense.chunks_exact_mut(size_of::<q4_0::Block>());
        for (part, codes) in parts.zip(codes.as_chunks::<32>().0) {
            let block = q4_0::Block { d: Layout::<N, 4>::d(block), quants: q4_0::pack(codes) };
            part.copy_from_slice(bytemuck::bytes_of(&block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use crate::search::tests::{is_within, least_loss};

    /// A matrix row with values of both signs, the largest away from the start of its group.
    fn row(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01 + 0.003).collect()
    }

    fn round_trip(ty: Type, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
        let mut bytes = vec![0; ty.row_bytes(values.len()).expect("whole blocks")];
        ty.quantize(values, importance, &mut bytes).expect("finite");
        let mut back = vec![f32::NAN; values.len()];
        ty.dequantize(&bytes, &mut back).expect("whole blocks");
        back
    }

    #[test]
    fn every_group_keeps_its_largest_and_a_sparse_matrix_keeps_its_own() {
        let values = row(512);
        for member in FAMILY {
            let back = round_trip(member.ty, &values, None);
            let mut sparse = vec![0.0; values.len()];
            for (group, kept) in back.chunks(GROUP).enumerate() {
                let values = &values[GROUP * group..][..GROUP];
                let mut sizes: Vec<f32> = values.iter().map(|x| x.abs()).collect();
                sizes.sort_by(|a, b| b.total_cmp(a));
                let least = sizes[member.kept - 1];
                for (column, (x, kept)) in values.iter().zip(kept).enumerate() {
                    let off = if x.abs() >= least { (x - kept).abs() } else { kept.abs() };
                    assert!(off <= 0.04, "{}: {x} became {kept}", member.ty);
                    if x.abs() >= least {
                        sparse[GROUP * group + column] = *x;
                    }
                }
            }
            // Cost decides between weights, but never for a zero.
            let cost: Vec<f32> = (0..512).map(|i| if i % 2 == 0 { 0.0 } else { 1.0 }).collect();
            for cost in [None, Some(&cost[..])] {
                let again = round_trip(member.ty, &sparse, cost);
                let lost = sparse.iter().zip(&again).any(|(x, back)| *x == 0.0 && *back != 0.0);
                let held = sparse.iter().zip(&again).all(|(x, back)| (x - back).abs() < 0.06);
                assert!(!lost && held, "{}", member.ty);
            }
        }
    }

    #[test]
    fn the_dense_form_has_the_same_weights() {
        let values = row(768);
        for Member { ty, dense, .. } in FAMILY {
            let mut blocks = vec![0; ty.row_bytes(768).expect("whole blocks")];
            ty.quantize(&values, None, &mut blocks).expect("finite");
            let mut wide = vec![0; dense.ty.row_bytes(768).expect("whole blocks")];
            (dense.widen)(&blocks, &mut wide);
            let (mut sparse, mut found) = (vec![0.0; 768], vec![0.0; 768]);
            ty.dequantize(&blocks, &mut sparse).expect("whole blocks");
            dense.ty.dequantize(&wide, &mut found).expect("whole blocks");
            assert_eq!(sparse, found, "{ty}");
        }
    }

    #[test]
    fn a_block_on_the_grid_is_written_without_loss() {
        let values: [f32; BLOCK] = std::array::from_fn(|i| row(BLOCK)[i]);
        for Member { ty, grid, .. } in FAMILY {
            let sparse: Vec<f32> = round_trip(*ty, &values, None);
            let sparse: [f32; BLOCK] = std::array::from_fn(|i| sparse[i]);
            let scale = grid.scale(&values);
            // Half of the largest code, so that a new quantization would choose another scale.
            let half = sparse.map(|x| grid.nearest(x / 2.0, scale));
            let mut block = vec![0; ty.block_bytes];
            grid.write(&half, scale, &mut block);
            let mut back = vec![0.0; BLOCK];
            ty.dequantize(&block, &mut back).expect("a block");
            assert_eq!(half[..], back, "{ty}");
            assert!(
                half.iter().zip(&sparse).all(|(a, b)| (2.0 * a - b).abs() <= 1.01 * scale.abs())
            );
            assert_eq!(grid.nearest(1.0, 0.0), 0.0);
        }
    }

    #[test]
    fn importance_chooses_what_is_kept() {
        let mut values = vec![0.5; BLOCK];
        values[3] = 0.1;
        let mut importance = vec![1.0; BLOCK];
        importance[3] = 100.0;
        let back = round_trip(Type::S4_4_64, &values, Some(&importance));
        assert!(back[3] != 0.0, "importance · weight² of column 3 is the largest of its group");
        assert_eq!(round_trip(Type::S4_4_64, &values, None)[3], 0.0);
    }

    /// Plain selection: by cost · weight², where no cost above zero counts as zero, and then by size.
    #[test]
    fn groups_keep_the_weights_of_largest_score() {
        let values: [f32; BLOCK] = samples::values(1);
        let mut importance: [f32; BLOCK] = samples::costs(2);
        // The largest weight of the second group has no cost; all of the third group have none.
        let largest = (64..128).max_by(|a, b| values[*a].abs().total_cmp(&values[*b].abs()));
        importance[largest.expect("a group")] = f32::NAN;
        importance[128..192].fill(-1.0);
        importance[130] = f32::NAN;
        for member in FAMILY {
            let back = round_trip(member.ty, &values, Some(&importance));
            for group in 0..4 {
                let score = |i: &usize| {
                    let cost = if importance[*i] > 0.0 { f64::from(importance[*i]) } else { 0.0 };
                    (cost * f64::from(values[*i]).powi(2), values[*i].abs())
                };
                let mut columns: Vec<usize> = (64 * group..64 * group + 64).collect();
                columns.sort_by(|a, b| score(b).partial_cmp(&score(a)).expect("numbers"));
                for (rank, column) in columns.into_iter().enumerate() {
                    let is_kept = rank < member.kept;
                    assert!(is_kept || back[column] == 0.0, "{}: {column}", member.ty);
                    // Half a step of 8 bits; of 4 bits, the largest may be clipped by an eighth.
                    let bound = if member.ty.name.starts_with("S8") { 0.02 } else { 0.5 };
                    let off = (back[column] - values[column]).abs();
                    assert!(!is_kept || off < bound, "{}: {column} is {off} off", member.ty);
                }
            }
        }
    }

    #[test]
    fn without_any_cost_all_weights_count_equally() {
        let values: [f32; BLOCK] = samples::values(3);
        for member in FAMILY {
            let plain = round_trip(member.ty, &values, None);
            for none in [0.0, -1.0, f32::NAN] {
                assert_eq!(plain, round_trip(member.ty, &values, Some(&[none; BLOCK])), "{none}");
            }
        }
    }

    #[test]
    fn four_bits_have_nearly_the_least_error_there_is_and_eight_the_scale_of_the_peak() {
        let levels: Vec<f64> = (-8..8).map(f64::from).collect();
        let (mut found, mut least) = (0.0, 0.0);
        for seed in 0..8 {
            let values: [f32; BLOCK] = samples::values(seed);
            let importance: [f32; BLOCK] = samples::costs(seed + 100);
            let back = round_trip(Type::S4_16_64, &values, Some(&importance));
            let (mut x, mut w) = (vec![], vec![]);
            for (column, back) in back.iter().enumerate() {
                // A weight that became zero is kept or not: its error is the same.
                if *back != 0.0 {
                    x.push(values[column]);
                    w.push(importance[column]);
                    found +=
                        f64::from(importance[column]) * f64::from(values[column] - back).powi(2);
                }
            }
            least += least_loss(&x, &w, &levels);
            let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
            let back = round_trip(Type::S8_32_64, &values, None);
            let largest = back.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
            assert!((largest / peak - 1.0).abs() < 0.0005, "127 f16 scales");
            for (x, back) in values.iter().zip(&back) {
                assert!(*back == 0.0 || (x - back).abs() <= 0.501 * peak / 127.0);
            }
        }
        is_within(&[(found / least, 1.001)]);
    }
}
