#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_proto::fuzzing::channels_run(data);
});
