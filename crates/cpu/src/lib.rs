//! The CPU backend: SIMD kernels on quantized weights, chosen at run time.
