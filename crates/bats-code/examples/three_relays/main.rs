//! Sends a file through three recoding relays, over four links that lose 20 % of their packets each;
//! nothing is sent back but "decoded". Compares what arrives with the file, and writes it:
//! `cargo run --release -p bats-code --example three_relays [-- FILE [COPY]]`.
//!
//! Without FILE five million pseudo-random bytes are sent.

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
    println!("{} bytes arrived as they were sent", transfer.copy.len());
    Ok(())
}

fn percent(part: usize, all: usize) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}
