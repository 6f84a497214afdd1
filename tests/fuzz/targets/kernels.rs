//! Fuzzes `targets::numbers::kernels`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::numbers::kernels(data));
