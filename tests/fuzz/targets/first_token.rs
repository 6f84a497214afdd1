//! Fuzzes `targets::models::first_token`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::models::first_token(data));
