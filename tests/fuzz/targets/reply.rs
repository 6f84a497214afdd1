//! Fuzzes `targets::text::reply`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::text::reply(data));
