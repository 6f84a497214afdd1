//! Weights in FP8 with scales in a tensor of their own, as DeepSeek V3 and others are published: they read as F32.
//!
//! A weight is a float E4M3 (Micikevicius et al. 2022; `float8_e4m3fn` of PyTorch) times the scale of its block. Only the
//! scales of the weights that are read are in memory.

use bilayer_quant::Type;
use safetensors::Dtype;
use serde_json::Value;

use super::{Shards, Stored};
use crate::Error;
use crate::checkpoint::Checkpoint;

/// The reason against the scales of NVFP4.
const NVFP4: &str = "it holds scales of type F8_E4M3, those of weights in NVFP4, which cannot be converted; take the \
                     checkpoint in BF16 or FP8";

/// The scales of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    /// Where they are: `[.., rows of blocks, blocks in a row]`.
    stored: Stored,
    ty: Type,
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

/// The ends of the names of scales, after the name of the weights.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];

/// The ends of the names of scales of activations, after the name of the module. They are not needed.
const ACTIVATIONS: [&str; 2] = ["activation_scale", "input_scale"];

/// The ends of the names of scales of keys and values in a KV cache. They are not needed.
const CACHED: [&str; 2] = [".k_scale", ".v_scale"];

/// The value of each code.
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
    /// Joins FP8 weights and their scales; the latter are no tensors of the model.
    ///
    /// # Errors
    /// [`Error::Tensor`] for weights without scales, or with scales of another shape than the blocks of
    /// `quantization_config` imply; for scales of NVFP4, whose weights are not supported.
    pub(in crate::checkpoint) fn join_scales(
        &mut self,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        self.tensors.retain(|name, _| !CACHED.iter().any(|end| name.ends_with(end)));
        let is_fp8 = |stored: &Stored| stored.dtype == Dtype::F8_E4M3;
        let weights = self.tensors.iter().filter(|(_, stored)| is_fp8(stored));
        let names: Vec<String> = weights.map(|(name, _)| name.clone()).collect();
        let blocks = blocks(&checkpoint.settings().0["quantization_config"]);
        for name in names {
            let wrong = |reason: String| Error::Tensor { tensor: name.clone(), reason };
            if name.ends_with("weight_scale") {
                return Err(wrong(NVFP4.to_owned()));
            }
            let scales = SCALES.iter().find_map(|end| self.tensors.remove(&format!("{name}{end}")));
            let scales = scales.ok_or_else(|| {
                wrong(format!("its weights are F8_E4M3, and {name}{} is missing", SCALES[0]))
            })?;
            let weights = self.tensors.get_mut(&name).expect("its name is in the list");
            weights.scales = Some(Box::new(Scales::new(weights, scales, &blocks).map_err(wrong)?));
            // Stacked experts have no `.weight` at the end.
            let module = name.strip_suffix("weight").map_or(format!("{name}_"), str::to_owned);
            for end in ACTIVATIONS {
                self.tensors.remove(&format!("{module}{end}"));
            }
        }
        Ok(())
    }

    /// Reads FP8 weights from byte `from` of their F32 form on.
    pub(super) fn read_scaled(
        &self,
        weights: &Stored,
        scales: &Scales,
        from: u64,
        bytes: &mut [u8],
    ) -> std::io::Result<()> {
        let first = (from / 4) as usize;
        let mut codes = vec![0; bytes.len() / 4];
        if codes.is_empty() {
            return Ok(());
        }
        self.read_raw(weights, first as u64, &mut codes)?;
        let (first_row, last_row) = (first / scales.cols, (first + codes.len() - 1) / scales.cols);
        let start = scales.row(first_row);
        let count = (scales.row(last_row) - start + 1) * scales.scale_cols;
        let mut stored = vec![0; count * scales.ty.block_bytes];
        let offset = start * scales.scale_cols * scales.ty.block_bytes;
        self.read_raw(&scales.stored, offset as u64, &mut stored)?;
        let mut values = vec![0.0; count];
        scales.ty.dequantize(&stored, &mut values).map_err(std::io::Error::other)?;
        let (out, mut place) = (bytes.as_chunks_mut::<4>().0, 0);
        while place < codes.len() {
            let (row, col) = ((first + place) / scales.cols, (first + place) % scales.cols);
            let block = col / scales.block[1];
            let scale = values[(scales.row(row) - start) * scales.scale_cols + block];
            let block_end = ((block + 1) * scales.block[1]).min(scales.cols);
            let end = codes.len().min(place + block_end - col);
            for (code, out) in codes[place..end].iter().zip(&mut out[place..end]) {
                *out = (VALUES[usize::from(*code)] * scale).to_le_bytes();
            }
            place = end;
        }
        Ok(())
    }
}

impl Scales {
    /// `blocks` are the possible ones; if the scales fit none of them, a matrix or a row has one scale.
    fn new(weights: &Stored, stored: Stored, blocks: &[[usize; 2]]) -> Result<Scales, String> {
        let ty = match stored.dtype {
            Dtype::F32 => Type::F32,
            Dtype::BF16 => Type::BF16,
            Dtype::F16 => Type::F16,
            other => {
                return Err(format!("its scales are {other:?}; F32, BF16 and F16 can be read"));
            }
        };
        let sizes = |stored: &Stored| -> Vec<usize> {
            stored.shape.iter().map(|&size| size as usize).collect()
        };
        let (whole, given) = (sizes(weights), sizes(&stored));
        let [stack @ .., rows, cols] = &whole[..] else {
            return Err("its weights are F8_E4M3, but it is no matrix".to_owned());
        };
        let (rows, cols) = (*rows, *cols);
        let blocks = blocks.iter().copied().chain([[rows, cols], [1, cols]]);
        for block in blocks.filter(|block| block[0] > 0 && block[1] > 0) {
            let (scale_rows, scale_cols) = (rows.div_ceil(block[0]), cols.div_ceil(block[1]));
            let expected = [stack, &[scale_rows, scale_cols]].concat();
            if without_ones(&given) == without_ones(&expected) {
                return Ok(Scales { stored, ty, rows, cols, scale_rows, scale_cols, block });
            }
        }
        Err(format!(
            "its shape is {whole:?}, and that of its scales {given:?}; they fit neither the blocks of \
             `quantization_config` nor a scale for each row or for the matrix"
        ))
    }

    /// The row of scales of a row of weights.
    fn row(&self, row: usize) -> usize {
        row / self.rows * self.scale_rows + row % self.rows / self.block[0]
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
