//! The types of the KV cache: which there are, how each rounds a head's keys or values, and the bytes it takes.
//!
//! A head's elements are stored as floats, or in blocks of 32 with a scale. A block never spans two heads, because a
//! device reads one head at a time; the last block of a head may be shorter. Codes and scales are those of the GGUF type,
//! found without a search, because a token is quantized as it is generated. Where they lie is each device's own choice.

use crate::blocks::{f16_bits, f16_value};
use crate::lanes::reciprocal;
use crate::{Type, iq4_nl, q8_0, search};

/// Elements of a whole block.
pub const BLOCK: usize = 32;

/// How a type stores the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A float for each element.
    Float,
    /// Integers with a scale, perhaps a minimum, per block.
    Blocks(Coding),
}

/// How a block is coded: an element is `d · level(code) + m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coding {
    /// Bits of a code: 4, 5 or 8.
    pub bits: usize,
    /// How codes are found, and their levels.
    pub rule: Rule,
}

/// How the scale and the codes of a block follow from its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The largest magnitude has the level 127 or -127; a code is its level in two's complement.
    Symmetric,
    /// The element of largest magnitude has code 0; levels are codes less half their number.
    Signed,
    /// The smallest element is the minimum `m`, the largest has the highest code; levels are codes.
    Range,
    /// Levels from the codebook of IQ4_NL: nearest ones where the largest magnitude has code 0, then the scale with the
    /// least error, in which larger elements count more.
    Codebook,
}

/// A block: scale and minimum (0 where the rule has none) as f16 bits, and the codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The scale, f16 bits; NaN if an element is not finite, so that it is noticed.
    pub d: u16,
    /// The minimum, f16 bits.
    pub m: u16,
    /// Codes; beyond a short block's elements they have no meaning.
    pub codes: [u8; BLOCK],
}

const fn blocks(bits: usize, rule: Rule) -> Form {
    Form::Blocks(Coding { bits, rule })
}

/// The types in falling order of size.
pub static TYPES: [(Type, Form); 9] = [
    (Type::F32, Form::Float),
    (Type::F16, Form::Float),
    (Type::BF16, Form::Float),
    (Type::Q8_0, blocks(8, Rule::Symmetric)),
    (Type::Q5_1, blocks(5, Rule::Range)),
    (Type::Q5_0, blocks(5, Rule::Signed)),
    (Type::Q4_1, blocks(4, Rule::Range)),
    (Type::Q4_0, blocks(4, Rule::Signed)),
    (Type::IQ4_NL, blocks(4, Rule::Codebook)),
];

/// How a type stores a head; `None` if it is not a type of the KV cache.
#[must_use]
pub fn form(ty: Type) -> Option<Form> {
    TYPES.iter().find(|(known, _)| *known == ty).map(|(_, form)| *form)
}

/// The names of all types in lower case, as a list: `f32, f16, ... or iq4_nl`.
#[must_use]
pub fn names() -> String {
    let mut names: Vec<_> = TYPES.iter().map(|(ty, _)| ty.name.to_lowercase()).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}", names.join(", "))
}

/// Bytes of a head's keys or values of one token, without padding; those of whole blocks for other types.
#[must_use]
pub fn head_bytes(ty: Type, head_dim: usize) -> usize {
    match form(ty) {
        Some(Form::Blocks(coding)) => {
            let scales = if coding.has_minimum() { 4 } else { 2 };
            (head_dim * coding.bits).div_ceil(8) + head_dim.div_ceil(BLOCK) * scales
        }
        _ => head_dim.div_ceil(ty.block_weights) * ty.block_bytes,
    }
}

impl Coding {
    /// Whether blocks have a minimum.
    #[inline(always)]
    #[must_use]
    pub fn has_minimum(self) -> bool {
        self.rule == Rule::Range
    }

    /// The level of a code.
    #[inline(always)]
    #[must_use]
    pub fn level(self, code: u8) -> i8 {
        match self.codebook() {
            Some(table) => table[usize::from(code & 15)],
            None => (code as i8).wrapping_sub(self.zero()),
        }
    }

    /// The code of level 0, where no table has the levels.
    #[inline(always)]
    #[must_use]
    pub fn zero(self) -> i8 {
        if self.rule == Rule::Signed { 1 << (self.bits - 1) } else { 0 }
    }

