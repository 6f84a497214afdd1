//! A file of log-probabilities of a base model, in the format of llama.cpp's perplexity tool.
//!
//! Little-endian:
//!
//! ```text
//! "_logits_"  i32 window_len  i32 vocab  i32 windows  i32 tokens[windows][window_len]
//! then for each window, for each of its window_len - 1 - window_len / 2 rows:
//!   f32 scale  f32 least  u16 steps[vocab]  u16 0 where vocab is odd
//! ```
//!
//! `ln p = least + scale * step`. Values 16 nats or more below a row's maximum are stored as the least.

use std::io::{Read, Write};

use super::{Error, Windows};
use bilayer_engine::Model;

const MAGIC: &[u8; 8] = b"_logits_";

/// Range of the steps below the best logit, nats.
const REACH: f32 = 16.0;

/// The largest step.
const STEPS: f32 = 65535.0;

/// Bytes before the steps of a row.
const SCALES: usize = 8;

/// Bytes per row.
pub fn row_bytes(vocab: usize) -> usize {
    SCALES + 2 * vocab.next_multiple_of(2)
}

/// Writes the header.
///
/// # Errors
/// The output fails, or a size exceeds the format.
pub fn write_header(out: &mut dyn Write, windows: &Windows, vocab: usize) -> Result<(), Error> {
    let sizes = [windows.window_len(), vocab, windows.count()];
    let tokens = windows.tokens().iter().map(|&token| token as usize);
    out.write_all(MAGIC).map_err(Error::Write)?;
    for number in sizes.into_iter().chain(tokens) {
        let number = i32::try_from(number).map_err(|_| Error::Large { found: number })?;
        out.write_all(&number.to_le_bytes()).map_err(Error::Write)?;
    }
    Ok(())
}

/// Encodes a row of logits `[vocab]` with maximum `most`, where `ln_sum` is the logarithm of the sum of `exp(logit -
/// most)`, to `bytes` of [`row_bytes`].
pub fn encode_row(logits: &[f32], most: f32, ln_sum: f32, bytes: &mut [u8]) {
    let least = logits.iter().copied().fold(most, f32::min).max(most - REACH);
    let scale = (most - least) / STEPS;
    let (scales, steps) = bytes.split_at_mut(SCALES);
    scales[..4].copy_from_slice(&scale.to_le_bytes());
    scales[4..].copy_from_slice(&(least - most - ln_sum).to_le_bytes());
    steps.fill(0);
    if scale == 0.0 {
        return;
    }
    let inverse = 1.0 / scale;
    for (logit, step) in logits.iter().zip(steps.as_chunks_mut().0) {
        // Rounding may slightly exceed the largest step; the cast saturates.
        let nearest = (inverse * (logit - least).max(0.0)).round_ties_even() as u16;
        *step = nearest.to_le_bytes();
    }
}

/// A decoded row.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    scale: f32,
    least: f32,
    steps: &'a [[u8; 2]],
}

impl<'a> Row<'a> {
    /// A row of `vocab` tokens from [`row_bytes`].
    pub fn new(bytes: &'a [u8], vocab: usize) -> Row<'a> {
        let float = |at: usize| f32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let steps = &bytes[SCALES..].as_chunks().0[..vocab];
        Row { scale: float(0), least: float(4), steps }
    }

    /// The logarithm of a token's probability.
    pub fn ln_p(&self, token: usize) -> f32 {
        self.scale * f32::from(u16::from_le_bytes(self.steps[token])) + self.least
    }

    /// Writes the log-probabilities of tokens from `first` on to `out`.
    ///
    /// # Panics
    /// If a token is outside the vocabulary.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let Row { scale, least, .. } = *self;
        let steps = &self.steps[first..][..out.len()];
        for (out, step) in out.iter_mut().zip(steps) {
            *out = scale * f32::from(u16::from_le_bytes(*step)) + least;
        }
    }

    /// Whether its numbers are finite.
    pub fn is_finite(&self) -> bool {
        self.scale.is_finite() && self.least.is_finite()
    }
}

