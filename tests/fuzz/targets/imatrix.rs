//! Fuzzes `targets::files::imatrix`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::files::imatrix(data));