    /// The levels of all codes, where a table has them.
    #[inline(always)]
    #[must_use]
    pub fn codebook(self) -> Option<&'static [i8; 16]> {
        (self.rule == Rule::Codebook).then_some(&iq4_nl::CODEBOOK)
    }

    /// Codes a block of 1 to 32 elements. Inlined, so that the caller's instructions serve the loops.
    #[inline(always)]
    #[must_use]
    pub fn encode(self, values: &[f32]) -> Coded {
        // Repeating an element changes neither the extremes nor the range.
        let mut block = [values[0]; BLOCK];
        block[..values.len()].copy_from_slice(values);
        let mut coded = match self.rule {
            Rule::Symmetric => {
                let block = q8_0::quantize(&block);
                Coded { d: block.d, m: 0, codes: block.quants.map(|q| q as u8) }
            }
            Rule::Signed => {
                let block = search::signed(&block, self.bits);
                Coded { d: block.d, m: 0, codes: block.codes }
            }
            Rule::Range => {
                let block = search::range(&block, ((1 << self.bits) - 1) as f32);
                Coded { d: block.d, m: block.m, codes: block.codes }
            }
            Rule::Codebook => codebook(&block, values.len()),
        };
        if !values.iter().all(|x| x.is_finite()) {
            coded.d = half::f16::NAN.to_bits();
        }
        coded
    }

    /// The elements of a block of `out.len()` elements.
    pub fn decode(self, coded: &Coded, out: &mut [f32]) {
        let (d, m) = (f16_value(coded.d), f16_value(coded.m));
        for (out, &code) in out.iter_mut().zip(&coded.codes) {
            *out = d * f32::from(self.level(code)) + m;
        }
    }
}