/// A file of base logits, read row by row.
pub struct Base<R> {
    input: R,
    vocab: usize,
    windows: Windows,
}

impl<R> Base<R> {
    /// Bytes of a row for a vocabulary of `vocab` tokens.
    pub fn row_bytes(vocab: usize) -> usize {
        row_bytes(vocab)
    }
}

impl<R: Read> Base<R> {
    /// Reads the header. `bytes` is the length of the file.
    ///
    /// # Errors
    /// Not such a file; a truncated one; another vocabulary than the model's.
    pub fn new(mut input: R, bytes: u64, model: &Model) -> Result<Base<R>, Error> {
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(Error::Read)?;
        if magic != *MAGIC {
            return Err(Error::Magic);
        }
        let mut size = |name: &'static str| {
            let found = number(&mut input)?;
            usize::try_from(found).ok().filter(|&size| size > 0).ok_or(Error::Size { name, found })
        };
        let (len, vocab, count) =
            (size("tokens of a window")?, size("vocabulary")?, size("number of windows")?);
        if len < 4 {
            return Err(Error::Size { name: "tokens of a window", found: len as i32 });
        }
        let known = model.config().vocab;
        if vocab != known {
            return Err(Error::Vocabulary { found: vocab, known });
        }
        let rows = (len - 1 - len / 2) as u64;
        let expected = rows
            .checked_mul(row_bytes(vocab) as u64)
            .and_then(|row| row.checked_add(4 * len as u64))
            .and_then(|window| window.checked_mul(count as u64))
            .and_then(|all| all.checked_add(20));
        if expected != Some(bytes) {
            return Err(Error::Length { expected: expected.unwrap_or(u64::MAX), found: bytes });
        }
        let mut tokens = Vec::with_capacity(len * count);
        for _ in 0..len * count {
            let found = number(&mut input)?;
            let token = u32::try_from(found).ok().filter(|&token| (token as usize) < vocab);
            tokens.push(token.ok_or(Error::Token { found, vocab })?);
        }
        Ok(Base { input, vocab, windows: Windows::kept(model, tokens, len) })
    }

    /// The windows of the file.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Reads the next rows into `bytes`, a multiple of `row_bytes`.
    ///
    /// # Errors
    /// The file cannot be read or is not finite.
    pub fn rows(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.input.read_exact(bytes).map_err(Error::Read)?;
        let mut rows = bytes.chunks_exact(row_bytes(self.vocab));
        match rows.all(|row| Row::new(row, self.vocab).is_finite()) {
            true => Ok(()),
            false => Err(Error::NotFinite),
        }
    }
}

fn number(input: &mut impl Read) -> Result<i32, Error> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes).map_err(Error::Read)?;
    Ok(i32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_within_half_a_step() {
        let logits = [3.0f32, -1.5, 2.75, -40.0, 0.0];
        let (most, sum) = (3.0f32, logits.iter().map(|x| (x - 3.0f32).exp()).sum::<f32>());
        let mut bytes = vec![0xff; row_bytes(5)];
        encode_row(&logits, most, sum.ln(), &mut bytes);
        assert_eq!((bytes.len(), bytes[18..].to_vec()), (20, vec![0, 0]));
        let row = Row::new(&bytes, 5);
        for (token, logit) in logits.iter().enumerate() {
            let expected = logit.max(most - REACH) - most - sum.ln();
            assert!((row.ln_p(token) - expected).abs() < 0.51 * REACH / STEPS, "{token}");
        }
        let mut some = [0.0; 3];
        row.read(2, &mut some);
        assert_eq!(some, [2, 3, 4].map(|token| row.ln_p(token)));
    }

    #[test]
    fn a_row_of_equals_has_no_steps() {
        let mut bytes = vec![0xff; row_bytes(4)];
        encode_row(&[7.0; 4], 7.0, 4.0f32.ln(), &mut bytes);
        let mut all = [0.0; 4];
        Row::new(&bytes, 4).read(0, &mut all);
        assert_eq!(all, [-(4.0f32.ln()); 4]);
    }
}
