//! Fuzzes `targets::requests::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::requests::request(data));
