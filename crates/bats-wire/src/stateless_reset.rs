//! Stateless reset (RFC 9000, section 10.3): a server that has lost a connection ends it at the client.
//!
//! A reset looks like a packet with a short header: a first byte below 0x80, random bytes, and at its
//! end the 16 bytes of the token from the server's transport parameters.

use super::short_header::SHORT_OVERHEAD;

/// Bytes of a token.
pub const RESET_TOKEN_LEN: usize = 16;
/// Shortest reset: the shortest packet with a short header.
const MIN_RESET: usize = SHORT_OVERHEAD;
/// Longest reset. A longer one would only cost more (RFC 9000, section 10.3).
const MAX_RESET: usize = 42;

/// Length of the reset that answers a datagram of `received` bytes. It is shorter than the datagram, so
/// that no two endpoints answer each other without end (RFC 9000, section 10.3.3).
pub fn reset_len(received: usize) -> Option<usize> {
    let longest = received.checked_sub(1)?.min(MAX_RESET);
    (longest >= MIN_RESET).then_some(longest)
}

/// Turns random bytes into a reset with this token.
pub fn write_reset(random: &mut [u8], token: &[u8; RESET_TOKEN_LEN]) {
    if let Some(first) = random.first_mut() {
        *first &= 0x7f;
    }
    if let Some(end) = random.last_chunk_mut() {
        *end = *token;
    }
}

/// The token of a datagram, if it is a reset.
#[inline]
pub fn token_of(datagram: &[u8]) -> Option<&[u8; RESET_TOKEN_LEN]> {
    let may_be_reset =
        datagram.len() >= MIN_RESET && datagram.first().is_some_and(|byte| byte & 0x80 == 0);
    datagram.last_chunk().filter(|_| may_be_reset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_always_shorter_than_what_it_answers() {
        for received in 0..3_000 {
            match reset_len(received) {
                Some(len) => assert!((MIN_RESET..=MAX_RESET).contains(&len) && len < received),
                None => assert!(received <= MIN_RESET),
            }
        }
    }

    #[test]
    fn token_is_at_the_end_of_a_short_header_packet() {
        let mut reset = [0xff; 30];
        write_reset(&mut reset, &[7; 16]);
        assert_eq!(reset[0], 0x7f);
        assert_eq!(token_of(&reset), Some(&[7; 16]));
        assert_eq!(token_of(&reset[..24]), None, "too short");
        assert_eq!(token_of(&[]), None);
        reset[0] |= 0x80;
        assert_eq!(token_of(&reset), None, "a long header");
    }
}
