#![no_main]

use bats_code::fuzzing::honest_run;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    honest_run(Kernel::active(), data);
});
