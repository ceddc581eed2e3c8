//! Options of a server that receives files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use openbats::file::set::Reserve;

use super::headings::SERVER;
use crate::units::{parse_bytes, parse_reserve};

/// Where a server stores received files, and how much it accepts.
#[derive(Clone, Debug, Args)]
pub(crate) struct IncomingFileOptions {
    /// Accept files and store them in this directory. Without this option file transfers are
    /// denied.
    #[arg(long, value_name = "DIRECTORY", help_heading = SERVER)]
    pub(crate) directory: Option<PathBuf>,

    /// Also store files in subdirectories that exist before the transfer, for example to resume the
    /// interrupted transfer of a directory. Any client can then place files into any of them that
    /// belongs to the user of the server or to root.
    #[arg(long, requires = "directory", help_heading = SERVER)]
    pub(crate) merge: bool,

    /// Bytes of files that the server accepts until it ends, from all clients together. Each file
    /// and directory counts as 4096 bytes more than its size.
    #[arg(long, value_name = "BYTES", default_value = "100G", value_parser = parse_bytes,
          requires = "directory", help_heading = SERVER)]
    pub(crate) quota: u64,

    /// Bytes of files that the server accepts from one client address (IPv6: from one /64).
    #[arg(long, value_name = "BYTES", default_value = "20G", value_parser = parse_bytes,
          requires = "directory", help_heading = SERVER)]
    pub(crate) client_quota: u64,

    /// Space to leave free on the file system of --directory: bytes, or per cent of its size.
    #[arg(long, value_name = "BYTES", default_value = "5%", value_parser = parse_reserve,
          requires = "directory", help_heading = SERVER)]
    pub(crate) reserve: Reserve,

    /// What to do with a received file whose name exists with other content.
    #[arg(long, value_enum, default_value = "refuse", requires = "directory",
          help_heading = SERVER)]
    pub(crate) existing: Existing,

    /// Same as --existing overwrite.
    #[arg(long, conflicts_with = "existing", requires = "directory", help_heading = SERVER)]
    pub(crate) overwrite: bool,
}

/// What to do with a received file whose name exists with other content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Existing {
    /// Refuse it.
    Refuse,
    /// Replace the existing file.
    Overwrite,
    /// Store it under a free name: NAME.1 and so on.
    Rename,
}
