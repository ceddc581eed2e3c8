//! Reports of tests that cannot run on this machine.

use std::io::Write;

/// Reports that a test is skipped, and why. Where nothing may be skipped (`OPENBATS_NO_SKIP=1`, as in CI), it fails.
pub(crate) fn skipped(test: &str, why: &str) {
    let is_forbidden = std::env::var_os("OPENBATS_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!is_forbidden, "OPENBATS_NO_SKIP=1, but {test} cannot run: {why}");
    // Not with a print macro, whose output is captured for tests that pass.
    let line = format!("\nSKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
