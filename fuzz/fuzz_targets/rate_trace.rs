#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_netem::fuzzing::rate_trace_run(data);
});
