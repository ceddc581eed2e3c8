#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_proto::fuzzing::acknowledgements_run(data);
});
