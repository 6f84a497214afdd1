//! Fuzzes `targets::files::settings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::files::settings(data));
