//! `batslab serve`: the REST interface, the live stream, who may ask, and the page in a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{batslab, run};

struct Server {
    child: Child,
    address: String,
    /// Holds the results, and what is none of them.
    folder: tempfile::TempDir,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = batslab()
            .args(["serve", "--listen", "127.0.0.1:0", "--results"])
            .arg(folder.path().join("results"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        Self { child, address, folder }
    }

    /// Status and body.
    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: Option<&Value>,
    ) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let host = headers.iter().find(|header| header.starts_with("Host:"));
        let host = host.map_or(format!("Host: {}", self.address), |host| (*host).to_owned());
        let mut request = format!("{method} {path} HTTP/1.1\r\n{host}\r\nConnection: close\r\n");
        for header in headers.iter().filter(|header| !header.starts_with("Host:")) {
            request += &format!("{header}\r\n");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        if !body.is_empty() {
            request +=
                &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn json(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, text) = self.ask(method, path, &[], body);
        // Bodies may come in chunks.
        let start = text.find(['[', '{']).unwrap_or(0);
        let end = text.rfind([']', '}']).map_or(text.len(), |end| end + 1);
        (status, serde_json::from_str(&text[start..end]).unwrap_or(Value::Null))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-INT").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        panic!("the server did not end");
    }
}

const YAML: &str = "
tests:
  served:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }
    target_protocols: [brtp]
    test_tools: { iperf: { interval: 0.5, interval_num: 4 } }
";

#[test]
fn a_test_is_checked_started_followed_and_read() {
    let server = Server::start(&[]);
    let (status, cases) = server.json("GET", "/api/cases", None);
    assert_eq!(status, 200);
    assert!(cases.as_array().unwrap().iter().any(|case| case["name"] == "matrix-1g"));
    let (status, plan) = server.json("POST", "/api/check", Some(&json!({ "yaml": YAML })));
    assert_eq!(status, 200, "{plan}");
    let wrong = YAML.replace("nodes", "nodse");
    let (status, error) = server.json("POST", "/api/check", Some(&json!({ "yaml": wrong })));
    assert_eq!(status, 400);
    assert!(error["error"].as_str().unwrap().contains("did you mean `nodes`"), "{error}");
    let (status, answer) = server.json("POST", "/api/runs", Some(&json!({ "yaml": YAML })));
    assert_eq!(status, 201, "{answer}");
    let name = answer["name"].as_str().unwrap().to_owned();
    let deadline = Instant::now() + Duration::from_secs(60);
    // The stream may begin before the run has written anything.
    let (status, events) = server.ask("GET", &format!("/api/runs/{name}/live"), &[], None);
    assert_eq!(status, 200);
    for word in ["\"event\":\"begin\"", "\"event\":\"measurement\"", "\"event\":\"over\""] {
        assert!(events.contains(word), "{word}: {events}");
    }
    let runs = loop {
        let (_, runs) = server.json("GET", "/api/runs", None);
        if runs[0]["passed"] == true {
            break runs;
        }
        assert!(Instant::now() < deadline, "{runs}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let report = runs[0]["report"].as_str().unwrap();
    assert!(server.ask("GET", report, &[], None).1.contains("<polyline"));
    let (status, result) = server.json("GET", &format!("/api/runs/{name}"), None);
    assert_eq!((status, &result["passed"]), (200, &true.into()));
}

#[test]
fn a_run_is_stopped_and_two_do_not_run_at_once() {
    let server = Server::start(&[]);
    let yaml = YAML.replace("interval_num: 4", "interval_num: 4000");
    let (status, answer) = server.json("POST", "/api/runs", Some(&json!({ "yaml": yaml })));
    assert_eq!(status, 201, "{answer}");
    let (status, answer) = server.json("POST", "/api/runs", Some(&json!({ "case": "smoke" })));
    assert_eq!(status, 409, "{answer}");
    // The rest of the test is the server's end: it waits for what it has started.
}

#[test]
fn strangers_get_nothing() {
    let server = Server::start(&["--token", "0123456789abcdef"]);
    assert_eq!(server.ask("GET", "/api/runs", &[], None).0, 401);
    assert_eq!(server.ask("GET", "/api/runs?token=0123456789abcdee", &[], None).0, 401);
    assert_eq!(server.ask("GET", "/api/runs?token=0123456789abcdef", &[], None).0, 200);
    let bearer = "Authorization: Bearer 0123456789abcdef";
    assert_eq!(server.ask("GET", "/api/runs", &[bearer], None).0, 200);
    assert_eq!(server.ask("GET", "/api/runs", &[bearer, "Host: evil.example"], None).0, 403);
    assert_eq!(
        server
            .ask(
                "POST",
                "/api/runs",
                &[bearer, "Origin: http://evil.example"],
                Some(&json!({ "case": "smoke" }))
            )
            .0,
        403
    );
    std::fs::write(server.folder.path().join("secret"), "x").unwrap();
    for path in [
        "/runs/../secret",
        "/runs/x/../../secret",
        "/runs/%2e%2e/secret",
        "/runs/x/%2e%2e/%2e%2e/secret",
        "/runs/x//etc/passwd",
    ] {
        let (status, body) = server.ask("GET", path, &[bearer], None);
        assert!(status == 404 || status == 400, "{path}: {status} {body}");
    }
    let output = run(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(1));
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--token", "short"]);
    assert_eq!(output.status.code(), Some(1));
}

/// The page starts a test and shows its end, in a browser without a window.
#[test]
fn the_page_works_in_a_browser() {
    let browser = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    let Some(browser) = browser else {
        std::io::stderr()
            .write_all(b"\nSKIPPED the_page_works_in_a_browser: there is no chromium\n")
            .unwrap();
        return;
    };
    let server = Server::start(&[]);
    let (_, answer) = server.json("POST", "/api/runs", Some(&json!({ "yaml": YAML })));
    let name = answer["name"].as_str().unwrap();
    let report = server.folder.path().join("results").join(name).join("report.html");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !report.exists() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
    let dom = |url: &str| {
        let profile = tempfile::tempdir().unwrap();
        let output = Command::new(browser)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--virtual-time-budget=4000",
                "--dump-dom",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let page = dom(&format!("http://{}/", server.address));
    assert!(page.contains("data-case=\"matrix-1g\"") && page.contains(name), "{page}");
    assert!(page.contains("passed</span>"), "{page}");
    let page = dom(&format!("http://{}/runs/{name}/report.html", server.address));
    // The script has put its mark and its box of values into the plot.
    assert!(page.contains("class=\"tip\""), "the report's script did not run");
}
