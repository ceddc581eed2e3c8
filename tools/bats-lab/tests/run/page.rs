//! The page of `batslab serve` and the report, in a browser.

use std::time::Duration;

use super::browser::{Browser, installed};
use super::serve::Server;
use super::support::skipped;

const WAIT: Duration = Duration::from_secs(60);

/// A test that runs long enough to be watched and stopped.
const LONG: &str = "tests:\\n  long:\\n    backend: sim\\n    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }\\n    target_protocols: [brtp]\\n    test_tools: { iperf: { interval: 0.5, interval_num: 40000 } }\\n";

#[test]
fn the_page_starts_shows_and_stops_runs() {
    const NAME: &str = "the_page_starts_shows_and_stops_runs";
    let Some(program) = installed() else {
        skipped(NAME, "no browser (Debian: chromium)");
        return;
    };
    let server = Server::start(&[]);
    let mut page = Browser::start(&program);
    page.open(&format!("http://{}/#token={}", server.address, server.token));

    // The token leaves the address.
    page.until("document.querySelector('[data-case=smoke]')", WAIT);
    assert_eq!(page.value("location.hash"), "");

    // A click starts a shipped case: its live plot appears, then its verdict with a report.
    page.until("document.querySelector('[data-case=smoke]')", WAIT);
    page.value("document.getElementById('backend').value = 'sim'");
    page.click("[data-case=smoke]");
    page.until("!document.getElementById('now').hidden", WAIT);
    page.until(
        "document.querySelector('#live polyline')?.getAttribute('points').split(' ').length > 3",
        WAIT,
    );
    page.until("document.getElementById('now-log').innerText.includes('iperf passed')", WAIT);
    page.until("document.querySelector('#runs a[href$=\"report.html\"]')", WAIT);
    let row = page.value("document.querySelector('#runs tr').innerText");
    let row = row.as_str().unwrap();
    assert!(row.contains("smoke") && row.contains("passed"), "{row}");

    // A user's file: errors are reported; it is run, watched and stopped.
    let fill = |text: &str| format!("document.getElementById('yaml').value = \"{text}\"");
    page.value(&fill(&LONG.replace("nodes", "nodse")));
    page.click("#check");
    page.until(
        "document.getElementById('message').innerText.includes('did you mean `nodes`')",
        WAIT,
    );
    page.value(&fill(LONG));
    page.click("#check");
    page.until(
        "document.getElementById('message').innerText.includes('1 measurement on sim')",
        WAIT,
    );
    page.click("#run");
    page.until("document.getElementById('now-name').innerText.endsWith('-own')", WAIT);
    page.until("document.querySelector('#live polyline')", WAIT);
    let rate = page.value("document.getElementById('now-rate').innerText");
    assert!(rate.as_str().unwrap().contains("virtual time"), "{rate}");
    page.click("#stop");
    page.until("document.getElementById('now-what').innerText === 'finished'", WAIT);
    page.until("document.querySelector('#runs tr').innerText.includes('interrupted')", WAIT);
    let (_, runs) = server.json("GET", "/api/runs", None);
    assert_eq!(runs[0]["running"], false, "{runs}");

    // Two runs are compared, one is deleted.
    let finished = format!("[data-select='{}']", runs[1]["name"].as_str().unwrap());
    page.until(&format!("document.querySelector(\"{finished}\")"), WAIT);
    page.value("document.getElementById('quick').checked = true");
    page.click("[data-case=smoke]");
    page.until("document.querySelectorAll('[data-select]').length === 2", WAIT);
    page.value("document.querySelectorAll('[data-select]').forEach((one) => one.click())");
    page.click("#compare");
    page.until("document.getElementById('compared').innerText.includes('throughput')", WAIT);
    page.value("window.confirm = () => true");
    page.value("document.querySelector('[data-delete]').click()");
    page.until("document.querySelectorAll('[data-select]').length === 1", WAIT);

    // The report: its script shows the values under the pointer.
    let report = runs[1]["report"].as_str().unwrap().to_owned();
    page.open(&format!("http://{}{report}", server.address));
    page.until("document.querySelector('.tip')", WAIT);
    assert!(page.value("document.querySelectorAll('svg polyline').length").as_u64() > Some(0));
}
