//! Fuzzes `targets::gguf_edits`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::gguf_edits(data));
