//! Weights in FP8, NVFP4 and MXFP4 with scales in tensors of their own, as DeepSeek V3, compressed-tensors and NVIDIA's
//! Model Optimizer publish them: they read as F32.
//!
//! A weight is a float E4M3 (Micikevicius et al. 2022; `float8_e4m3fn` of PyTorch) or E2M1, two in a byte and the first in
//! the low bits, times the scale of its block. A scale is a float, a power of two (E8M0, OCP Microscaling Formats 1.0), or,
//! in NVFP4, E4M3 times or divided by one float of the tensor. Only the scales of the weights that are read are in memory.

use bilayer_quant::{Type, mxfp4};
use safetensors::Dtype;
use serde_json::Value;

use super::{Shards, Stored};
use crate::Error;
use crate::checkpoint::Checkpoint;

/// Weights of a row that share a scale in NVFP4.
const NVFP4: usize = 16;

/// Weights of a row that share a power of two in MXFP4 and MXFP8.
const MX: usize = 32;

/// The scales of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    /// What the weights are.
    codes: Codes,
    /// Where the scales are: `[.., rows of blocks, blocks in a row]`.
    stored: Stored,
    ty: ScaleType,
    /// The scale of all scales.
    global: Global,
    /// Rows of a matrix of weights.
    rows: usize,
    /// Weights in a row.
    cols: usize,
    /// Rows of a matrix of scales.
    scale_rows: usize,
    /// Scales in a row.
    scale_cols: usize,
    /// Rows and columns of weights that share a scale.
    block: [usize; 2],
}

/// The form of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Codes {
    /// A byte each.
    E4m3,
    /// Four bits each; a byte has two neighbours, the first in its low bits.
    E2m1,
}

/// The form of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScaleType {
    Float(Type),
    E4m3,
    /// A power of two, the exponent plus 127.
    E8m0,
}

/// What a tensor's scales are multiplied or divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Global {
    None,
    Factor(f32),
    Divisor(f32),
}

/// The ends of the names of scales, after the name of the weights.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];

/// The end of the names of compressed-tensors' weights with two in a byte.
const PACKED: &str = "_packed";

/// The ends of the names of a tensor's one factor or divisor, after the name of the weights.
const FACTOR: &str = "_scale_2";
const DIVISOR: &str = "_global_scale";

/// The ends of the names of scales of activations, after the name of the module. They are not needed.
const ACTIVATIONS: [&str; 3] = ["activation_scale", "input_scale", "input_global_scale"];

/// The ends of the names of scales of keys and values in a KV cache. They are not needed.
const CACHED: [&str; 2] = [".k_scale", ".v_scale"];

/// The value of each code of E4M3.
static VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        values[code] = e4m3(code as u8);
        code += 1;
    }
    values
};

impl Shards {
    /// Joins FP8, NVFP4 and MXFP4 weights and their scales; the latter are no tensors of the model. Two weights in a byte
    /// count as two, and lose the end of their name.
    ///
    /// # Errors
    /// [`Error::Tensor`] for weights without scales, or with scales of another type, or of another shape than the format and
    /// the blocks of `quantization_config` imply; [`Error::Checkpoint`] if a file cannot be read.
    pub(in crate::checkpoint) fn join_scales(
        &mut self,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        self.tensors.retain(|name, _| !CACHED.iter().any(|end| name.ends_with(end)));
        self.unpack_names();
        let blocks = blocks(&checkpoint.settings().0["quantization_config"]);
        // Scales may be FP8 too; those of weights in bytes are taken first.
        for codes in [Codes::E2m1, Codes::E4m3] {
            let weights =
                self.tensors.iter().filter(|(name, stored)| self.has(codes, name, stored));
            let names: Vec<String> = weights.map(|(name, _)| name.clone()).collect();
            for name in names {
                self.join(checkpoint, &name, codes, &blocks)?;
            }
        }
        Ok(())
    }

