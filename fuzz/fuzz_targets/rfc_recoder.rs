#![no_main]

use bats_code::fuzzing::rfc::check_recoder_chain;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check_recoder_chain(Kernel::active(), data);
});
