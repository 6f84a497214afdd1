//! The random bytes of one tensor, chunk by chunk.

use std::ops::Range;

use bilayer_quant::Type;

use super::blocks::{LINES, Line, Numbers, Recode, Stamp};
use super::random::Random;
use super::tensors::Spread;
use crate::Error;

/// Approximate bytes per chunk: enough work for a thread, small enough for its cache.
const CHUNK_BYTES: usize = 1 << 18;
/// Precomputed random values of an unquantized type; a power of two.
const DRAWS: usize = 1 << 12;
/// Number of blocks for measuring a type's noise.
const SAMPLE_BLOCKS: usize = 512;
/// The standard deviation of integers from -127 to 127.
const UNIFORM: f32 = 73.61;
/// Denominator of the probability of the larger scale.
const CHANCES: f32 = 65_536.0;

/// Generates the bytes of one tensor.
pub(super) struct Weights<'a> {
    name: &'a str,
    seed: u64,
    /// Bytes of a block, or of a row if all blocks of a row share a header.
    block_bytes: usize,
    source: Source,
}

enum Source {
    /// Random values to pick from, [`DRAWS`] times `block_bytes`.
    Draws(Vec<u8>),
    /// Noise under one of two neighbouring scales.
    Blocks {
        stamps: [Vec<Stamp>; 2],
        /// Probability of the larger scale, out of [`CHANCES`].
        chance: u16,
        codes: Option<(Range<usize>, Recode)>,
    },
    /// Rows of uniform signed bytes after their scale.
    Rows { scale: [u8; 4] },
}

impl<'a> Weights<'a> {
    /// Weights of type `ty` in rows of `cols` with the given distribution; blocks are always centred at 0.
    ///
    /// # Errors
    /// [`Error::NotForWeights`].
    pub fn new(
        name: &'a str,
        (ty, cols): (Type, usize),
        spread: Spread,
        seed: u64,
    ) -> Result<Self, Error> {
        if !ty.has_lone_blocks() {
            let block_bytes =
                ty.row_bytes(cols).map_err(|_| Error::NotForWeights { ty: ty.name })?;
            // The scale as the type stores it, so that its dense form is exact.
            let (mut row, largest) = (vec![0; block_bytes], 127.0 * spread.deviation / UNIFORM);
            ty.quantize(&vec![largest; cols], None, &mut row)
                .map_err(|_| Error::NotForWeights { ty: ty.name })?;
            let source = Source::Rows { scale: [row[0], row[1], row[2], row[3]] };
            return Ok(Weights { name, seed, block_bytes, source });
        }
        let source = match LINES.iter().find(|line| line.ty == ty) {
            Some(line) => blocks(line, spread.deviation),
            None => Source::Draws(draws(ty, spread, Random::of(seed, name, u64::MAX))?),
        };
        Ok(Weights { name, seed, block_bytes: ty.block_bytes, source })
    }

    /// Bytes per chunk; a whole number of blocks.
    pub fn chunk_bytes(&self) -> usize {
        (CHUNK_BYTES / self.block_bytes).max(1) * self.block_bytes
    }

    /// Generates chunk number `chunk`; only a tensor's last one may be shorter than [`Weights::chunk_bytes`].
    pub fn fill(&self, chunk: u64, bytes: &mut [u8]) {
        let mut random = Random::of(self.seed, self.name, chunk);
        match &self.source {
            Source::Draws(table) => match self.block_bytes {
                2 => draw::<2>(table, &mut random, bytes),
                _ => draw::<4>(table, &mut random, bytes),
            },
            Source::Rows { scale } => {
                random.fill(bytes);
                for row in bytes.chunks_exact_mut(self.block_bytes) {
                    row[..4].copy_from_slice(scale);
                    for code in &mut row[4..] {
                        *code = if *code == 0x80 { 0 } else { *code };
                    }
                }
            }
            Source::Blocks { stamps, chance, codes } => {
                random.fill(bytes);
                for blocks in bytes.chunks_mut(4 * self.block_bytes) {
                    let choices = random.next();
                    for (i, block) in blocks.chunks_exact_mut(self.block_bytes).enumerate() {
                        let larger = ((choices >> (16 * i)) as u16) < *chance;
                        for stamp in &stamps[usize::from(larger)] {
                            block[stamp.at] = block[stamp.at] & stamp.keep | stamp.set;
                        }
                        if let Some((plane, code)) = codes {
                            code.apply(&mut block[plane.clone()]);
                        }
                    }
                }
            }
        }
    }
}

