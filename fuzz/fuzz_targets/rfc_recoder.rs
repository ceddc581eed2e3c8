#![no_main]

use bats_code::fuzzing::rfc::recoder_run;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    recoder_run(Kernel::active(), data);
});
