//! Fuzzes `targets::models::gguf_edits`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::models::gguf_edits(data));
