use super::*;

fn publisher(line: &str) -> PublisherOptions {
    match parse_line(line).unwrap() {
        Command::Publish(options) => *options,
        other => panic!("{other:?}"),
    }
}

fn subscriber(line: &str) -> SubscriberOptions {
    match parse_line(line).unwrap() {
        Command::Subscribe(options) => *options,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(line: &str, words: &str) {
    let text = parse_line(line).unwrap_err().to_string();
    assert!(text.contains(words), "{line}: {text}");
}

#[test]
fn defaults_are_those_of_the_original() {
    let options = publisher("-pub");
    assert_eq!(options.common.data_length, 100);
    assert_eq!(options.common.domain, 1);
    assert_eq!(options.common.transport, Transport::Session(Mode::Brtp));
    assert_eq!((options.iterations, options.latency_count), (100_000_000, 10_000));
    assert_eq!(options.batching, Batching::On { bytes: 8_192, samples: 81 });
    assert_eq!((options.send_queue, options.initial_pings), (Some(50), 4_050));
    let options = publisher("-pub -latencyTest");
    assert_eq!((options.iterations, options.latency_count), (10_000_000, 1));
    assert_eq!(options.batching, Batching::Disabled("latency test"));
    assert_eq!(options.initial_pings, 50);
    assert_eq!(publisher("-pub -numIter 10").latency_count, 10);
    assert_eq!(subscriber("").common.peers_expected, 1);
    assert_eq!(subscriber("-sub -sidMultiSubTest 3").common.id, 3);
}

#[test]
fn a_ping_pong_needs_no_reports_of_taken_messages() {
    let limit = |line: &str| publisher(line).queue_limit();
    assert_eq!(limit("-pub"), Some(50));
    assert_eq!(limit("-pub -latencyTest"), None);
    assert_eq!(limit("-pub -latencyTest -latencyCount 2"), Some(50), "the others have no echo");
    assert_eq!(limit("-pub -latencyTest -numSubscribers 2"), Some(50), "one of them echoes");
}

#[test]
fn batching_follows_the_rules() {
    assert_eq!(publisher("-pub -batchSize 0").batching, Batching::Off);
    assert!(matches!(publisher("-pub -dataLen 4097").batching, Batching::Disabled(_)));
    assert_eq!(publisher("-pub -dataLen 4096").batching.samples(), 2);
    assert_eq!(publisher("-pub -pubRate 10:sleep").batching, Batching::Disabled("a rate is set"));
    assert_eq!(publisher("-pub -pubRate 10 -batchSize 400").batching.samples(), 4);
    assert_eq!(publisher("-pub -raw -peer 127.0.0.1").batching, Batching::Off);
    assert_eq!(publisher("-pub -raw -peer 127.0.0.1 -batch 1000").batching.samples(), 10);
}

#[test]
fn values_are_checked() {
    refused("-pub -dataLen 27", "out of range");
    refused("-pub -dataLen 2147482621", "out of range");
    refused("-pub -dataLen 2147482620", "at most 67108864");
    refused("-pub -raw -peer 127.0.0.1 -dataLen 65508", "at most 65507");
    refused("-pub -dataLen x", "whole number");
    refused("-pub -dataLen", "needs a value");
    refused("-pub -executionTime 0", "out of range");
    refused("-pub -numIter 5 -latencyCount 6", "greater than -numIter");
    refused("-pub -pubRate 10000001", "out of range");
    refused("-pub -pubRate 5:jump", "spin or sleep");
    refused("-pub -domain 251", "out of range");
    refused("-domain 250", "above 65535");
    refused("-pub -nonsense", "unknown option");
    refused("-pub word", "unexpected word");
    refused("-pub -sub", "exclude");
    refused("-raw", "needs -peer");
    refused("-multicast", "needs -rawTransport");
    refused("-raw -multicastAddr 10.0.0.1", "not an IPv4 multicast");
    refused("-nic nosuch0", "nosuch0");
    refused("-cft 1:2", "-cft needs -keyed");
    refused("-keyed -cft 3:2", "greater");
    refused("-pub -instances 4", "needs -keyed");
    refused("-pub -keyed -instances 4 -writeInstance 4", "out of range");
    refused("-pub -latencyTest -pid 1", "publisher 0");
    refused("-waitsetDelayUsec 5", "-useReadThread");
    refused("-outputFormat xml", "csv, json or legacy");
    refused("-pub -sendQueueSize 0", "out of range");
    refused("-pub -raw -peer 127.0.0.1 -sendQueueSize 9", "no acknowledgements");
}

#[test]
fn addresses_are_of_the_family_of_the_transport() {
    refused("-pub -peer ::1", "use -transport UDPv6");
    refused("-pub -peer 127.0.0.1 -transport UDPv6", "no IPv6 address");
    refused("-pub -peer fe80::1 -transport UDPv6", "link-local");
    refused("-pub -peer ::1 -transport UDPv6 -nic fe80::1", "link-local");
    refused("-pub -raw -transport UDPv6", "needs -peer");
    assert!(publisher("-pub -transport UDPv6").common.peers.is_empty());
    refused("-raw -transport UDPv6 -multicast", "IPv4 only");
    refused("-peer [127.0.0.1]junk", "follows the address");
    assert_eq!(publisher("-pub -peer ::1 -transport UDPv6").common.peers.len(), 1);
    assert!(subscriber("-sub -transport UDPv6").common.peers.is_empty());
    // The host name has both on most systems; if not, the reason names the family.
    match parse_line("-pub -peer localhost -transport UDPv6") {
        Ok(Command::Publish(options)) => assert!(options.common.peers[0].ip.is_ipv6()),
        other => assert!(other.unwrap_err().to_string().contains("no IPv6 address")),
    }
}

#[test]
fn the_last_interface_counts() {
    let nic = |line: &str| subscriber(line).common.nic.unwrap().to_string();
    assert_eq!(nic("-nic 10.0.0.1 -allowInterfaces 10.0.0.2"), "10.0.0.2");
    assert_eq!(nic("-allowInterfaces 10.0.0.2 -nic 10.0.0.1"), "10.0.0.1");
}

#[test]
fn ids_have_ports() {
    refused("-sidMultiSubTest 119", "a port of domain 2");
    refused("-pub -peer 127.0.0.1:119", "a port of domain 2");
    refused("-peer 127.0.0.1:8", "publishers 0 to 7");
    assert_eq!(subscriber("-sid 118 -peer 127.0.0.1:7").common.id, 118);
    assert_eq!(publisher("-pub -pid 500").common.id, 500);
}

#[test]
fn no_number_of_instances_and_pings_is_a_panic() {
    let pings = |line: &str| publisher(line).initial_pings;
    assert_eq!(pings("-pub -keyed -instances 200000000"), MAX_COUNT);
    assert_eq!(pings("-pub -keyed -instances 5000"), 5_000);
    assert_eq!(pings("-pub -batchSize 67108864 -dataLen 28 -sendQueueSize 100000000"), MAX_COUNT);
}

#[test]
fn options_are_no_values_and_help_always_works() {
    refused("-outputFile -noPrint", "'-noPrint' follows");
    assert_eq!(publisher("-pub -sendQueueSize -1").send_queue, None);
    for line in ["-pub -nonsense -help", "-h word", "-durability 1 -h"] {
        assert!(matches!(parse_line(line), Ok(Command::Print(_))), "{line}");
    }
}

#[test]
fn roles_and_transports_are_checked() {
    refused("-sub -latencyTest", "only for publishers");
    refused("-executionTime 5", "only for publishers");
    refused("-pub -numPublishers 2", "only for subscribers");
    refused("-transport SHMEM", "shared memory");
    refused("-transport pigeon", "unknown");
    refused("-bestEffort -transport tcp", "reliable");
    refused("-goal speed", "latency, balanced or throughput");
    refused("-transport tcp -goal latency", "brtp, btp and brctp");
    refused("-raw -peer 1.2.3.4 -goal latency", "brtp, btp and brctp");
    refused("-durability 1", "not supported");
    refused("-qosFile x.xml", "-sendQueueSize");
    refused("-SECURESIGN", "TLS 1.3");
    refused("-flatData", "not supported");
    assert_eq!(subscriber("").common.goal, Goal::Balanced);
    assert_eq!(subscriber("-goal Latency -bestEffort").common.goal, Goal::Latency);
    let mode = |line: &str| subscriber(line).common.transport;
    assert_eq!(mode("-bestEffort"), Transport::Session(Mode::Btp));
    assert_eq!(mode("-transport UDPV4"), Transport::Session(Mode::Brtp));
    assert_eq!(mode("-transport TLS"), Transport::Session(Mode::Tcp));
    assert_eq!(mode("-transport Quic"), Transport::Session(Mode::Quic));
    assert_eq!(mode("-raw -peer 1.2.3.4 -transport UDPv4"), Transport::Raw);
    assert!(subscriber("-transport UDPv6").common.ipv6);
}

#[test]
fn publishers_trust_on_first_use_by_default() {
    let trust = |line: &str| publisher(line).trust;
    assert_eq!(trust("-pub"), TrustOption::KnownHosts(None));
    assert_eq!(trust("-pub -knownHosts f"), TrustOption::KnownHosts(Some("f".into())));
    assert_eq!(trust("-pub -noKnown"), TrustOption::Any);
    let prints = ["00".repeat(32), "aa".repeat(32)];
    let line = format!("-pub -fingerprint {} -fingerprint {}", prints[0], prints[1]);
    assert_eq!(
        trust(&line),
        TrustOption::Fingerprints(prints.map(|print| print.parse().unwrap()).to_vec())
    );
    refused("-pub -fingerprint 12", "-fingerprint");
    refused("-pub -knownHosts f -noKnownHosts", "exclude each other");
    refused("-pub -raw -peer 127.0.0.1 -noKnownHosts", "no certificates");
    refused("-sub -noKnownHosts", "only for publishers");
}

#[test]
fn peers_have_addresses_and_ids() {
    let mut peers = subscriber("-peer 127.0.0.1 -peer 10.0.0.1:4").common.peers;
    peers.extend(subscriber("-transport UDPv6 -peer [::1]:2 -peer ::1").common.peers);
    let text: Vec<_> = peers.iter().map(|peer| (peer.ip.to_string(), peer.id)).collect();
    assert_eq!(text[0], ("127.0.0.1".into(), None));
    assert_eq!(text[1], ("10.0.0.1".into(), Some(4)));
    assert_eq!(text[2], ("::1".into(), Some(2)));
    assert_eq!(text[3], ("::1".into(), None));
}

#[test]
fn rates_in_bits_follow_from_the_sample_size() {
    let rate = publisher("-pub -dataLen 125 -pubRatebps 1000000:sleep").rate;
    assert_eq!(rate, Some((1_000.0, Pause::Sleep)));
    assert_eq!(publisher("-pub -pubRate 5").rate, Some((5.0, Pause::Spin)));
}

#[test]
fn help_lists_only_options_that_work() {
    let Command::Print(text) = parse_line("-h").unwrap() else { panic!("no help") };
    assert!(text.contains("-latencyTest (publisher)") && !text.contains("-qosFile"), "{text}");
}
