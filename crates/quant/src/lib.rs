//! Quantization types: block layouts, scalar quantize and dequantize, sizes.
