//! Limits of local clients: users have shares of the control socket, and root waits for none of them. Connections
//! without a request keep no program from a proxy.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use batsd::control;
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit};

use crate::node::{
    Daemon, LIMIT, free_tcp_port, free_udp_port, identity, node, pair, start, wait_for,
};
use crate::skip::skipped;

/// Clients of a user, and of all users that may not change the node.
const OF_USER: usize = 16;
const OF_ALL: usize = 64;
/// Users that are in the group of the socket only.
const USER: u32 = 61_000;
const OTHER: u32 = 61_100;

struct Test {
    _daemon: Daemon,
    _folder: tempfile::TempDir,
    socket: PathBuf,
}

impl Test {
    /// `None` without root, who alone can be another user.
    fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("clients of several users", "only root can connect as another user");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        identity(&folder.path().join("0.pem"));
        let daemon = start(folder.path(), 0, &node(folder.path(), 0, free_udp_port(), ""));
        let socket = folder.path().join("0.sock");
        Some(Self { _daemon: daemon, _folder: folder, socket })
    }

    /// Does something as a user of the socket's group.
    fn by<T: Send>(&self, user: u32, work: impl FnOnce(&Path) -> T + Send) -> T {
        let group = std::fs::metadata(&self.socket).unwrap().gid();
        std::thread::scope(|scope| {
            let work = move || {
                // These change the user of this thread only.
                let (group, user) = (Gid::from_raw(group), Uid::from_raw(user));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                work(&self.socket)
            };
            scope.spawn(work).join().unwrap()
        })
    }

    /// Connections of a user that have sent these bytes.
    fn connections(&self, user: u32, count: usize, bytes: &[u8]) -> Vec<UnixStream> {
        let connect = |socket: &Path| {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            // It may be refused already.
            let _ = stream.write_all(bytes);
            stream
        };
        self.by(user, |socket| (0..count).map(|_| connect(socket)).collect())
    }

    fn status(&self, user: u32) -> Result<(), String> {
        self.by(user, |socket| control::call(socket, "Status"))
            .map(drop)
            .map_err(|error| format!("{error:#}"))
    }
}

/// The connections that the daemon has neither answered nor closed.
fn waiting(connections: &[UnixStream]) -> usize {
    let is_waiting = |mut stream: &UnixStream| {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0; 1]);
        stream.set_nonblocking(false).unwrap();
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    connections.iter().filter(|stream| is_waiting(stream)).count()
}

/// The first answer, up to its zero byte.
fn answer(stream: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte)
        && byte != [0]
    {
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

const FOLLOW: &[u8] = b"{\"method\": \"org.openbats.node.Events\", \"more\": true}\0";

#[test]
fn silent_clients_of_a_user_keep_neither_root_nor_other_users_waiting() {
    let Some(test) = Test::start() else { return };
    for bytes in [&b""[..], b"{\"method\""] {
        let mut silent = test.connections(USER, 100, bytes);
        for user in [0, OTHER] {
            test.status(user).unwrap();
        }
        // The others have no places: the answers did not come because their time was over.
        assert!(waiting(&silent) <= OF_USER);
        // They do not keep their places.
        assert_eq!(silent.remove(0).read(&mut [0; 1]).unwrap_or(0), 0);
        drop(silent);
        wait_for("a place of the user", || test.status(USER).is_ok());
    }
}

#[test]
fn users_that_follow_events_get_their_share_and_root_gets_what_it_asks_for() {
    let Some(test) = Test::start() else { return };
    let mut followers = test.connections(USER, OF_USER, FOLLOW);
    for follower in &mut followers {
        let events = answer(follower);
        assert!(events.contains("\"continues\":true"), "{events}");
    }
    // A refusal may come before the call was sent.
    for _ in 0..100 {
        let error = test.status(USER).unwrap_err();
        assert!(error.contains("16 clients of user 61000"), "{error}");
    }
    test.status(OTHER).unwrap();
    for user in 1..4 {
        let mut more = test.connections(USER + user, OF_USER, FOLLOW);
        for follower in &mut more {
            assert!(answer(follower).contains("\"continues\":true"));
        }
        followers.append(&mut more);
    }
    assert_eq!(followers.len(), OF_ALL);
    let error = test.status(OTHER).unwrap_err();
    assert!(error.contains("64 clients"), "{error}");
    test.status(0).unwrap();
    let mut of_root = test.connections(0, OF_ALL, FOLLOW);
    for follower in &mut of_root {
        let events = answer(follower);
        assert!(events.contains("\"continues\":true"), "{events}");
    }
    // Root has a limit, too.
    let error = test.status(0).unwrap_err();
    assert!(error.contains("64 clients of user 0"), "{error}");
    drop((followers, of_root));
    for user in [0, USER, OTHER] {
        wait_for("places that are free again", || test.status(user).is_ok());
    }
}

#[test]
fn connections_without_a_request_keep_no_program_from_the_proxy() {
    let limits = getrlimit(Resource::Nofile);
    let enough = limits.maximum.unwrap_or(4_096).min(4_096);
    setrlimit(Resource::Nofile, Rlimit { current: Some(enough), ..limits }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, to) = (free_tcp_port(), far.local_addr().unwrap());
    let proxy = format!(
        "[[proxy]]\nlisten = \"127.0.0.1:{port}\"\nexit = \"10.255.0.2\"\nusers = {{ a = \"b\" }}\n"
    );
    let exit = format!("[exit]\nallow = [\"{to}\"]\n");
    let daemons = pair(folder.path(), [&proxy, &exit], ["", ""]);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let served = |user: &str| {
        let mut stream = connect();
        let head = format!(
            "CONNECT {to} HTTP/1.1\r\nProxy-Authorization: Basic {}\r\n\r\n",
            base64::Engine::encode(&base64::prelude::BASE64_STANDARD, user)
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        while !answer.ends_with("\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0].into());
        }
        (stream, answer.split(' ').nth(1).unwrap().to_owned())
    };
    for bytes in [&b""[..], b"CONN", &[5], &[5, 1, 2, 1, 1]] {
        let mut others: Vec<TcpStream> = (0..1_100).map(|_| connect()).collect();
        for stream in &mut others {
            // The oldest ones may be closed already.
            let _ = stream.write_all(bytes);
        }
        let (mut near, answer) = served("a:b");
        assert_eq!(answer, "200", "{bytes:?}");
        assert_eq!(served("a:c").1, "407");
        let (mut accepted, _) = far.accept().unwrap();
        // More connections do not close one that is served.
        let more: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
        accepted.write_all(b"data").unwrap();
        let mut text = [0; 4];
        near.read_exact(&mut text).unwrap();
        assert_eq!(text, *b"data");
        drop(more);
        let status = daemons[0].ctl("status").unwrap();
        assert_eq!(status["status"]["services"]["connections"]["open"], 1, "{status}");
        drop((near, accepted));
        wait_for("the end of the connection", || {
            daemons[0].ctl("channels").unwrap()["channels"].as_array().unwrap().is_empty()
        });
    }
}