    /// Takes the end off the names of weights with two in a byte.
    fn unpack_names(&mut self) {
        let packed = self.tensors.iter().filter(|(_, stored)| stored.is_packed());
        let names = packed
            .filter_map(|(name, _)| Some((name.clone(), name.strip_suffix(PACKED)?.to_owned())));
        let names: Vec<(String, String)> = names.collect();
        for (name, short) in names {
            if !self.tensors.contains_key(&short) {
                let stored = self.tensors.remove(&name).expect("its name is in the list");
                self.tensors.insert(short, stored);
            }
        }
    }

    /// Whether a tensor's weights are such codes.
    fn has(&self, codes: Codes, name: &str, stored: &Stored) -> bool {
        match codes {
            Codes::E4m3 => stored.dtype == Dtype::F8_E4M3,
            Codes::E2m1 => {
                stored.is_packed() && self.tensors.contains_key(&format!("{name}{}", SCALES[1]))
            }
        }
    }

    /// Joins the weights `name` and their scales.
    fn join(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        codes: Codes,
        blocks: &[[usize; 2]],
    ) -> Result<(), Error> {
        let wrong = |reason: String| Error::Tensor { tensor: name.to_owned(), reason };
        let scales = SCALES.iter().find_map(|end| self.tensors.remove(&format!("{name}{end}")));
        let scales = scales.ok_or_else(|| {
            wrong(format!("its weights are F8_E4M3, and {name}{} is missing", SCALES[0]))
        })?;
        let global = self.global(checkpoint, name)?;
        let weights = self.tensors.get_mut(name).expect("its name is in the list");
        if codes == Codes::E2m1 {
            let cols = weights.shape.last_mut().ok_or_else(|| wrong("it is no matrix".into()))?;
            *cols = cols.saturating_mul(2);
        }
        let scales = Scales::new(codes, weights, scales, global, blocks).map_err(wrong)?;
        weights.scales = Some(Box::new(scales));
        // Stacked experts have no `.weight` at the end.
        let module = name.strip_suffix("weight").map_or(format!("{name}_"), str::to_owned);
        for end in ACTIVATIONS {
            self.tensors.remove(&format!("{module}{end}"));
        }
        Ok(())
    }

    /// The one factor or divisor of a tensor's scales, a float.
    fn global(&mut self, checkpoint: &Checkpoint, name: &str) -> Result<Global, Error> {
        for end in [FACTOR, DIVISOR] {
            let tensor = format!("{name}{end}");
            let Some(stored) = self.tensors.remove(&tensor) else { continue };
            if stored.dtype != Dtype::F32 || stored.elements() != 1 {
                let reason = format!("it is {:?} {}, not one F32", stored.shape, stored.dtype());
                return Err(Error::Tensor { tensor, reason });
            }
            let mut bytes = [0; 4];
            self.read_raw(&stored, 0, &mut bytes)
                .map_err(|error| checkpoint.unreadable(self.place(&stored).0, &error))?;
            let value = f32::from_le_bytes(bytes);
            return Ok(if end == FACTOR { Global::Factor(value) } else { Global::Divisor(value) });
        }
        Ok(Global::None)
    }

    /// Reads scaled weights from byte `from` of their F32 form on.
    pub(super) fn read_scaled(
        &self,
        weights: &Stored,
        scales: &Scales,
        from: u64,
        bytes: &mut [u8],
    ) -> std::io::Result<()> {
        let (first, out) = ((from / 4) as usize, bytes.as_chunks_mut::<4>().0);
        if out.is_empty() {
            return Ok(());
        }
        let codes = self.codes(weights, scales.codes, first..first + out.len())?;
        let (first_row, last_row) = (first / scales.cols, (first + codes.len() - 1) / scales.cols);
        let start = scales.row(first_row);
        let count = (scales.row(last_row) - start + 1) * scales.scale_cols;
        let mut stored = vec![0; count * scales.ty.bytes()];
        let offset = start * scales.scale_cols * scales.ty.bytes();
        self.read_raw(&scales.stored, offset as u64, &mut stored)?;
        let values = scales.values(&stored, count)?;
        let mut place = 0;
        while place < codes.len() {
            let (row, col) = ((first + place) / scales.cols, (first + place) % scales.cols);
            let block = col / scales.block[1];
            let scale = values[(scales.row(row) - start) * scales.scale_cols + block];
            let block_end = ((block + 1) * scales.block[1]).min(scales.cols);
            let end = codes.len().min(place + block_end - col);
            for (code, out) in codes[place..end].iter().zip(&mut out[place..end]) {
                *out = (scales.codes.value(*code) * scale).to_le_bytes();
            }
            place = end;
        }
        Ok(())
    }

