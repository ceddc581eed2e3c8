#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_proto::fuzzing::misbehaving_client_run(data);
});
