//! Replays the inputs of the fuzz targets that this crate keeps: seeds, and every input that once
//! failed.

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
fn honest_packets() {
    let mut decoded = 0;
    each_input("honest", |data| {
        for kernel in Kernel::available() {
            decoded += fuzzing::honest_run(kernel, data).decoded;
        }
    });
    assert!(decoded > 0);
}

#[test]
fn garbage() {
    each_input("garbage", fuzzing::garbage_run);
}

#[test]
fn rfc_blocks() {
    let mut complete = 0;
    each_input("rfc_block", |data| {
        for kernel in Kernel::available() {
            complete += usize::from(fuzzing::rfc::block_run(kernel, data).complete);
        }
    });
    assert!(complete > 0);
}

#[test]
fn rfc_recoder_chains() {
    let mut checked = 0;
    each_input("rfc_recoder", |data| {
        for kernel in Kernel::available() {
            checked += fuzzing::rfc::recoder_run(kernel, data);
        }
    });
    assert!(checked > 0);
}

#[test]
fn rfc_garbage() {
    each_input("rfc_garbage", |data| {
        fuzzing::rfc::garbage_block_run(Kernel::active(), data);
    });
}

#[test]
fn rfc_parameters() {
    let mut parsed = 0;
    each_input("rfc_parameters", |data| {
        parsed += usize::from(fuzzing::rfc::parameters_run(data));
    });
    assert!(parsed > 0);
}

/// Bytes of a seed: scripts that nobody chose.
fn scripted(seed: u32, len: usize) -> Vec<u8> {
    let mut random = TinyMt32::new(seed);
    (0..len).map(|_| (random.next_u32() >> 24) as u8).collect()
}

#[test]
fn rfc_scripts_from_seeds() {
    let kernel = Kernel::active();
    let (mut complete, mut checked, mut garbage, mut parsed) = (0, 0, 0, 0);
    for seed in 0..1500 {
        let data = scripted(seed, 20 + seed as usize % 700);
        complete += usize::from(fuzzing::rfc::block_run(kernel, &data).complete);
        checked += fuzzing::rfc::recoder_run(kernel, &data);
        garbage += usize::from(fuzzing::rfc::garbage_block_run(kernel, &data) == Some(true));
        parsed += usize::from(fuzzing::rfc::parameters_run(&data[..5]));
    }
    assert!(
        complete > 100 && checked > 1000 && garbage > 0 && parsed > 10,
        "{complete} {checked} {garbage} {parsed}"
    );
}
