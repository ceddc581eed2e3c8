//! `batslab serve`.

use anyhow::Result;

use crate::cli::ServeOptions;

pub(crate) fn run(_: &ServeOptions) -> Result<()> {
    anyhow::bail!("not yet")
}
