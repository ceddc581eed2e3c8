//! Sends a file through three recoding relays over four hops that lose 20 % of the packets each,
//! and verifies the copy: `cargo run --release -p bats-code --example file_over_relays [FILE]`. Without a
//! file it sends 2 MB of pseudo-random bytes.
//!
//! Every packet is a linear combination of the 16 columns of one batch. A relay knows neither the
//! file nor the window. It collects the packets of a batch, forwards them, and adds as many random
//! linear combinations as its plan gives for their rank. The only feedback is that the receiver
//! reports when a window of the file is complete.
#![allow(clippy::disallowed_macros, reason = "a program for the command line")]

mod transfer;

use std::error::Error;

use bats_code::BATCH_SIZE;
use transfer::{HOPS, LOSS, Random, transfer};

fn main() -> Result<(), Box<dyn Error>> {
    let mut random = Random(2026);
    let file = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => (0..2_000_000).map(|_| (random.draw() >> 24) as u8).collect(),
    };
    let transfer = transfer(&file, &mut random)?;
    if transfer.copy != file {
        return Err("the copy differs from the file".into());
    }
    println!("{} bytes in {} symbols arrived unchanged", file.len(), transfer.symbols);
    for (hop, sent) in (1..).zip(&transfer.sent) {
        println!("hop {hop}: {sent} packets sent, {:.0} % lost", LOSS * 100.0);
    }
    println!(
        "rank at the receiver: {:.2} of {BATCH_SIZE} per batch (planned {:.2}); efficiency {:.3} \
         over {HOPS} hops",
        transfer.rank,
        transfer.planned,
        transfer.symbols as f64 / (f64::from(transfer.sent[0]) * (1.0 - LOSS))
    );
    Ok(())
}
