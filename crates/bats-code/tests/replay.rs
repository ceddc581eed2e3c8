//! Replays the inputs of the fuzz targets that this crate keeps: seeds, and every input that once
//! failed.

use std::fs;
use std::path::Path;

use bats_code::fuzzing;
use bats_code::kernel::Kernel;

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
