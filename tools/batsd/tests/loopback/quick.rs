//! A proxy and its exit from two command lines, and unmodified programs through it: as an ordinary user if the
//! tests run as root.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::node::{free_tcp_port, free_udp_port, wait_for};
use crate::skip::skipped;

/// User ID without an account on most systems.
const USER: u32 = 65_534;

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Both ends of a proxy.
struct Proxied {
    socks: u16,
    folder: tempfile::TempDir,
    programs: [PathBuf; 2],
    _daemons: [Process; 2],
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a process one of an ordinary user.
fn as_user(command: &mut Command) -> &mut Command {
    match is_root() {
        true => command.uid(USER).gid(USER),
        false => command,
    }
}

fn batsd(program: &Path, home: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).env_clear().env("HOME", home).current_dir(home);
    as_user(&mut command).stdout(Stdio::piped());
    command
}

/// Starts a daemon; returns its fingerprint.
fn start(program: &Path, home: &Path, words: &[&str]) -> (Process, String) {
    let mut child = batsd(program, home, words).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || lines.next().and_then(Result::ok).unwrap_or_default();
    let first = next();
    assert_eq!(next(), "state: started", "the error of batsd is above");
    let print = first.strip_prefix("fingerprint: ").unwrap_or_else(|| panic!("{first}"));
    (Process(child), print.to_owned())
}

/// A proxy to these destinations, with a home for each end.
fn proxied(allow: &[String]) -> Proxied {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(folder.path(), 0o755);
    let homes = ["near", "far"].map(|name| folder.path().join(name));
    for home in &homes {
        std::fs::create_dir(home).unwrap();
        if is_root() {
            std::os::unix::fs::chown(home, Some(USER), Some(USER)).unwrap();
        }
    }
    // Folders of the build may be closed to the user.
    let programs = [env!("CARGO_BIN_EXE_batsd"), env!("CARGO_BIN_EXE_batsctl")].map(|program| {
        let copy = folder.path().join(Path::new(program).file_name().unwrap());
        std::fs::copy(program, &copy).unwrap();
        open(&copy, 0o755);
        copy
    });
    let (port, socks) = (free_udp_port(), free_tcp_port());
    let listen = format!("127.0.0.1:{port}");
    // Without a client it says how to name one, and its own fingerprint, which the client needs.
    let output = batsd(&programs[0], &homes[1], &["--listen", &listen, "--allow", "*:1"]);
    let output = { output }.stderr(Stdio::piped()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("--listen needs the --fingerprint of each client"), "{error}");
    let far = error.split("sha256:").nth(1).map(|rest| &rest[..64]).unwrap().to_owned();
    let address = format!("127.0.0.1:{socks}");
    let words = ["--socks", &address, "--peer", &listen, "--fingerprint", &far];
    let (near, print) = start(&programs[0], &homes[0], &words);
    let mut words = vec!["--listen", &listen, "--fingerprint", &print];
    for rule in allow {
        words.extend(["--allow", rule]);
    }
    let (far, _) = start(&programs[0], &homes[1], &words);
    Proxied { socks, folder, programs, _daemons: [near, far] }
}

impl Proxied {
    fn proxy(&self) -> String {
        format!("socks5h://127.0.0.1:{}", self.socks)
    }

    /// Runs a program as the user, with a home of its own.
    fn run(&self, command: &mut Command) -> Output {
        let home = self.folder.path().join("near");
        command.env("HOME", &home).current_dir(&home);
        as_user(command).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }
}

fn has(programs: &[&str]) -> bool {
    let lacks = |program: &&&str| {
        let mut command = Command::new("sh");
        let path = "PATH=$PATH:/usr/sbin";
        let output = command.args(["-c", &format!("{path} command -v {program}")]).output();
        !output.unwrap().status.success()
    };
    let lacking = programs.iter().find(lacks);
    if let Some(program) = lacking {
        skipped("programs over the proxy", &format!("{program} is not installed"));
    }
    lacking.is_none()
}

/// A web server of a folder; returns its port.
fn web(folder: &Path) -> (Process, u16) {
    let port = free_tcp_port();
    let mut command = Command::new("python3");
    command.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1", "--directory"]);
    command.arg(folder).stdout(Stdio::null()).stderr(Stdio::null());
    let server = Process(command.spawn().unwrap());
    wait_for("the web server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    (server, port)
}

#[test]
fn options_that_would_be_ignored_are_errors() {
    for words in [
        "--fingerprint 00",
        "--identity /nonexistent/node.pem",
        "--control /nonexistent/control",
        "--config /nonexistent/batsd.toml --socks 127.0.0.1:1 --peer 127.0.0.1:2",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_batsd")).args(words.split(' ')).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}: {output:?}");
    }
}

