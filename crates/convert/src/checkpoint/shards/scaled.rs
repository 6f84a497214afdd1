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

impl Shards {
    /// Joins FP8 weights and their scales; the latter are no tensors of the model.
    ///
    /// # Errors
    /// [`Error::Tensor`] for weights without scales, or with scales of another shape than the blocks of
    /// `quantization_config` imply.
    pub(in crate::checkpoint) fn join_scales(
        &mut self,
        checkpoint: &Checkpoint,
    ) -> Result<(), Error> {
        let is_fp8 = |stored: &Stored| stored.dtype == Dtype::F8_E4M3;
        let weights = self.tensors.iter().filter(|(_, stored)| is_fp8(stored));
        let names: Vec<String> = weights.map(|(name, _)| name.clone()).collect();
        let block = &checkpoint.settings().0["quantization_config"]["weight_block_size"];
        for name in names {
            let wrong = |reason: String| Error::Tensor { tensor: name.clone(), reason };
            let scales = SCALES.iter().find_map(|end| self.tensors.remove(&format!("{name}{end}")));
            let scales = scales.ok_or_else(|| {
                wrong(format!("its weights are F8_E4M3, and {name}{} is missing", SCALES[0]))
            })?;
            let weights = self.tensors.get_mut(&name).expect("its name is in the list");
            weights.scales = Some(Box::new(Scales::new(weights, scales, block).map_err(wrong)?));
            let module = name.strip_suffix("weight").unwrap_or(&name);
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
        for (place, (code, out)) in codes.iter().zip(bytes.as_chunks_mut::<4>().0).enumerate() {
            let (row, col) = ((first + place) / scales.cols, (first + place) % scales.cols);
            let scale = (scales.row(row) - start) * scales.scale_cols + col / scales.block[1];
            *out = (e4m3(*code) * values[scale]).to_le_bytes();
        }
        Ok(())
    }
}

impl Scales {
    /// `block` is the field of `quantization_config`; without it, a matrix or a row has one scale.
    fn new(weights: &Stored, stored: Stored, block: &Value) -> Result<Scales, String> {
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
        let size = |at: usize| block[at].as_u64().and_then(|size| usize::try_from(size).ok());
        let block = size(0).zip(size(1)).filter(|&(rows, cols)| rows > 0 && cols > 0);
        let blocks =
            block.map(|(rows, cols)| [rows, cols]).into_iter().chain([[rows, cols], [1, cols]]);
        for block in blocks.filter(|block| block[0] > 0 && block[1] > 0) {
            let (scale_rows, scale_cols) = (rows.div_ceil(block[0]), cols.div_ceil(block[1]));
            let expected = [stack, &[scale_rows, scale_cols]].concat();
            if without_ones(&given) == without_ones(&expected) {
                return Ok(Scales { stored, ty, rows, cols, scale_rows, scale_cols, block });
            }
        }
        Err(format!("its shape is {whole:?}, and that of its scales {given:?}: of no known blocks"))
    }

    /// The row of scales of a row of weights.
    fn row(&self, row: usize) -> usize {
        row / self.rows * self.scale_rows + row % self.rows / self.block[0]
    }
}

/// A shape without its last dimensions of one element, which some checkpoints leave out.
fn without_ones(mut shape: &[usize]) -> &[usize] {
    while let [rest @ .., 1] = shape {
        shape = rest;
    }
    shape
}

/// The value of a code: a sign, four bits of exponent with bias 7, three of mantissa; no infinities, and all ones is NaN.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, f32::from(code & 7));
    let value = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(exponent) - 7),
    };
    if code >> 7 == 1 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::e4m3;

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
}
