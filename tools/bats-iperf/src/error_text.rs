//! Formats an error and its causes.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::interrupt;

/// The interrupt was reported. It is the cause of every later error.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// The line that reports a failure on standard error. An interrupt is no error: it is reported once,
/// in iperf3's words; `None` for what follows from it.
pub(crate) fn failure(text: &str) -> Option<String> {
    match interrupt::requested() {
        false => Some(format!("bats_iperf: error - {text}")),
        true if REPORTED.swap(true, Ordering::AcqRel) => None,
        true => Some("bats_iperf: interrupt - the test was ended by a signal".to_owned()),
    }
}

/// The error and its causes, joined by colons. A cause that the preceding text already ends with is
/// not repeated.
pub(crate) fn join_causes(error: &anyhow::Error) -> String {
    join(error.chain())
}

fn join<'a>(chain: impl Iterator<Item = &'a (dyn Error + 'static)>) -> String {
    let mut text = String::new();
    for cause in chain.map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::{Context, anyhow};
    use openbats::StartError;

    #[test]
    fn repeated_causes_are_printed_once() {
        let source = io::Error::from_raw_os_error(98);
        let address = "127.0.0.1:5201".parse().unwrap();
        let text = source.to_string();
        let error: anyhow::Error = StartError::Bind { address, source }.into();
        let expected = format!("cannot use UDP address {address}: {text}");
        assert_eq!(super::join_causes(&error), expected);
        let error = Err::<(), _>(anyhow!("b")).context("a").unwrap_err();
        assert_eq!(super::join_causes(&error), "a: b");
    }
}
