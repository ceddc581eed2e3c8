//! The backends ssh and netem, with stubs of the programs that they call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use super::support::{
    Case, allowed, batslab, figure, lock_machine, skipped, skipped_also_in_ci, stderr_of, stdout_of,
};

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_path(case: &Case, arguments: &[&str]) -> Output {
    let path =
        format!("{}:{}", case.folder.path().join("bin").display(), std::env::var("PATH").unwrap());
    let own_programs = Path::new(env!("CARGO_BIN_EXE_batslab")).parent().unwrap();
    let temporary = case.folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    batslab()
        .env("TMPDIR", temporary)
        .env("PATH", format!("{path}:{}", own_programs.display()))
        .env("LAB_LOG", case.folder.path().join("log"))
        .args(["run", &case.file(), "-q", "-o"])
        .arg(case.out())
        .args(arguments)
        .output()
        .unwrap()
}

const SSH: &str = "
testbeds:
  here:
    - { user: me, ip: 127.0.0.1, port: 2222, arch: ARCH }
    - { user: me, ip: 127.0.0.1, intf: lo }
tests:
  remote:
    topology: { topology_type: linear, nodes: 2 }
    target_protocols: [udp]
    test_tools:
      rtt: { interval: 0.01, packet_count: 20 }
      ping: { interval: 0.01, packet_count: 20 }
";

/// Runs the command on this machine and logs it.
const FAKE_SSH: &str = r#"echo "$@" >> "$LAB_LOG"
for last; do :; done
exec sh -c "$last""#;

#[test]
fn hosts_are_reached_checked_and_cleaned_up() {
    let arch =
        String::from_utf8(std::process::Command::new("uname").arg("-m").output().unwrap().stdout)
            .unwrap();
    let case = Case::new(&SSH.replace("ARCH", arch.trim()));
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ssh", FAKE_SSH);
    let output = with_path(&case, &["--backend", "ssh"]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(case.out().join("result.json")).unwrap()).unwrap();
    assert!(figure(&result, "udp", "rtt", "rtt_p50_ms") < 1000.0);
    let log = fs::read_to_string(case.folder.path().join("log")).unwrap();
    assert!(log.contains("-p 2222 me@127.0.0.1") && log.contains("exec batslab __echo"), "{log}");
    // Each host got a folder of its own, and none is left.
    let temporary = case.folder.path().join("temporary");
    let notes = format!("echo $$ >> {}/batslab-", temporary.display());
    assert!(log.contains("mktemp -d") && log.contains(&notes), "{log}");
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn problems_of_hosts_are_reported() {
    let case = Case::new(&SSH.replace("ARCH", "pdp11"));
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ssh", FAKE_SSH);
    let output = with_path(&case, &["--backend", "ssh"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout_of(&output).contains("not pdp11"), "{}", stdout_of(&output));
    let case = Case::new(&SSH.replace("ARCH", "x"));
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ssh", "echo 'Permission denied (publickey).' >&2; exit 255");
    let output = with_path(&case, &["--backend", "ssh"]);
    assert!(
        stdout_of(&output).contains("cannot log in to 127.0.0.1: Permission denied"),
        "{}",
        stdout_of(&output)
    );
}

const NETEM: &str = "
tests:
  kernel:
    topology: { topology_type: linear, nodes: 2, link: { rate: 50M, delay: 5ms, loss: 3% } }
    target_protocols: [tcp-cubic]
    test_tools: { iperf: { interval_num: 2 } }
";

#[test]
fn netem_is_configured_as_the_test_says() {
    if !allowed("netem_is_configured_as_the_test_says") {
        return;
    }
    let _alone = lock_machine();
    let case = Case::new(NETEM);
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["tc", "ip"] {
        script(&bin, name, &format!("echo {name} \"$@\" >> \"$LAB_LOG\""));
    }
    let output = with_path(&case, &["--backend", "netem"]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let log = fs::read_to_string(case.folder.path().join("log")).unwrap();
    for text in [
        "root handle 1: tbf rate 50000000bit",
        "delay 5000us loss random 3.000000%",
        "mirred egress redirect dev ifb1",
    ] {
        assert!(log.matches(text).count() >= 2, "{text}: {log}");
    }
}

/// Runs tbf, redirection and ifb in the real kernel; netem's own commands are only logged, because
/// many kernels lack netem.
#[test]
fn the_kernel_accepts_all_commands_except_netem() {
    const NAME: &str = "the_kernel_accepts_all_commands_except_netem";
    let real = |name: &str| {
        let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
        places.iter().map(|place| Path::new(place).join(name)).find(|place| place.exists())
    };
    let (Some(tc), Some(ip)) = (real("tc"), real("ip")) else {
        return skipped(NAME, "tc or ip is not installed (Debian: iproute2)");
    };
    if !allowed(NAME) {
        return;
    }
    let _alone = lock_machine();
    let case = Case::new(
        "
tests:
  kernel:
    topology: { topology_type: linear, nodes: 3, link: { rate: 20M, delay: 5ms, loss: 3% } }
    target_protocols: [tcp-cubic]
    test_tools: { iperf: { interval: 0.5, interval_num: 4 } }
",
    );
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let tc = tc.display();
    let text = format!(
        "case \"$*\" in *\" netem \"*) echo \"$@\" >> \"$LAB_LOG\";; *) exec {tc} \"$@\";; esac"
    );
    script(&bin, "tc", &text);
    script(&bin, "ip", &format!("exec {} \"$@\"", ip.display()));
    let output = with_path(&case, &["--backend", "netem"]);
    let error = stderr_of(&output);
    if error.contains("ifb") && error.contains("does not work here") {
        return skipped_also_in_ci(NAME, &format!("this kernel lacks a feature: {error}"));
    }
    assert!(output.status.success(), "{}{error}", stdout_of(&output));
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(case.out().join("result.json")).unwrap()).unwrap();
    // Without the token bucket the rate would be some hundred times higher.
    let rate = figure(&result, "tcp-cubic", "iperf", "throughput_mbps");
    assert!((1.0..20.0).contains(&rate), "{rate}");
    let log = fs::read_to_string(case.folder.path().join("log")).unwrap();
    // Both directions of both links, each on the ifb of its link.
    for ifb in ["dev ifb1 root netem", "dev ifb2 root netem"] {
        assert!(log.matches(ifb).count() >= 2, "{log}");
    }
}

#[test]
fn a_kernel_without_netem_is_reported_before_the_run() {
    if !allowed("a_kernel_without_netem_is_reported_before_the_run") {
        return;
    }
    let case = Case::new(NETEM);
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ip", "exit 0");
    script(&bin, "tc", "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2");
    let output = with_path(&case, &["--backend", "netem"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_of(&output).contains("use the backend netns"), "{}", stderr_of(&output));
    assert!(!case.out().exists());
}
