//! Sends a file through three recoding relays over four lossy hops, each of which loses 20 % of the
//! packets, and verifies what arrives: `cargo run --release -p bats-code --example relays [FILE]`
//! (without a file: two megabytes of noise).
//!
//! Every packet is a combination of one batch of 16 columns. A relay knows neither file nor window:
//! it collects the packets of a batch, sends those, and then as many random combinations as its
//! plan says for their rank. Nobody reports anything but the receiver, and that only says when a
//! window of the file is complete.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

mod transfer;

use std::error::Error;

use bats_code::BATCH_SIZE;
use transfer::{HOPS, LOSS, Noise, transfer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut noise = Noise(2026);
    let file = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => (0..2_000_000).map(|_| (noise.draw() >> 24) as u8).collect(),
    };
    let transfer = transfer(&file, &mut noise)?;
    if transfer.copy != file {
        return Err("what arrived is not the file".into());
    }
    println!("{} bytes in {} symbols arrived and are right", file.len(), transfer.symbols);
    for (hop, sent) in (1..).zip(&transfer.sent) {
        println!("hop {hop}: {sent} packets sent, {:.0} % lost", LOSS * 100.0);
    }
    println!(
        "rank at the receiver: {:.2} of {BATCH_SIZE} a batch (planned {:.2}); {:.3} of what {HOPS} hops \
         let through",
        transfer.rank,
        transfer.planned,
        transfer.symbols as f64 / (f64::from(transfer.sent[0]) * (1.0 - LOSS))
    );
    Ok(())
}
