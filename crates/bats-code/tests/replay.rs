//! Replays the stored inputs of the fuzz targets: seeds, and every input that once failed.

use std::fs;
use std::path::Path;

use bats_code::fuzzing;
use bats_code::kernel::Kernel;
use bats_code::rfc::TinyMt32;

fn each_input(name: &str, mut run: impl FnMut(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name);
    let mut count = 0;
    for entry in fs::read_dir(&directory).expect("corpus directory") {
        run(&fs::read(entry.expect("entry").path()).expect("input"));
        count += 1;
    }
    assert!(count > 0, "no inputs in {}", directory.display());
}

#[test]
fn decoder_matches_reference() {
    let mut decoded = 0;
    each_input("stream_decoder_honest", |data| {
        for kernel in Kernel::available() {
            decoded += fuzzing::compare_with_reference(kernel, data).decoded;
        }
    });
    assert!(decoded > 0);
}

#[test]
fn arbitrary_packets_stay_within_limits() {
    each_input("stream_decoder_garbage", fuzzing::push_arbitrary_packets);
}

#[test]
fn rfc_decoder_matches_reference() {
    let mut complete = 0;
    each_input("rfc_block", |data| {
        for kernel in Kernel::available() {
            complete +=
                usize::from(fuzzing::rfc::compare_block_with_reference(kernel, data).complete);
        }
    });
    assert!(complete > 0);
}

#[test]
fn rfc_recoder_chains_match_reference() {
    let mut checked = 0;
    each_input("rfc_recoder", |data| {
        for kernel in Kernel::available() {
            checked += fuzzing::rfc::check_recoder_chain(kernel, data);
        }
    });
    assert!(checked > 0);
}

#[test]
fn arbitrary_rfc_packets_stay_within_limits() {
    each_input("rfc_garbage", |data| {
        fuzzing::rfc::push_arbitrary_block_packets(Kernel::active(), data);
    });
}

#[test]
fn rfc_parameters_survive_a_round_trip() {
    let mut parsed = 0;
    each_input("rfc_parameters", |data| {
        parsed += usize::from(fuzzing::rfc::check_parameters(data));
    });
    assert!(parsed > 0);
}

/// A pseudo-random script.
fn scripted(seed: u32, len: usize) -> Vec<u8> {
    let mut random = TinyMt32::new(seed);
    (0..len).map(|_| (random.next_u32() >> 24) as u8).collect()
}

#[test]
fn pseudo_random_rfc_scripts_match_reference() {
    let kernel = Kernel::active();
    let (mut complete, mut checked, mut garbage, mut parsed) = (0, 0, 0, 0);
    for seed in 0..1500 {
        let data = scripted(seed, 20 + seed as usize % 700);
        complete += usize::from(fuzzing::rfc::compare_block_with_reference(kernel, &data).complete);
        checked += fuzzing::rfc::check_recoder_chain(kernel, &data);
        garbage +=
            usize::from(fuzzing::rfc::push_arbitrary_block_packets(kernel, &data) == Some(true));
        parsed += usize::from(fuzzing::rfc::check_parameters(&data[..5]));
    }
    assert!(
        complete > 100 && checked > 1000 && garbage > 0 && parsed > 10,
        "{complete} {checked} {garbage} {parsed}"
    );
}
