//! Link-local addresses with a zone.

use std::process::Command;

use crate::support::{PROGRAM, Scratch, skipped, text};

/// In a network namespace of its own, whose loopback interface has a link-local address.
#[test]
fn link_local_addresses_with_a_zone_work_at_both_ends() {
    let test = "link_local_addresses_with_a_zone_work_at_both_ends";
    let allowed = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return skipped(test, "cannot make a network namespace");
    }
    let scratch = Scratch::new("zones");
    let script = r#"
        set -e
        ip link set lo up
        ip link add v0 type veth peer name v1
        ip link set v0 up; ip link set v1 up
        ip -6 addr add fe80::77/64 dev v0 nodad
        for local in "-B fe80::77%v0" "-6"; do
            for options in "-m 0" "-m 1" "-m 10" "-m 11" "-m 12" "-m 1 --emulate delay=1ms" \
                "-m 1 --baseline tcp,udp" "-m 1 -r -B fe80::77%v0"; do
                "$PROGRAM" -s -1 $local > server.txt 2>&1 &
                server=$!
                for attempt in $(seq 100); do
                    grep -q "certificate fingerprint" server.txt && break
                    sleep 0.05
                done
                "$PROGRAM" -c fe80::77%v0 -t 0.5 -b 1M $options > client.txt 2>&1 ||
                    { echo "failed: $local: $options"; cat client.txt server.txt; exit 1; }
                wait $server || { echo "server failed: $options"; cat server.txt; exit 1; }
            done
        done
        if "$PROGRAM" -c fe80::77 -t 0.5 > client.txt 2>&1; then exit 1; fi
        cat client.txt
    "#;
    let output = Command::new("unshare")
        .args(["-rn", "sh", "-c", script])
        .current_dir(&scratch.0)
        .env("PROGRAM", PROGRAM)
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .output()
        .unwrap();
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert!(report.contains("add the interface"), "{report}");
}