/// Blocks for weights of that standard deviation: since few scales are exact, two neighbours are mixed so that
/// the mean square is right.
fn blocks(line: &Line, deviation: f32) -> Source {
    let numbers = line.numbers;
    let target = deviation / noise(line);
    let (low, high) = neighbours(numbers, target);
    let square = |code| f64::from(numbers.value(code)).powi(2);
    let part = (f64::from(target).powi(2) - square(low)) / (square(high) - square(low));
    // NaN if both are equal; the cast makes it 0.
    let chance = (part as f32 * CHANCES) as u16;
    let codes = line.codes.map(|(plane, code)| (line.plane(plane), code));
    Source::Blocks { stamps: [line.stamps(low), line.stamps(high)], chance, codes }
}

/// The codes of the largest number up to `target` and of the next one.
fn neighbours(numbers: Numbers, target: f32) -> (u16, u16) {
    let (last, _) = numbers.codes();
    // Binary search for the first code above `target`.
    let (mut above, mut end) = (0, last + 1);
    while above < end {
        let middle = above + (end - above) / 2;
        if numbers.value(middle) <= target {
            above = middle + 1;
        } else {
            end = middle;
        }
    }
    (above.saturating_sub(1), above.min(last))
}

/// The standard deviation of weights under a scale of 1.
fn noise(line: &Line) -> f32 {
    let (_, one) = line.numbers.codes();
    let stamps = line.stamps(one);
    let codes = line.codes.map(|(plane, code)| (line.plane(plane), code));
    let source = Source::Blocks { stamps: [stamps.clone(), stamps], chance: 0, codes };
    let sample = Weights { name: line.ty.name, seed: 0, block_bytes: line.ty.block_bytes, source };
    let mut bytes = vec![0; SAMPLE_BLOCKS * line.ty.block_bytes];
    sample.fill(0, &mut bytes);
    let mut values = vec![0.0; SAMPLE_BLOCKS * line.ty.block_weights];
    // Both slices have the type's own sizes.
    (line.ty.dequantize)(&bytes, &mut values);
    let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    (squares / values.len() as f64).sqrt() as f32
}

/// [`DRAWS`] values of an unquantized type, approximately normal, with exactly this mean and deviation.
fn draws(ty: Type, spread: Spread, mut random: Random) -> Result<Vec<u8>, Error> {
    if ty.block_weights != 1 || ty.quantize.is_none() {
        return Err(Error::NotForWeights { ty: ty.name });
    }
    // Sums of twelve uniform numbers (Irwin-Hall) avoid logarithms, which round differently between machines.
    let uniform = |bits: u64| (bits >> 40) as f64 / (1u64 << 24) as f64 - 0.5;
    let sums: Vec<f64> =
        (0..DRAWS).map(|_| (0..12).map(|_| uniform(random.next())).sum()).collect();
    let mean = sums.iter().sum::<f64>() / DRAWS as f64;
    let square = sums.iter().map(|sum| (sum - mean).powi(2)).sum::<f64>() / DRAWS as f64;
    let values: Vec<f32> = sums
        .iter()
        .map(|sum| ((sum - mean) / square.sqrt()) as f32 * spread.deviation + spread.centre)
        .collect();
    let mut bytes = vec![0; DRAWS * ty.block_bytes];
    let failed = |_| Error::NotForWeights { ty: ty.name };
    ty.quantize(&values, None, &mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Fills `bytes` with values of `N` bytes picked from `table`, four per random number.
fn draw<const N: usize>(table: &[u8], random: &mut Random, bytes: &mut [u8]) {
    let (table, _) = table.as_chunks::<N>();
    for values in bytes.chunks_mut(4 * N) {
        let choices = random.next();
        for (i, value) in values.chunks_exact_mut(N).enumerate() {
            value.copy_from_slice(&table[(choices >> (16 * i)) as usize % DRAWS]);
        }
    }
}