#[test]
fn curl_goes_through_two_command_lines() {
    if !has(&["curl", "python3"]) {
        return;
    }
    let site = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..2_000_000u32).map(|x| ((x * 31) >> 3) as u8).collect();
    std::fs::write(site.path().join("page"), &content).unwrap();
    let (_server, port) = web(site.path());
    let test = proxied(&[format!("127.0.0.1:{port}")]);
    let curl = |url: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "60", "--proxy", &test.proxy(), url]);
        test.run(&mut command)
    };
    let output = curl(&format!("http://localhost:{port}/page"));
    assert!(output.stdout == content, "{}", String::from_utf8_lossy(&output.stderr));
    // The exit connects to nothing else.
    let output = curl("http://127.0.0.1:1/");
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("(2)"), "{output:?}");
    // batsctl reaches the daemon at the socket in the user's folder.
    let mut command = Command::new(&test.programs[1]);
    command.arg("--socket").arg(test.folder.path().join("near/.config/bats/control"));
    let output = test.run(command.args(["--json", "peers"]));
    let peers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(peers["peers"][0]["stream"], "open", "{peers}");
}

#[test]
fn udp_associations_serve_the_declared_socket_only() {
    let echo = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = echo.local_addr().unwrap().port();
    let test = proxied(&[format!("127.0.0.1:{port}")]);
    let associate = |address: [u8; 4], port: u16| {
        let mut stream = TcpStream::connect(("127.0.0.1", test.socks)).unwrap();
        let request = [&[5, 1, 0, 5, 3, 0, 1][..], &address, &port.to_be_bytes()].concat();
        stream.write_all(&request).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        (stream, answer[3], u16::from_be_bytes([answer[10], answer[11]]))
    };
    let socket = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket
    };
    let datagram =
        |payload: &[u8]| [&[0, 0, 0, 1, 127, 0, 0, 1][..], &port.to_be_bytes(), payload].concat();
    let (other, client) = (socket(), socket());
    let own = client.local_addr().unwrap().port();
    for address in [[0; 4], [127, 0, 0, 1]] {
        let (_stream, reply, relay) = associate(address, own);
        assert_eq!(reply, 0);
        // Another program of the host is first.
        other.send_to(&datagram(b"other"), ("127.0.0.1", relay)).unwrap();
        let mut buffer = [0; 100];
        wait_for("the datagram of the client", || {
            client.send_to(&datagram(b"client"), ("127.0.0.1", relay)).unwrap();
            echo.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            let Ok((length, from)) = echo.recv_from(&mut buffer) else { return false };
            assert_eq!(&buffer[..length], b"client");
            echo.send_to(b"answer", from).unwrap();
            client.recv(&mut buffer).is_ok_and(|length| buffer[..length].ends_with(b"answer"))
        });
        assert!(other.recv(&mut buffer).is_err());
        // Nothing late for the next association.
        while echo.recv(&mut buffer).is_ok() {}
    }
    // From no socket of this address could datagrams come.
    let (_stream, reply, _) = associate([192, 0, 2, 1], own);
    assert_eq!(reply, 2);
    // Without a port the first source is the client.
    let (_stream, reply, relay) = associate([192, 0, 2, 1], 0);
    assert_eq!(reply, 0);
    let mut buffer = [0; 100];
    wait_for("the first datagram", || {
        other.send_to(&datagram(b"first"), ("127.0.0.1", relay)).unwrap();
        echo.recv(&mut buffer).is_ok()
    });
}

