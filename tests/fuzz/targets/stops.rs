//! Fuzzes `targets::text::stops`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::text::stops(data));
