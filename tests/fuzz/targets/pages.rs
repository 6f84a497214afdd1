//! Fuzzes `targets::pages::pages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::pages::pages(data));
