#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_lab::fuzzing::scenario_run(data);
});
