#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_code::fuzzing::push_arbitrary_packets(data);
});
