//! Logging of secrets, so that captures can be decrypted (draft-ietf-tls-keylogfile).

use std::fmt::Write;
use std::sync::Arc;

/// Label of the material of the Initial keys for packets of the client in PSK mode.
pub(super) const CLIENT_INITIAL: &str = "OPENBATS_CLIENT_INITIAL";
/// The same for packets of the server.
pub(super) const SERVER_INITIAL: &str = "OPENBATS_SERVER_INITIAL";

/// Receives the secrets of connections as lines of a key log file, without line breaks.
///
/// A line has a label, an identifier and a secret. Secrets of TLS have the labels and the identifier
/// of draft-ietf-tls-keylogfile. In PSK mode the Initial keys do not depend on secrets of TLS alone. Their
/// keying material has labels of this protocol. It is identified by the client's first destination connection
/// ID, or for packets of the server by their token (`docs/spec/keys.md`).
///
/// A reader of the log can decrypt the connections, so it is off unless configured.
#[derive(Clone)]
pub struct KeyLog(Arc<dyn Fn(&str) + Send + Sync>);

impl core::fmt::Debug for KeyLog {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("KeyLog")
    }
}

impl KeyLog {
    /// A log that passes each line to `write`.
    pub fn new(write: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    pub(super) fn write(&self, label: &str, identifier: &[u8], secret: &[u8]) {
        let mut line = String::with_capacity(label.len() + 2 * (identifier.len() + secret.len()));
        line.push_str(label);
        for bytes in [identifier, secret] {
            line.push(' ');
            for byte in bytes {
                // Writing to a string cannot fail.
                let _fits = write!(line, "{byte:02x}");
            }
        }
        (self.0)(&line);
    }
}

impl rustls::KeyLog for KeyLog {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        self.write(label, client_random, secret);
    }
}

/// The log that a TLS configuration of rustls takes.
pub(super) fn tls_key_log(log: Option<&KeyLog>) -> Arc<dyn rustls::KeyLog> {
    match log {
        Some(log) => Arc::new(log.clone()),
        None => Arc::new(rustls::NoKeyLog),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_line_has_label_identifier_and_secret_in_hexadecimal() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let log = KeyLog::new(move |line| kept.lock().unwrap().push(line.to_owned()));
        log.write("LABEL", &[0, 0xab], &[0x0f]);
        log.write(CLIENT_INITIAL, &[], &[]);
        let expected = ["LABEL 00ab 0f", "OPENBATS_CLIENT_INITIAL  "];
        assert_eq!(*lines.lock().unwrap(), expected);
        assert_eq!(format!("{log:?}"), "KeyLog");
    }
}
