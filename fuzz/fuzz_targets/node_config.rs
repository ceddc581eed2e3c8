#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = batsd::fuzzing::node_config_run(data);
});
