//! Text of a peer, made safe to print.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

/// Makes text of a peer safe to print.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(1_000).map(|char| if char.is_control() { '?' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_before_printing() {
        assert_eq!(printable("a\x1b[31m\n"), "a?[31m?");
        assert_eq!(printable(&"é".repeat(5_000)).chars().count(), 1_000);
    }
}
