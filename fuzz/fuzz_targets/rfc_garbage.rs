#![no_main]

use bats_code::fuzzing::rfc::garbage_block_run;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    garbage_block_run(Kernel::active(), data);
});
