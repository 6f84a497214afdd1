//! Fuzzes `targets::models::gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::models::gguf(data));