    /// The codes of a range of weights, one in a byte.
    fn codes(
        &self,
        weights: &Stored,
        codes: Codes,
        range: std::ops::Range<usize>,
    ) -> std::io::Result<Vec<u8>> {
        if codes == Codes::E4m3 {
            let mut bytes = vec![0; range.len()];
            self.read_raw(weights, range.start as u64, &mut bytes)?;
            return Ok(bytes);
        }
        let first = range.start / 2;
        let mut bytes = vec![0; range.end.div_ceil(2) - first];
        self.read_raw(weights, first as u64, &mut bytes)?;
        Ok(range.map(|at| bytes[at / 2 - first] >> (4 * (at % 2)) & 15).collect())
    }
}

impl Codes {
    fn value(self, code: u8) -> f32 {
        match self {
            Codes::E4m3 => VALUES[usize::from(code)],
            Codes::E2m1 => f32::from(mxfp4::CODEBOOK[usize::from(code)]) / 2.0,
        }
    }
}

impl ScaleType {
    /// The type of a tensor of scales of such weights.
    fn of(stored: &Stored, codes: Codes) -> Option<ScaleType> {
        Some(match (stored.dtype, codes) {
            (Dtype::F32, Codes::E4m3) => ScaleType::Float(Type::F32),
            (Dtype::BF16, Codes::E4m3) => ScaleType::Float(Type::BF16),
            (Dtype::F16, Codes::E4m3) => ScaleType::Float(Type::F16),
            (Dtype::F8_E4M3, Codes::E2m1) => ScaleType::E4m3,
            (Dtype::U8 | Dtype::F8_E8M0, _) => ScaleType::E8m0,
            _ => return None,
        })
    }

    /// Bytes of a scale.
    fn bytes(self) -> usize {
        match self {
            ScaleType::Float(ty) => ty.block_bytes,
            ScaleType::E4m3 | ScaleType::E8m0 => 1,
        }
    }
}

impl Scales {
    /// `blocks` are the possible ones; if the scales fit none of them and not those of their format, a matrix or a row has one
    /// scale.
    fn new(
        codes: Codes,
        weights: &Stored,
        stored: Stored,
        global: Global,
        blocks: &[[usize; 2]],
    ) -> Result<Scales, String> {
        let ty = ScaleType::of(&stored, codes).ok_or_else(|| {
            let known = match codes {
                Codes::E4m3 => "F32, BF16, F16 and E8M0",
                Codes::E2m1 => "E4M3 (NVFP4) and E8M0 (MXFP4)",
            };
            format!("its scales are {}; {known} can be read", stored.dtype())
        })?;
        if ty == ScaleType::E4m3 && global == Global::None {
            return Err(format!(
                "its scales are F8_E4M3, those of NVFP4, and the one scale of the tensor, which ends in \
                 {DIVISOR} or {FACTOR}, is missing"
            ));
        }
        let sizes = |stored: &Stored| -> Vec<usize> {
            stored.shape.iter().map(|&size| size as usize).collect()
        };
        let (whole, given) = (sizes(weights), sizes(&stored));
        let [stack @ .., rows, cols] = &whole[..] else {
            return Err("its weights have scales, but it is no matrix".to_owned());
        };
        let (rows, cols) = (*rows, *cols);
        let of_format = match ty {
            ScaleType::E4m3 => [[1, NVFP4]; 2],
            ScaleType::E8m0 => [[1, MX]; 2],
            ScaleType::Float(_) => [[rows, cols], [1, cols]],
        };
        let blocks = blocks.iter().copied().chain(of_format);
        for block in blocks.filter(|block| block[0] > 0 && block[1] > 0) {
            let (scale_rows, scale_cols) = (rows.div_ceil(block[0]), cols.div_ceil(block[1]));
            let expected = [stack, &[scale_rows, scale_cols]].concat();
            if without_ones(&given) == without_ones(&expected) {
                return Ok(Scales {
                    codes,
                    stored,
                    ty,
                    global,
                    rows,
                    cols,
                    scale_rows,
                    scale_cols,
                    block,
                });
            }
        }
        Err(format!(
            "its shape is {whole:?}, and that of its scales {given:?}; they fit neither the blocks of \
             `quantization_config` nor those of the scales' format, nor a scale for each row or for the matrix"
        ))
    }

