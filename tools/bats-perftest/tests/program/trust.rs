//! Trust on first use.

use crate::support::{Ended, Program, Scratch, domain, program, summary};

/// A subscriber whose identity is in this state directory.
fn subscriber(domain: &str, state: &str) -> Program {
    let mut command = program();
    command.env("XDG_STATE_HOME", state);
    let subscriber = Program::of(command, domain, "-sub -noPrint");
    subscriber.wait_for_errors("Waiting to discover");
    subscriber
}

fn publish(domain: &str, words: &str) -> Ended {
    Program::start(domain, &format!("-pub -noPrint -numIter 100 -peer 127.0.0.1 {words}")).end()
}

fn fingerprint(ended: &Ended) -> String {
    let line = ended.errors.lines().find_map(|line| line.strip_prefix("Certificate fingerprint: "));
    line.unwrap_or_else(|| panic!("{ended:?}")).to_owned()
}

#[test]
fn a_new_subscriber_is_recorded_and_a_changed_one_refused() {
    let scratch = Scratch::new("trust");
    let (domain, known) = (domain(), scratch.path("known"));
    let chosen = format!("-knownHosts {known}");
    let mut prints = Vec::new();
    for is_first in [true, false] {
        let subscriber = subscriber(&domain, &scratch.path("state"));
        let publisher = publish(&domain, &chosen);
        assert_eq!(publisher.code, Some(0), "{publisher:?}");
        assert_eq!(publisher.errors.contains("recorded the new subscriber"), is_first);
        let subscriber = subscriber.success();
        assert_eq!(summary(&subscriber.output)[1], 100.0);
        prints.push(fingerprint(&subscriber));
    }
    assert_eq!(prints[0], prints[1], "the identity survives a restart");
    let port = 7_400 + 250 * domain.parse::<u32>().unwrap() + 12;
    let line = format!("127.0.0.1:{port} sha256:{}\n", prints[0]);
    assert_eq!(std::fs::read_to_string(&known).unwrap(), line);

    // Another one at the same address.
    let other = subscriber(&domain, &scratch.path("other"));
    let refused = publish(&domain, &chosen);
    assert_eq!(refused.code, Some(255));
    for words in [&format!("127.0.0.1:{port} has changed"), &known, &prints[0], "remove line 1"] {
        assert!(refused.errors.contains(words), "{words}: {refused:?}");
    }
    let refused = publish(&domain, &format!("-fingerprint {}", prints[0]));
    assert_eq!(refused.code, Some(255));
    assert!(refused.errors.contains("handshake failed"), "{refused:?}");

    // It still waits, for a publisher that accepts it.
    let accepted = publish(&domain, "-noKnownHosts");
    assert_eq!(accepted.code, Some(0), "{accepted:?}");
    assert!(accepted.errors.contains("not authenticated"), "{accepted:?}");
    let print = fingerprint(&other.success());
    assert_ne!(print, prints[0]);
    let again = subscriber(&domain, &scratch.path("other"));
    let pinned = publish(&domain, &format!("-fingerprint {} -fingerprint {print}", prints[0]));
    assert_eq!(pinned.code, Some(0), "{pinned:?}");
    assert!(!pinned.errors.contains("handshake failed"), "{pinned:?}");
    again.success();
}

/// Anyone on the network can announce a subscriber, so that one does not end a test.
#[test]
fn an_announced_subscriber_with_a_changed_certificate_is_passed_over() {
    let scratch = Scratch::new("announced");
    let (domain, known) = (domain(), scratch.path("known"));
    let port = 7_400 + 250 * domain.parse::<u32>().unwrap() + 12;
    let line = format!("127.0.0.1:{port} sha256:{}\n", "00".repeat(32));
    std::fs::write(&known, line).unwrap();
    std::fs::set_permissions(&known, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let other = Program::start(&domain, "-sub -noPrint");
    let publisher =
        Program::start(&domain, &format!("-pub -noPrint -numIter 100 -knownHosts {known}"));
    publisher.wait_for_errors("has changed");
    let subscriber = Program::start(&domain, "-sub -noPrint -sidMultiSubTest 1");
    publisher.success();
    assert_eq!(summary(&subscriber.success().output)[1], 100.0);
    drop(other);
}
