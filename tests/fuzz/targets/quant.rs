//! Fuzzes `targets::numbers::quant`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::numbers::quant(data));
