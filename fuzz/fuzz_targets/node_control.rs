#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = batsd::fuzzing::node_control_run(data);
});
