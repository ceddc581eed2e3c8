#![no_main]

use bats_code::fuzzing::rfc::push_arbitrary_block_packets;
use bats_code::kernel::Kernel;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    push_arbitrary_block_packets(Kernel::active(), data);
});