    /// The row of scales of a row of weights.
    fn row(&self, row: usize) -> usize {
        row / self.rows * self.scale_rows + row % self.rows / self.block[0]
    }

    /// The values of `count` scales.
    fn values(&self, stored: &[u8], count: usize) -> std::io::Result<Vec<f32>> {
        let mut values = match self.ty {
            ScaleType::Float(ty) => {
                let mut values = vec![0.0; count];
                ty.dequantize(stored, &mut values).map_err(std::io::Error::other)?;
                values
            }
            ScaleType::E4m3 => stored.iter().map(|&code| VALUES[usize::from(code)]).collect(),
            // Code 255 is NaN.
            ScaleType::E8m0 => stored.iter().map(|&code| 2.0 * mxfp4::half_scale(code)).collect(),
        };
        match self.global {
            Global::None => {}
            Global::Factor(factor) => values.iter_mut().for_each(|value| *value *= factor),
            Global::Divisor(divisor) => values.iter_mut().for_each(|value| *value /= divisor),
        }
        Ok(values)
    }
}

/// The rows and columns of weights that may share a scale: `weight_block_size`, or `block_structure` of each group of
/// compressed-tensors, a list or a text such as `128x128`.
fn blocks(quantization: &Value) -> Vec<[usize; 2]> {
    let groups = quantization["config_groups"].as_object().into_iter().flatten();
    let groups = groups.map(|(_, group)| &group["weights"]["block_structure"]);
    let block = |block: &Value| {
        let sizes: Vec<usize> = match block {
            Value::String(text) => text.split('x').filter_map(|size| size.parse().ok()).collect(),
            _ => {
                let sizes = block.as_array()?.iter().filter_map(Value::as_u64);
                sizes.filter_map(|size| usize::try_from(size).ok()).collect()
            }
        };
        sizes.try_into().ok()
    };
    [&quantization["weight_block_size"]].into_iter().chain(groups).filter_map(block).collect()
}

/// A shape without its last dimensions of one element, which some checkpoints leave out.
fn without_ones(mut shape: &[usize]) -> &[usize] {
    while let [rest @ .., 1] = shape {
        shape = rest;
    }
    shape
}

/// The value of a code: a sign, four bits of exponent with bias 7, three of mantissa; no infinities, and all ones is NaN.
const fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3 & 15) as u32, (code & 7) as u32);
    let value = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        // f32 has the bias 127 and 23 bits of mantissa.
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    if code >> 7 == 1 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{blocks, e4m3};

    /// PyTorch's values of `float8_e4m3fn`: each finite positive code is larger than the one before; the rest are facts of the
    /// format.
    #[test]
    fn codes_have_the_values_of_pytorch() {
        let known = [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x30, 0.5),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x4d, 6.5),
            (0x7e, 448.0),
        ];
        for (code, value) in known {
            assert_eq!((e4m3(code), e4m3(code | 0x80)), (value, -value), "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert!((1..0x7f).all(|code| e4m3(code) > e4m3(code - 1)));
    }

    #[test]
    fn blocks_are_read_of_both_kinds_of_configuration() {
        let group =
            |block| json!({"config_groups": {"group_0": {"weights": {"block_structure": block}}}});
        for (quantization, expected) in [
            (json!({"weight_block_size": [128, 64]}), &[[128, 64]][..]),
            (group(json!([128, 64])), &[[128, 64]]),
            (group(json!("128x64")), &[[128, 64]]),
            (group(json!(null)), &[]),
            (json!({"weight_block_size": [128]}), &[]),
            (json!({"weight_block_size": null}), &[]),
            (json!(null), &[]),
        ] {
            assert_eq!(blocks(&quantization), expected, "{quantization}");
        }
    }
}
