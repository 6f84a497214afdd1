//! Fuzzes `targets::text::tokenizer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::text::tokenizer(data));
