//! Sends a file in blocks of RFC 9426 through three recoding relays, over four links that lose 20 %
//! of their packets each. The only feedback is that a block is decoded. Compares the received file
//! with the original and writes it to COPY: `cargo run --release -p bats-code --example
//! three_relays [-- FILE [COPY]]`.
//!
//! Without FILE it sends five million pseudo-random bytes.

mod transfer;

use std::error::Error;
use std::fs;

use bats_code::rfc::TinyMt32;
use transfer::transfer;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let data = match arguments.next() {
        Some(path) => fs::read(path)?,
        None => {
            let mut random = TinyMt32::new(1);
            (0..5_000_000).map(|_| random.next_u32() as u8).collect()
        }
    };
    let transfer = transfer(&data)?;
    for (number, &(sent, lost)) in transfer.links.iter().enumerate() {
        println!("link {number}: {sent} packets, {:.1} % lost", percent(lost, sent));
    }
    println!("{} source packets, {} packets arrived", transfer.needed, transfer.received);
    if transfer.copy != data {
        return Err("the copy differs from the file".into());
    }
    if let Some(path) = arguments.next() {
        fs::write(&path, &transfer.copy)?;
        println!("written to {path}");
    }
    println!("{} bytes arrived unchanged", transfer.copy.len());
    Ok(())
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}
