//! Parsers of what programs and peers send: values, and bytes that are none.

use std::net::{IpAddr, SocketAddr};

use batsd::proxy::Parsed;
use batsd::proxy::allow::{AllowList, Rule};
use batsd::proxy::http_connect::{self, Refusal};
use batsd::proxy::request::{self, Reply, Request};
use batsd::proxy::socks5::{self, Command, Declared};
use batsd::proxy::target::{Target, decode_any};

fn target(text: &str) -> Target {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Every prefix of a message is incomplete, and the message with something after it takes its length.
fn check_prefixes<T: PartialEq + std::fmt::Debug, E: std::fmt::Debug>(
    bytes: &[u8],
    expected: &T,
    parse: impl Fn(&[u8]) -> Result<Parsed<T>, E>,
) {
    for length in 0..bytes.len() {
        assert!(matches!(parse(&bytes[..length]), Ok(Parsed::Incomplete)), "{length}");
    }
    let longer = [bytes, b"more"].concat();
    match parse(&longer).unwrap() {
        Parsed::Complete(value, used) => assert_eq!((&value, used), (expected, bytes.len())),
        Parsed::Incomplete => panic!("incomplete: {bytes:?}"),
    }
}

#[test]
fn messages_are_read_once_they_are_complete() {
    for text in ["192.0.2.1:80", "[2001:db8::1]:443", "example.org:53", "a-b_c.d:65535"] {
        let value = target(text);
        assert_eq!(value.to_string(), text);
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        check_prefixes(&bytes, &value, Target::decode);
        let tcp = Request::Tcp(value.clone());
        check_prefixes(&tcp.encode(), &tcp, Request::decode);
        let connect = [&[5, 1, 0][..], &bytes].concat();
        check_prefixes(&connect, &Command::Connect(value.clone()), socks5::command);
        let frame = request::encode_datagram(&value, b"payload").unwrap();
        check_prefixes(&frame, &(value.clone(), b"payload".to_vec()), request::decode_datagram);
        let datagram = socks5::encode_datagram(&value, b"payload");
        assert_eq!(socks5::datagram(&datagram), Some((value, &b"payload"[..])));
        let fragment = [&[0, 0, 1], &datagram[3..]].concat();
        assert_eq!(socks5::datagram(&fragment), None);
    }
    check_prefixes(&[5, 2, 0, 2], &vec![0, 2], socks5::greeting);
    let user = (b"alice".to_vec(), b"secret".to_vec());
    check_prefixes(b"\x01\x05alice\x06secret", &user, socks5::credentials);
    let any = [5, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    let free = Declared { ip: None, port: None };
    check_prefixes(&any, &Command::UdpAssociate(free), socks5::command);
    let head = b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: x\r\n\
                 proxy-authorization: basic YWxpY2U6c2VjcmV0\r\n\r\n";
    let connect =
        http_connect::Connect { target: target("[2001:db8::1]:443"), credentials: Some(user) };
    check_prefixes(head, &connect, http_connect::parse);
    // An IPv4-mapped address is the IPv4 address: rules for that one hold.
    assert_eq!(target("[::ffff:127.0.0.1]:80"), target("127.0.0.1:80"));
}

#[test]
fn udp_requests_declare_the_socket_of_the_client() {
    let declared = |address: &[u8]| match socks5::command(&[&[5, 3, 0], address].concat()) {
        Ok(Parsed::Complete(Command::UdpAssociate(declared), _)) => declared,
        other => panic!("{other:?}"),
    };
    let is = |declared: Declared, source: &str| declared.is(source.parse().unwrap());
    let free = declared(&[1, 192, 0, 2, 1, 0, 0]);
    assert!(is(free, "127.0.0.1:7") && is(free, "[::1]:8"));
    for of_port in [&[1, 0, 0, 0, 0, 0, 7][..], &[3, 1, b'a', 0, 7]] {
        let of_port = declared(of_port);
        assert!(is(of_port, "127.0.0.1:7") && !is(of_port, "127.0.0.1:8"));
    }
    let both = declared(&[1, 127, 0, 0, 1, 0, 7]);
    assert!(is(both, "127.0.0.1:7") && is(both, "[::ffff:127.0.0.1]:7"));
    assert!(!is(both, "127.0.0.2:7") && !is(both, "127.0.0.1:8"));
    assert!(both.has_ip([127, 0, 0, 1].into()) && !both.has_ip([127, 0, 0, 2].into()));
}

#[test]
fn what_is_no_request_gets_an_answer_that_says_why() {
    for text in ["a", "a:", ":80", "a:0", "a:65536", "a:+80", "a b:80", "::1:80", "[a]:80", "a/:1"]
    {
        assert!(text.parse::<Target>().is_err(), "{text}");
    }
    assert!(format!("{}:80", "a".repeat(254)).parse::<Target>().is_err());
    let bind = [5, 2, 0, 1, 1, 1, 1, 1, 0, 80];
    assert_eq!(socks5::command(&bind), Err(Reply::CommandUnsupported));
    let unix = [5, 1, 0, 9, 0];
    assert_eq!(socks5::command(&unix), Err(Reply::AddressUnsupported));
    assert_eq!(socks5::command(&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0]), Err(Reply::AddressUnsupported));
    assert_eq!(Request::decode(&[9]), Err(Reply::CommandUnsupported));
    let http = |text: &str| http_connect::parse(text.as_bytes()).unwrap_err();
    assert_eq!(http("GET http://a/ HTTP/1.1\r\n\r\n"), Refusal::Method);
    assert_eq!(http("CONNECT a HTTP/1.1\r\n\r\n"), Refusal::BadRequest);
    assert_eq!(http("CONNECT a:80\r\n\r\n"), Refusal::BadRequest);
    assert_eq!(http(&"x".repeat(9_000)), Refusal::TooLong);
    let text = http_connect::refuse(Refusal::Reply(Reply::NotAllowed));
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains("[exit] allow"), "{text}");
}

