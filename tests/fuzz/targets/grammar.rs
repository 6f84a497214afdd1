//! Fuzzes `targets::requests::grammar`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::requests::grammar(data));
