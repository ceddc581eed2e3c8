//! The backend ssh with real servers: two hosts of a lab with an sshd each, controlled from the
//! router between them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::support::{
    Case, allowed, batslab, figure, lock_machine, measurement, skipped, stderr_of, stdout_of,
};

/// The SSH server of the testbed's hosts.
const SSHD: &str = "/usr/sbin/sshd";

/// A lab `a` - `r1` - `b`, 5 ms one-way delay per hop, with SSH servers on `a` and `b`.
struct Testbed {
    lab: String,
    folder: tempfile::TempDir,
    servers: Vec<Child>,
}

impl Testbed {
    /// Returns `None` if this machine does not support it, and reports the test as skipped.
    fn start(test: &str) -> Option<Self> {
        if !allowed(test) {
            return None;
        }
        let is_root = fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0);
        let is_installed = |name: &str| Command::new(name).arg("-V").output().is_ok();
        if !is_root || !Path::new(SSHD).exists() || !is_installed("ssh") {
            skipped(test, "needs root, sshd and ssh (Debian: openssh-server, openssh-client)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        static LABS: AtomicU32 = AtomicU32::new(0);
        let lab = format!("ssh-{}-{}", std::process::id(), LABS.fetch_add(1, Ordering::Relaxed));
        let options = ["--hops", "2", "--rate", "50M", "--delay", "5ms", "--loss", "0"];
        let up = batslab().args(["up", "--name", &lab]).args(options).output().unwrap();
        assert!(up.status.success(), "{}", stderr_of(&up));
        let mut testbed = Self { lab, folder, servers: Vec::new() };
        for name in ["host", "user", "unauthorized"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(testbed.path(name))
                .status();
            assert!(made.unwrap().success());
        }
        let config = "Host *\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n \
                      IdentitiesOnly yes\n LogLevel ERROR\n";
        fs::write(testbed.path("ssh_config"), config).unwrap();
        // Privilege separation of sshd needs this directory.
        fs::create_dir_all("/run/sshd").unwrap();
        let own = Path::new(env!("CARGO_BIN_EXE_batslab")).parent().unwrap().display().to_string();
        let (path, temporary_folder) = (format!("{own}:/usr/bin:/bin"), testbed.path("tmp"));
        fs::create_dir(&temporary_folder).unwrap();
        testbed.serve("a", 2222, &path, &temporary_folder);
        testbed.serve("b", 2222, &path, &temporary_folder);
        // A server on which `batslab` is not in the path.
        testbed.serve("b", 2223, "/usr/bin:/bin", &temporary_folder);
        // A server with a wrong clock.
        let wrong = testbed.path("wrong");
        fs::create_dir(&wrong).unwrap();
        fs::write(wrong.join("date"), "#!/bin/sh\nexec /bin/date -d '+100 seconds' \"$@\"\n")
            .unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(wrong.join("date"), executable).unwrap();
        testbed.serve("b", 2224, &format!("{}:{path}", wrong.display()), &temporary_folder);
        // A server whose temporary directory does not exist.
        testbed.serve("b", 2225, &path, Path::new("/no/such/folder"));
        Some(testbed)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn on(&self, host: &str) -> Command {
        let mut command = batslab();
        command.args(["exec", "--name", &self.lab, host, "--"]);
        command
    }

    fn serve(&mut self, host: &str, port: u16, path: &str, temporary: &Path) {
        let config = self.path(&format!("sshd_{host}_{port}"));
        let text = format!(
            "Port {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
             StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nSetEnv PATH={path} TMPDIR={}\n",
            self.path("host").display(),
            self.path("user.pub").display(),
            temporary.display()
        );
        fs::write(&config, text).unwrap();
        let mut server = self.on(host);
        server.args([SSHD, "-D", "-e", "-f"]).arg(&config);
        let log = fs::File::create(config.with_extension("log")).unwrap();
        let mut server = server.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let listens = || {
            let log = fs::read_to_string(config.with_extension("log")).unwrap_or_default();
            log.contains("Server listening")
        };
        while !listens() {
            assert!(
                Instant::now() < deadline && server.try_wait().unwrap().is_none(),
                "sshd did not start"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        self.servers.push(server);
    }

    /// A test file for two hosts; `second` describes the second host.
    fn case(&self, second: &str, count: u32) -> Case {
        let arch = Command::new("uname").arg("-m").output().unwrap().stdout;
        Case::new(&format!(
            "
testbeds:
  two:
    - {{ user: root, ip: 10.77.1.1, port: 2222, authorized_key: {key}, ssh_config: {config}, arch: {arch} }}
    - {{ user: root, ip: 10.77.2.2, ssh_config: {config}, {second} }}
tests:
  remote:
    topology: {{ topology_type: linear, nodes: 2 }}
    target_protocols: [udp, brtp]
    test_tools:
      rtt: {{ interval: 0.01, packet_count: {count} }}
",
            key = self.path("user").display(),
            config = self.path("ssh_config").display(),
            arch = String::from_utf8_lossy(&arch).trim(),
        ))
    }

    fn good(&self) -> String {
        format!("port: 2222, authorized_key: {}, intf: left", self.path("user").display())
    }

    fn run(&self, case: &Case) -> Command {
        let mut command = self.on("r1");
        command.arg(env!("CARGO_BIN_EXE_batslab"));
        command.args(["run", &case.file(), "--backend", "ssh", "-q", "-o"]).arg(case.out());
        command
    }

    fn run_to_end(&self, case: &Case) -> Output {
        self.run(case).output().unwrap()
    }

    /// Names of the processes on a host, except for sshd.
    fn processes(&self, host: &str) -> Vec<String> {
        let Ok(wanted) = fs::metadata(format!("/run/netns/{}-{host}", self.lab)) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let namespace = fs::metadata(entry.path().join("ns/net"));
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if namespace.is_ok_and(|data| data.ino() == wanted.ino() && data.dev() == wanted.dev())
                && !name.is_empty()
                && name.trim() != "sshd"
            {
                found.push(name.trim().to_owned());
            }
        }
        found
    }

    /// Folders of runs on the hosts, which share this machine's file system.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("tmp")).unwrap().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Number of hosts on which a program has been started.
    fn started(&self) -> usize {
        self.folders().iter().filter(|folder| folder.join("pids").exists()).count()
    }

    /// Fails if a run has left processes or folders on the hosts.
    fn assert_clean(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let running = [self.processes("a"), self.processes("b")].concat();
            let left = self.folders();
            if running.is_empty() && left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left: {running:?} {left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = batslab().args(["down", "--name", &self.lab]).output();
    }
}

#[test]
fn tests_run_on_real_hosts_and_leave_nothing() {
    let Some(testbed) = Testbed::start("tests_run_on_real_hosts_and_leave_nothing") else {
        return;
    };
    let _alone = lock_machine();
    let case = testbed.case(&testbed.good(), 50);
    let child = testbed.run(&case).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let result = fs::read(case.out().join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    assert_eq!(result["cases"][0]["backend"], "ssh");
    for protocol in ["udp", "brtp"] {
        // Over both links of the lab and back: the programs ran on the right hosts.
        let time = figure(&result, protocol, "rtt", "rtt_p50_ms");
        assert!((20.0..500.0).contains(&time), "{protocol}: {time}");
    }
    assert!(!stdout_of(&output).contains("the clock of"), "{}", stdout_of(&output));
    testbed.assert_clean();
    // A wrong clock is reported.
    let case = testbed.case(&testbed.good().replace("2222", "2224"), 20);
    let output = testbed.run_to_end(&case);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let text = "the clock of 10.77.2.2 is 100.";
    assert!(
        stdout_of(&output).contains(text) && stdout_of(&output).contains("s ahead of"),
        "{}",
        stdout_of(&output)
    );
    testbed.assert_clean();
}

#[test]
fn problems_of_real_hosts_are_reported() {
    let Some(testbed) = Testbed::start("problems_of_real_hosts_are_reported") else {
        return;
    };
    let good = testbed.good();
    let unauthorized = testbed.path("unauthorized").display().to_string();
    let user = testbed.path("user").display().to_string();
    for (second, word) in [
        (good.replace("intf: left", "intf: left9"), "10.77.2.2: missing interface left9"),
        (good.replace("2222", "2223"), "10.77.2.2: missing batslab"),
        (good.replace("2222", "2225"), "cannot create a directory on 10.77.2.2: mktemp"),
        (good.replace("2222", "2299"), "cannot log in to 10.77.2.2: ssh: connect"),
        (
            good.replace(&user, &unauthorized),
            "cannot log in to 10.77.2.2: root@10.77.2.2: Permission",
        ),
        (good.replace("intf: left", "arch: pdp11"), "10.77.2.2 is "),
    ] {
        let case = testbed.case(&second, 20);
        let output = testbed.run_to_end(&case);
        assert_eq!(output.status.code(), Some(1), "{second}");
        let text = stdout_of(&output);
        assert!(text.contains(word), "{second}: {text}{}", stderr_of(&output));
        let result = fs::read(case.out().join("result.json")).unwrap();
        let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
        assert_eq!(measurement(&result, "udp", "rtt")["status"], "failed");
    }
    testbed.assert_clean();
}

#[test]
fn an_interrupt_leaves_nothing_on_real_hosts() {
    let Some(testbed) = Testbed::start("an_interrupt_leaves_nothing_on_real_hosts") else { return };
    // Messages for one minute.
    let case = testbed.case(&testbed.good(), 6_000);
    let mut child =
        testbed.run(&case).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while testbed.started() < 2 {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "the run did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // Other users of the hosts cannot read the files of the run.
    let folders = testbed.folders();
    assert_eq!(folders.len(), 2, "{folders:?}");
    for folder in &folders {
        assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700, "{folder:?}");
        assert_eq!(fs::metadata(folder.join("pids")).unwrap().mode() & 0o777, 0o600, "{folder:?}");
    }
    let pid = child.id();
    assert!(Command::new("kill").arg("-INT").arg(pid.to_string()).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_of(&output).contains("interrupted"), "{}", stderr_of(&output));
    assert!(!case.out().exists(), "the results folder is left");
    testbed.assert_clean();
}

/// After SIGKILL of batslab the hosts clean up by themselves.
#[test]
fn a_killed_run_leaves_nothing_on_real_hosts() {
    let Some(testbed) = Testbed::start("a_killed_run_leaves_nothing_on_real_hosts") else {
        return;
    };
    let case = testbed.case(&testbed.good(), 6_000);
    let mut child = testbed.run(&case).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while testbed.started() < 2 {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "the run did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    testbed.assert_clean();
}
