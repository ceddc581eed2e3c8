#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_code::fuzzing::rfc::check_parameters(data);
});