#[test]
fn git_clones_through_the_proxy() {
    if !has(&["git", "python3"]) {
        return;
    }
    let site = tempfile::tempdir().unwrap();
    let git = |words: &str| {
        let mut command = Command::new("git");
        command.current_dir(site.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
        let output = command.args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "git {words}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git("init -q source");
    std::fs::write(site.path().join("source/file"), "content").unwrap();
    git("-C source add file");
    git("-C source commit -q -m first");
    git("clone -q --bare source repository.git");
    git("-C repository.git update-server-info");
    let (_server, port) = web(site.path());
    let test = proxied(&[format!("127.0.0.1:{port}")]);
    let mut command = Command::new("git");
    command.args(["-c", &format!("http.proxy={}", test.proxy()), "clone", "-q"]);
    command.arg(format!("http://127.0.0.1:{port}/repository.git"));
    let output = test.run(&mut command);
    assert!(output.status.success(), "{output:?}");
    let cloned = std::fs::read_to_string(test.folder.path().join("near/repository/file"));
    assert_eq!(cloned.unwrap(), "content");
}

/// What `ssh` runs in place of a connection: SOCKS5 by HTTP CONNECT's port.
const CONNECT: &str = "\
import os, socket, sys, threading
proxy, host, port = int(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
s = socket.create_connection(('127.0.0.1', proxy))
s.sendall(b'\\x05\\x01\\x00' + b'\\x05\\x01\\x00\\x03' + bytes([len(host)]) + host + port.to_bytes(2, 'big'))
answer = b''
while len(answer) < 12:
    part = s.recv(12 - len(answer))
    if not part: sys.exit('the proxy ended')
    answer += part
if answer[3]: sys.exit('reply %d' % answer[3])
def up():
    while data := os.read(0, 65536): s.sendall(data)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536): os.write(1, data)
";

#[test]
fn ssh_runs_commands_through_the_proxy() {
    if !has(&["ssh", "sshd", "ssh-keygen", "python3", "unshare"]) {
        return;
    }
    if !is_root() {
        return skipped("SSH over the proxy", "sshd needs root, for its folder in /run");
    }
    let keys = tempfile::tempdir().unwrap();
    let port = free_tcp_port();
    let test = proxied(&[format!("127.0.0.1:{port}")]);
    let own = test.folder.path().join("near/key");
    for key in [keys.path().join("host"), own.clone()] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key);
        assert!(command.status().unwrap().success());
    }
    std::os::unix::fs::chown(&own, Some(USER), Some(USER)).unwrap();
    std::fs::copy(own.with_extension("pub"), keys.path().join("authorized")).unwrap();
    let connect = test.folder.path().join("connect.py");
    std::fs::write(&connect, CONNECT).unwrap();
    let folder = keys.path().display();
    // A /run of its own: sshd needs a folder there.
    let script = format!(
        "mount -t tmpfs none /run && mkdir /run/sshd && exec /usr/sbin/sshd -D -e -f /dev/null -p {port} \
         -h {folder}/host -o ListenAddress=127.0.0.1 -o PidFile=none -o UsePAM=no -o StrictModes=no \
         -o PermitRootLogin=yes -o AuthorizedKeysFile={folder}/authorized"
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]).stderr(Stdio::null());
    let _sshd = Process(command.spawn().unwrap());
    wait_for("sshd", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut command = Command::new("ssh");
    let proxy = format!("ProxyCommand=python3 {} {} %h %p", connect.display(), test.socks);
    command.args(["-F", "/dev/null", "-p", &port.to_string(), "-o", &proxy, "-o", "BatchMode=yes"]);
    command.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i"]);
    command.arg(&own).args(["root@127.0.0.1", "cat; echo there"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("HOME", test.folder.path().join("near"));
    let mut child = as_user(&mut command).spawn().unwrap();
    let text = "0123456789abcde\n".repeat(20_000);
    let mut input = child.stdin.take().unwrap();
    let written = text.clone();
    let writer = std::thread::spawn(move || input.write_all(written.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.stdout == (text + "there\n").as_bytes(),
        "{} bytes, {error}",
        output.stdout.len()
    );
}

#[test]
fn a_browser_shows_a_page_through_the_proxy() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let Some(browser) = names
        .into_iter()
        .find(|name| Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok())
    else {
        return skipped("a browser over the proxy", "no browser (Debian: chromium)");
    };
    if !has(&["python3", "timeout"]) {
        return;
    }
    let site = tempfile::tempdir().unwrap();
    let page = "<body><p id=p></p><script>fetch('part').then(r => r.text()).then(t => {\
                document.getElementById('p').textContent = 'got ' + t})</script>";
    std::fs::write(site.path().join("page.html"), page).unwrap();
    std::fs::write(site.path().join("part"), "it through the proxy").unwrap();
    let (_server, port) = web(site.path());
    let test = proxied(&[format!("127.0.0.1:{port}")]);
    let mut command = Command::new("timeout");
    command.args(["90", browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]);
    command.args(["--disable-dev-shm-usage", "--proxy-bypass-list=<-loopback>", "--dump-dom"]);
    command.arg(format!("--proxy-server=socks5://127.0.0.1:{}", test.socks));
    command.arg(format!("--user-data-dir={}/near/profile", test.folder.path().display()));
    command.args(["--virtual-time-budget=10000", &format!("http://127.0.0.1:{port}/page.html")]);
    let output = test.run(&mut command);
    let dom = String::from_utf8_lossy(&output.stdout);
    assert!(dom.contains("got it through the proxy"), "{dom} {:?}", output.stderr.len());
}
