#![no_main]

use bats_code::fuzzing::rfc::block_run;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    block_run(Kernel::active(), data);
});
