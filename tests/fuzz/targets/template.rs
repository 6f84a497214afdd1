//! Fuzzes `targets::text::template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::text::template(data));
