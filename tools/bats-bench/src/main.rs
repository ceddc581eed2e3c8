//! Benchmarks the codes of OpenBATS, other erasure codes and a plain copy in one run on one core:
//! `cargo run --release [-- SCHEME...]`. README.md explains the columns.

mod block;
mod measure;
mod schemes;

use std::process::ExitCode;

use block::{Block, SYMBOL};
use measure::Figures;

/// Numbers of source symbols in a block.
const SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];
/// Loss rates in percent.
const LOSSES: [usize; 2] = [10, 30];

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = schemes::all(SIZES[0]).iter().map(|scheme| scheme.name()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        eprintln!("no scheme \"{unknown}\"; available: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    println!(
        "kernel {}; symbols of {SYMBOL} bytes; MB/s of source data, fastest round",
        bats_code::kernel::Kernel::active().name()
    );
    println!(
        "{:<20} {:>5} {:>6} {:>12} {:>12} {:>14}",
        "scheme", "K", "loss %", "encode MB/s", "decode MB/s", "extra symbols"
    );
    for count in SIZES {
        let block = Block::new(count);
        println!("{:<20} {:>5} {:>6} {:>12.0}", "memcpy", count, "-", measure::copy(&block));
        for loss in LOSSES {
            for mut scheme in schemes::all(count) {
                if !wanted.is_empty() && !wanted.iter().any(|name| name == scheme.name()) {
                    continue;
                }
                if wanted.is_empty() && count > scheme.largest() {
                    // Print a line: a missing row would suggest that the scheme fails here.
                    println!(
                        "{0:<20} {count:>5} {loss:>6}  SKIPPED above K = {1}; `-- {0}` runs it",
                        scheme.name(),
                        scheme.largest()
                    );
                    continue;
                }
                let Figures { encode, decode, extra } =
                    measure::measure(scheme.as_mut(), &block, loss);
                println!(
                    "{:<20} {count:>5} {loss:>6} {encode:>12.0} {decode:>12.0} {extra:>14.3}",
                    scheme.name()
                );
            }
        }
    }
    ExitCode::SUCCESS
}
