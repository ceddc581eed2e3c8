//! Part of a fuzz target of `bats-iperf`. Not part of the API.

use std::path::{Component, Path};

use bytes::Bytes;

use super::message::Message;
use super::name;
use super::set::directories;
use super::set::message::{Message as SetMessage, Offer};

/// What the bytes are.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileReport {
    /// Valid messages.
    pub messages: u32,
    /// Offered names that the receiver accepts.
    pub accepted_names: u32,
    /// Offered names that it refuses.
    pub refused_names: u32,
}

/// Parses `data` as a message of a file transfer and as one of a transfer of many files. What parses is encoded and
/// parses to the same; an accepted name stays in the receiver's directory.
///
/// # Panics
/// A property is violated.
#[must_use]
pub fn file_messages_run(data: &[u8]) -> FileReport {
    let mut report = FileReport::default();
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(message) = Message::decode(bytes.clone()) {
        report.messages += 1;
        let again = Message::decode(message.encode());
        assert!(again.is_ok_and(|again| again == message), "{message:?}");
        if let Message::Begin { name, .. } = &message {
            report.count(name, name::check(name).is_ok(), 1);
        }
    }
    if let Ok((id, message)) = SetMessage::decode(bytes) {
        report.messages += 1;
        let again = SetMessage::decode(message.encode(id));
        assert!(again.is_ok_and(|again| again == (id, message.clone())), "{message:?}");
        if let SetMessage::Offer(Offer { name, .. }) = &message {
            report.count(name, directories::check(name).is_ok(), 64);
        }
    }
    report
}

impl FileReport {
    fn count(&mut self, name: &str, is_accepted: bool, max_depth: usize) {
        if !is_accepted {
            self.refused_names += 1;
            return;
        }
        self.accepted_names += 1;
        let components: Vec<Component<'_>> = Path::new(name).components().collect();
        let is_plain = |component: &Component<'_>| matches!(component, Component::Normal(_));
        assert!((1..=max_depth).contains(&components.len()), "{name:?}");
        assert!(components.iter().all(is_plain), "{name:?}");
        assert!(!name.chars().any(char::is_control), "{name:?}");
    }
}
