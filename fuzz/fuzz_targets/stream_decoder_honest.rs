#![no_main]

use bats_code::fuzzing::compare_with_reference;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    compare_with_reference(Kernel::active(), data);
});
