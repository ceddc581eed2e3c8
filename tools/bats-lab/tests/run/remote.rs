//! The backends ssh and netem, with stand-ins for the programs that they call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use super::support::{Case, allowed, alone, batslab, error_of, figure, said, skipped};

fn script(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn with_path(case: &Case, arguments: &[&str]) -> Output {
    let path =
        format!("{}:{}", case.folder.path().join("bin").display(), std::env::var("PATH").unwrap());
    let own = Path::new(env!("CARGO_BIN_EXE_batslab")).parent().unwrap();
    let temporary = case.folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    batslab()
        .env("TMPDIR", temporary)
        .env("PATH", format!("{path}:{}", own.display()))
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

/// Runs what it is asked to on this machine, and writes down what that was.
const FAKE_SSH: &str = r#"echo "$@" >> "$LAB_LOG"
for last; do :; done
exec sh -c "$last""#;

#[test]
fn hosts_are_reached_checked_and_left_as_they_were() {
    let arch =
        String::from_utf8(std::process::Command::new("uname").arg("-m").output().unwrap().stdout)
            .unwrap();
    let case = Case::new(&SSH.replace("ARCH", arch.trim()));
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ssh", FAKE_SSH);
    let output = with_path(&case, &["--backend", "ssh"]);
    assert!(output.status.success(), "{}{}", said(&output), error_of(&output));
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(case.out().join("result.json")).unwrap()).unwrap();
    assert!(figure(&result, "udp", "rtt", "rtt_p50_ms") < 1000.0);
    let log = fs::read_to_string(case.folder.path().join("log")).unwrap();
    assert!(log.contains("-p 2222 me@127.0.0.1") && log.contains("exec batslab __echo"), "{log}");
    // Both hosts had a folder of their own each time, and it is gone.
    let temporary = case.folder.path().join("temporary");
    let notes = format!("echo $$ >> {}/batslab-", temporary.display());
    assert!(log.contains("mktemp -d") && log.contains(&notes), "{log}");
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn hosts_that_lack_something_are_told_apart() {
    let case = Case::new(&SSH.replace("ARCH", "pdp11"));
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ssh", FAKE_SSH);
    let output = with_path(&case, &["--backend", "ssh"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("not pdp11"), "{}", said(&output));
    let case = Case::new(&SSH.replace("ARCH", "x"));
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ssh", "echo 'Permission denied (publickey).' >&2; exit 255");
    let output = with_path(&case, &["--backend", "ssh"]);
    assert!(
        said(&output).contains("cannot log in to 127.0.0.1: Permission denied"),
        "{}",
        said(&output)
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
fn the_kernels_netem_is_told_what_to_do() {
    if !allowed("the_kernels_netem_is_told_what_to_do") {
        return;
    }
    let _alone = alone();
    let case = Case::new(NETEM);
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for name in ["tc", "ip"] {
        script(&bin, name, &format!("echo {name} \"$@\" >> \"$LAB_LOG\""));
    }
    let output = with_path(&case, &["--backend", "netem"]);
    assert!(output.status.success(), "{}{}", said(&output), error_of(&output));
    let log = fs::read_to_string(case.folder.path().join("log")).unwrap();
    for words in [
        "root handle 1: tbf rate 50000000bit",
        "delay 5000us loss random 3.000000%",
        "mirred egress redirect dev ifb1",
    ] {
        assert!(log.matches(words).count() >= 2, "{words}: {log}");
    }
}

/// Bucket, redirection and ifb by the real kernel; netem's own commands are only written down, for many
/// kernels lack it.
#[test]
fn the_kernel_takes_everything_but_netem_as_it_is_told() {
    const NAME: &str = "the_kernel_takes_everything_but_netem_as_it_is_told";
    let real = |name: &str| {
        let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
        places.iter().map(|place| Path::new(place).join(name)).find(|place| place.exists())
    };
    let (Some(tc), Some(ip)) = (real("tc"), real("ip")) else {
        return skipped(NAME, "there is no tc or ip (Debian: iproute2)");
    };
    if !allowed(NAME) {
        return;
    }
    let _alone = alone();
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
    let error = error_of(&output);
    if error.contains("ifb") && error.contains("does not work here") {
        return skipped(NAME, &format!("this kernel lacks more: {error}"));
    }
    assert!(output.status.success(), "{}{error}", said(&output));
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(case.out().join("result.json")).unwrap()).unwrap();
    // Without the bucket it would be some hundred times as much.
    let rate = figure(&result, "tcp-cubic", "iperf", "throughput_mbps");
    assert!((1.0..20.0).contains(&rate), "{rate}");
    let log = fs::read_to_string(case.folder.path().join("log")).unwrap();
    // Both directions of both links, each on the ifb of its link.
    for ifb in ["dev ifb1 root netem", "dev ifb2 root netem"] {
        assert!(log.matches(ifb).count() >= 2, "{log}");
    }
}

#[test]
fn a_kernel_without_netem_is_told_of_before_anything_runs() {
    if !allowed("a_kernel_without_netem_is_told_of_before_anything_runs") {
        return;
    }
    let case = Case::new(NETEM);
    let bin = case.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "ip", "exit 0");
    script(&bin, "tc", "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2");
    let output = with_path(&case, &["--backend", "netem"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error_of(&output).contains("use the backend netns"), "{}", error_of(&output));
    assert!(!case.out().exists());
}
