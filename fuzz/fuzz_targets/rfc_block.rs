#![no_main]

use bats_code::fuzzing::rfc::compare_block_with_reference;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    compare_block_with_reference(Kernel::active(), data);
});
