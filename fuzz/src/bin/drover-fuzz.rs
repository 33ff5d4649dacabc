//! x
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| { drover_fuzz::t(data) });