/// Random bytes, most of them near valid messages, so that they go deep.
#[test]
fn random_bytes_never_panic_and_what_they_give_encodes_to_itself() {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let starts: [&[u8]; 8] = [
        b"",
        b"\x05\x01\x00\x03",
        b"\x01\x03\x09",
        b"\x01\x05alice\x06",
        b"\x00\x20\x01",
        b"CONNECT a:80 HTTP/1.1\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nProxy-Authorization: Basic ",
        b"\x05\x03\x00\x04",
    ];
    let mut complete = 0;
    for _ in 0..50_000 {
        let mut bytes = starts[next() as usize % starts.len()].to_vec();
        let (length, is_text) = (next() % 300, next() % 2 == 0);
        bytes.extend((0..length).map(|_| match is_text {
            true => b"abcdefgh0123-_.:"[next() as usize % 16],
            false => next() as u8,
        }));
        if next() % 2 == 0 {
            bytes.extend(b"\r\n\r\n");
        }
        let _ = socks5::greeting(&bytes);
        let _ = socks5::credentials(&bytes);
        let _ = socks5::command(&bytes);
        let _ = socks5::datagram(&bytes);
        let _ = http_connect::parse(&bytes);
        let _ = request::decode_datagram(&bytes);
        let _ = String::from_utf8_lossy(&bytes).parse::<Target>();
        let _ = String::from_utf8_lossy(&bytes).parse::<Rule>();
        if let Ok(Parsed::Complete(value, used)) = decode_any(&bytes) {
            assert!(used <= bytes.len());
            let mut again = Vec::new();
            value.encode(&mut again);
            assert_eq!(decode_any(&again), Ok(Parsed::Complete(value, again.len())));
        }
        if let Ok(Parsed::Complete(request, _)) = Request::decode(&bytes) {
            complete += 1;
            let again = request.encode();
            assert_eq!(Request::decode(&again), Ok(Parsed::Complete(request, again.len())));
        }
    }
    assert!(complete > 1_000, "{complete}: the bytes do not go deep");
}

fn list(rules: &[&str]) -> AllowList {
    AllowList::new(rules.iter().map(|rule| rule.parse().unwrap()).collect())
}

#[test]
fn an_exit_permits_what_its_rules_name_and_nothing_else() {
    let permits = |rules: &[&str], to: &str, address: &str| {
        list(rules).permits(&target(to), address.parse::<IpAddr>().unwrap())
    };
    assert!(!permits(&[], "192.0.2.1:80", "192.0.2.1"));
    let networks = ["192.0.2.0/24:80-90", "[2001:db8::/32]:*"];
    assert!(permits(&networks, "192.0.2.1:90", "192.0.2.1"));
    assert!(permits(&networks, "name.example:80", "192.0.2.1"));
    assert!(permits(&networks, "[2001:db8::7]:1", "2001:db8::7"));
    assert!(!permits(&networks, "192.0.2.1:91", "192.0.2.1"));
    assert!(!permits(&networks, "192.0.3.1:80", "192.0.3.1"));
    let names = ["example.org:443", "*.example.net:443"];
    assert!(permits(&names, "EXAMPLE.org:443", "198.51.100.1"));
    assert!(permits(&names, "a.b.example.net:443", "198.51.100.1"));
    assert!(!permits(&names, "example.net:443", "198.51.100.1"));
    assert!(!permits(&names, "badexample.net:443", "198.51.100.1"));
    assert!(!permits(&names, "198.51.100.1:443", "198.51.100.1"));
    assert!(!list(&names).may_resolve(&target("other.org:443")));
    // The services of the exit itself, and the metadata service of clouds.
    for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
        assert!(!permits(&["*:*"], "example.org:443", address), "{address}");
        assert!(!permits(&["example.org:*"], "example.org:443", address), "{address}");
    }
    assert!(permits(&["127.0.0.1:80"], "localhost:80", "127.0.0.1"));
    for address in ["169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "255.255.255.255"] {
        let rules = ["*:*", "0.0.0.0/0:*", "[::/0]:*"];
        assert!(!permits(&rules, "example.org:80", address), "{address}");
    }
    for rule in ["", "a", "a:0", "a:9-8", "10.0.0.0/33:80", "::1:80", "[a]:80", "*.:80", "a b:80"] {
        assert!(rule.parse::<Rule>().is_err(), "{rule}");
    }
}

#[test]
fn replies_name_the_socket_for_datagrams() {
    let bound: SocketAddr = "127.0.0.1:5000".parse().unwrap();
    let bytes = socks5::reply(Reply::Succeeded, Some(bound));
    assert_eq!(bytes, [5, 0, 0, 1, 127, 0, 0, 1, 0x13, 0x88]);
    assert_eq!(socks5::reply(Reply::Refused, None), [5, 5, 0, 1, 0, 0, 0, 0, 0, 0]);
}
