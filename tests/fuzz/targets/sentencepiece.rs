//! Fuzzes `targets::files::sentencepiece`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::files::sentencepiece(data));
