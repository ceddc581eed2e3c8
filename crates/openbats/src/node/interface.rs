//! Network interfaces by name, for links that use one of them only.

use std::num::NonZeroU32;

/// The longest name in bytes (`IFNAMSIZ` of Linux without the final zero).
const MAX_NAME: usize = 15;

/// Whether Linux allows this name (`dev_valid_name`), apart from bytes that are not UTF-8.
pub(super) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| !byte.is_ascii_whitespace() && !b"/:\0\x0b".contains(&byte);
    (1..=MAX_NAME).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(is_allowed)
}

/// The index of an interface now; an interface that is created again has another one.
///
/// # Errors
/// There is none of this name, in words.
#[cfg(target_os = "linux")]
pub(super) fn index(name: &str) -> Result<NonZeroU32, String> {
    use nix::errno::Errno;
    match nix::net::if_::if_nametoindex(name).map(NonZeroU32::new) {
        Ok(Some(index)) => Ok(index),
        Ok(None) | Err(Errno::ENODEV | Errno::ENXIO) => {
            Err(format!("there is no interface {name}"))
        }
        Err(error) => Err(format!("the interface {name} cannot be looked up: {error}")),
    }
}

/// As on Linux, but there is none on this system.
#[cfg(not(target_os = "linux"))]
pub(super) fn index(_: &str) -> Result<NonZeroU32, String> {
    Err("links cannot be bound to an interface on this system".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_linux_refuses_are_none() {
        for name in ["eth0", "br-lan.7@x", "0123456789abcde"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "a:1", "a\0", "a\x0b", "0123456789abcdef"] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn indexes_follow_the_system() {
        assert!(index("lo").is_ok());
        assert_eq!(index("bats-none"), Err("there is no interface bats-none".to_owned()));
    }
}
