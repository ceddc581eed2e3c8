//! Options of a client that sends files.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::headings::CLIENT;

/// Files that a client sends.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutgoingFileOptions {
    /// Send these files and directories. The server verifies each (BLAKE3) before it appears under
    /// its final name. Interrupted transfers resume. If FILE.sha256sum exists next to FILE, it is
    /// sent too and the content is checked against it.
    #[arg(short, long, value_name = "FILE", num_args = 1.., action = ArgAction::Append,
          conflicts_with = "bidir", help_heading = CLIENT)]
    pub(crate) files: Vec<PathBuf>,

    /// Compress files in transit with zstd (smaller) or lz4 (less CPU); zstd by default.
    #[arg(short = 'C', long, value_name = "METHOD", num_args = 0..=1, require_equals = true,
          default_missing_value = "zstd", value_parser = parse_compression,
          help_heading = CLIENT)]
    pub(crate) compress: Option<Compression>,
}

/// Compression of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Zstd,
    Lz4,
}

fn parse_compression(text: &str) -> Result<Compression, String> {
    match text.to_ascii_lowercase().as_str() {
        "zstd" => Ok(Compression::Zstd),
        "lz4" => Ok(Compression::Lz4),
        "density" => Err(format!("'{text}' is not available; use zstd or lz4")),
        _ => Err(format!("'{text}' is not a compression method; use zstd or lz4")),
    }
}
