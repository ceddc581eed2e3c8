//! One sentence of an error and its causes.

use std::error::Error;

/// The error and its causes, joined by colons; a cause that the text before names already is not said
/// twice.
pub(crate) fn of(error: &anyhow::Error) -> String {
    joined(error.chain())
}

fn joined<'a>(chain: impl Iterator<Item = &'a (dyn Error + 'static)>) -> String {
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
    fn no_cause_is_said_twice() {
        let source = io::Error::from_raw_os_error(98);
        let address = "127.0.0.1:5201".parse().unwrap();
        let text = source.to_string();
        let error: anyhow::Error = StartError::Bind { address, source }.into();
        let expected = format!("cannot use UDP address {address}: {text}");
        assert_eq!(super::of(&error), expected);
        let error = Err::<(), _>(anyhow!("b")).context("a").unwrap_err();
        assert_eq!(super::of(&error), "a: b");
    }
}