/// [`Rule::Codebook`], for the first `len` elements; sums are of levels, so that no power overflows.
#[inline(always)]
fn codebook(values: &[f32; BLOCK], len: usize) -> Coded {
    let d = search::peak(values) / f32::from(iq4_nl::CODEBOOK[0]);
    let inverse = reciprocal(d);
    let exact = values.map(|x| x * inverse);
    let levels = exact.map(iq4_nl::nearest);
    let (mut products, mut squares) = (0.0, 0.0);
    for (&x, &level) in exact.iter().zip(&levels).take(len) {
        products += x * x * level * x;
        squares += x * x * level * level;
    }
    let d = d * products * reciprocal(squares);
    let codes = levels.map(|level| iq4_nl::CODES[usize::from(level as i8 as u8)]);
    Coded { d: f16_bits(d), m: 0, codes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn values(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * i) as f32 * 0.7).sin() + 0.3).collect()
    }

    #[test]
    fn whole_blocks_are_those_of_the_gguf_type() {
        for &(ty, form) in &TYPES {
            let Form::Blocks(coding) = form else { continue };
            let row = values(4 * BLOCK);
            let mut bytes = vec![0; ty.row_bytes(row.len()).unwrap()];
            ty.quantize(&row, None, &mut bytes).unwrap();
            let mut expected = vec![0.0; row.len()];
            ty.dequantize(&bytes, &mut expected).unwrap();
            let mut found = vec![0.0; row.len()];
            for (values, found) in row.chunks(BLOCK).zip(found.chunks_mut(BLOCK)) {
                coding.decode(&coding.encode(values), found);
            }
            if ty == Type::IQ4_NL {
                // The file's type tries several scales; one alone may cost a tenth more.
                let error = |of: &[f32]| -> f32 {
                    of.iter().zip(&row).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
                };
                let (ours, least) = (error(&found), error(&expected));
                assert!(ours < 1.2 * least, "{ours} {least}");
            } else {
                assert_eq!(found, expected, "{ty}");
            }
        }
    }

    /// Pages that move between devices are read as floats and quantized again.
    #[test]
    fn elements_that_were_rounded_once_are_not_rounded_again() {
        for &(ty, form) in &TYPES {
            let Form::Blocks(coding) = form else { continue };
            for len in 1..=BLOCK {
                let mut once = vec![0.0; len];
                coding.decode(&coding.encode(&values(len)), &mut once);
                let mut twice = vec![0.0; len];
                coding.decode(&coding.encode(&once), &mut twice);
                assert_eq!(once, twice, "{ty} of {len}");
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_is_noticed() {
        for &(ty, form) in &TYPES {
            let Form::Blocks(coding) = form else { continue };
            let mut out = [1.0; 7];
            coding.decode(&coding.encode(&[0.0; 7]), &mut out);
            assert_eq!(out, [0.0; 7], "{ty}");
            for wild in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let coded: Coded = coding.encode(&[1.0, wild, -2.0]);
                coding.decode(&coded, &mut out[..3]);
                assert!(out[0].is_nan(), "{ty} {wild}");
            }
        }
    }

    #[test]
    fn sizes_are_those_of_the_file_for_whole_blocks() {
        for &(ty, _) in &TYPES {
            assert_eq!(head_bytes(ty, 64), ty.row_bytes(64).unwrap(), "{ty}");
        }
        // 40 codes, and two blocks with a scale and perhaps a minimum; a last byte may be used in part.
        let cases = [
            (Type::F32, 40, 160),
            (Type::BF16, 40, 80),
            (Type::Q8_0, 40, 40 + 4),
            (Type::Q5_1, 40, 25 + 8),
            (Type::Q5_0, 40, 25 + 4),
            (Type::Q5_0, 33, 21 + 4),
            (Type::Q4_1, 40, 20 + 8),
            (Type::Q4_0, 31, 16 + 2),
            (Type::IQ4_NL, 96, 48 + 6),
            // Other types have whole blocks.
            (Type::Q4_K, 256, 144),
            (Type::Q4_K, 300, 288),
        ];
        for (ty, head_dim, bytes) in cases {
            assert_eq!(head_bytes(ty, head_dim), bytes, "{ty} of {head_dim}");
        }
    }

    #[test]
    fn types_are_known_by_name_and_form() {
        assert_eq!(names(), "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
        assert_eq!(form(Type::F16), Some(Form::Float));
        assert_eq!(form(Type::Q5_0), Some(Form::Blocks(Coding { bits: 5, rule: Rule::Signed })));
        assert_eq!(form(Type::Q4_K), None);
    }

    #[test]
    fn codes_have_the_levels_of_their_rule() {
        let cases = [
            (8, Rule::Symmetric, 0x81, -127),
            (8, Rule::Symmetric, 127, 127),
            (5, Rule::Signed, 0, -16),
            (5, Rule::Signed, 31, 15),
            (4, Rule::Signed, 0, -8),
            (4, Rule::Signed, 9, 1),
            (5, Rule::Range, 0, 0),
            (5, Rule::Range, 31, 31),
            (4, Rule::Codebook, 0, -127),
            (4, Rule::Codebook, 15, 113),
            // Only four bits count.
            (4, Rule::Codebook, 0x21, -104),
        ];
        for (bits, rule, code, level) in cases {
            let coding = Coding { bits, rule };
            assert_eq!(coding.level(code), level, "{rule:?} of {bits} bits");
            assert_eq!(coding.has_minimum(), rule == Rule::Range);
            assert_eq!(coding.codebook().is_some(), rule == Rule::Codebook);
        }
        assert_eq!(Coding { bits: 5, rule: Rule::Signed }.zero(), 16);
        assert_eq!(Coding { bits: 8, rule: Rule::Symmetric }.zero(), 0);
    }

    #[test]
    fn an_element_is_its_level_times_the_scale_plus_the_minimum() {
        let mut coded = Coded { d: f16_bits(0.5), m: f16_bits(-3.0), codes: [0; BLOCK] };
        coded.codes[..3].copy_from_slice(&[0, 5, 31]);
        let mut out = [0.0; 3];
        Coding { bits: 5, rule: Rule::Range }.decode(&coded, &mut out);
        assert_eq!(out, [-3.0, -0.5, 12.5]);
    }

    /// Codes are nearest to x / d0, d0 mapping the peak to -127; then Σ x² (x - d · level)² is least.
    #[test]
    fn the_scale_of_a_codebook_has_the_least_error_of_its_levels() {
        let coding = Coding { bits: 4, rule: Rule::Codebook };
        for (seed, len) in [(0, 32), (1, 32), (2, 7), (3, 20), (4, 2)] {
            let all: [f32; BLOCK] = samples::values(seed);
            let values = &all[..len];
            let coded = coding.encode(values);
            let first = search::peak(&all.map(|x| if all[..len].contains(&x) { x } else { 0.0 }));
            let first = f64::from(first) / -127.0;
            let (mut xl, mut ll) = (0.0, 0.0);
            for (x, code) in values.iter().zip(coded.codes) {
                let (x, level) = (f64::from(*x), f64::from(coding.level(code)));
                for other in iq4_nl::CODEBOOK.map(f64::from) {
                    let [off, further] = [level, other].map(|level| (x / first - level).abs());
                    assert!(off <= further + 1e-3, "{x}: {level} and {other}");
                }
                xl += x * x * x * level;
                ll += x * x * level * level;
            }
            let d = f64::from(f16_value(coded.d));
            assert!((d / (xl / ll) - 1.0).abs() < 0.0006, "{d} for {}", xl / ll);
            assert_eq!(coded.m, 0);
        }
    }
}
