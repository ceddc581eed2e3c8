#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    bats_iperf::fuzzing::iperf_messages_run(data);
});
