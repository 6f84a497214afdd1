//! Fuzzes `targets::files::kl_base`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bilayer_fuzz::targets::files::kl_base(data));
