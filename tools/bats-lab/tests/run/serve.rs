//! `batslab serve`: the REST interface, the live stream, access control, and the server that the
//! page tests use.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{batslab, run, stderr_of};

pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// The token that the server printed or was given.
    pub(crate) token: String,
    /// Holds the results folder and other files.
    pub(crate) folder: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(batslab(), arguments)
    }

    /// Starts a server by a command that ends with `batslab`.
    pub(crate) fn start_by(mut command: Command, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command
            .args(["serve", "--listen", "127.0.0.1:0", "--results"])
            .arg(folder.path().join("results"))
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, fragment) =
            line.trim().trim_start_matches("http://").split_once('/').unwrap();
        let printed = fragment.strip_prefix("#token=").map(str::to_owned);
        let given = arguments.iter().skip_while(|word| **word != "--token").nth(1);
        let token = printed.or(given.map(|token| (*token).to_owned())).unwrap();
        Self { child, address: address.to_owned(), token, folder }
    }

    /// Sends a request with the token; returns status and body.
    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: Option<&Value>,
    ) -> (u16, String) {
        let token = format!("Authorization: Bearer {}", self.token);
        let headers: Vec<&str> = headers.iter().copied().chain([token.as_str()]).collect();
        self.ask_without_token(method, path, &headers, body)
    }

    /// Sends a request with these headers only; returns status and body.
    fn ask_without_token(
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
            if !headers.iter().any(|header| header.starts_with("Content-Type:")) {
                request += "Content-Type: application/json\r\n";
            }
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    pub(crate) fn json(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let (status, text) = self.ask(method, path, &[], body);
        // The body may use chunked encoding.
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
        panic!("the server did not exit");
    }
}

#[test]
fn a_hangup_ends_the_server_except_under_nohup() {
    for (launcher, survives) in [("env", false), ("nohup", true)] {
        // The signal may be ignored already, as it is if `nohup` runs the tests.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", launcher]).arg(batslab().get_program());
        command.stderr(Stdio::null());
        let mut server = Server::start_by(command, &[]);
        let process = server.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &process]).status().unwrap().success());
        let deadline = Instant::now() + Duration::from_secs(if survives { 2 } else { 20 });
        while Instant::now() < deadline && server.child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(server.child.try_wait().unwrap().is_none(), survives, "{launcher}");
        if survives {
            assert_eq!(server.json("GET", "/api/runs", None).0, 200);
        }
    }
}

const YAML: &str = "
tests:
  served:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }
    target_protocols: [brtp]
    test_tools:
      iperf: { interval: 0.5, interval_num: 4 }
      rtt: { interval: 0.01, packet_count: 200 }
";

#[test]
fn invalid_requests_have_json_errors() {
    let server = Server::start(&[]);
    let post = |path: &str, body: Value| server.json("POST", path, Some(&body));
    let assert_error = |(status, answer): (u16, Value), wanted: u16, text: &str| {
        let error = answer["error"].as_str().unwrap_or_else(|| panic!("{status}: {answer}"));
        assert!(status == wanted && error.contains(text), "{status}: {answer}");
    };
    assert_error(post("/api/check", json!({ "yml": YAML })), 422, "`yml`");
    assert_error(post("/api/runs", json!({ "case": "smoke", "backend": "moon" })), 422, "`moon`");
    let only = json!({ "case": "smoke", "only": "smok" });
    assert_error(post("/api/runs", only), 400, "did you mean `smoke`?");
    assert_error(post("/api/runs", json!({ "yaml": YAML, "only": "x" })), 400, "no test `x`");
    assert_error(server.json("GET", "/api/nothing", None), 404, "docs/lab.md");
    assert_error(server.json("PUT", "/api/runs", None), 405, "method not allowed");
    let text = ["Content-Type: text/plain"];
    let (status, answer) = server.ask("POST", "/api/check", &text, Some(&json!({ "yaml": YAML })));
    assert!(status == 415 && answer.contains("needs `Content-Type: application/json`"), "{answer}");
    // No run has started.
    assert_eq!(server.json("GET", "/api/runs", None).1, json!([]));
}

#[test]
fn runs_are_listed_newest_first() {
    let server = Server::start(&[]);
    let results = server.folder.path().join("results");
    let file = server.folder.path().join("test.yaml");
    std::fs::write(&file, YAML).unwrap();
    for name in ["b", "c", "a"] {
        let out = results.join(name);
        let output = run(&["run", file.to_str().unwrap(), "-q", "-o", out.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr_of(&output));
    }
    let (_, runs) = server.json("GET", "/api/runs", None);
    let names: Vec<&str> =
        runs.as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["a", "c", "b"], "{runs}");
}

#[test]
fn tests_are_checked_started_followed_and_read() {
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
    // The stream may be opened before the run has written anything.
    let (status, events) = server.ask("GET", &format!("/api/runs/{name}/live"), &[], None);
    assert_eq!(status, 200);
    for word in
        ["\"event\":\"begin\"", "\"rtt_ms\":", "\"event\":\"measurement\"", "\"event\":\"over\""]
    {
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
fn runs_can_be_stopped_and_only_one_runs_at_a_time() {
    let server = Server::start(&[]);
    let yaml = YAML.replace("interval_num: 4", "interval_num: 4000");
    let (status, answer) = server.json("POST", "/api/runs", Some(&json!({ "yaml": yaml })));
    assert_eq!(status, 201, "{answer}");
    let name = answer["name"].as_str().unwrap().to_owned();
    let (status, answer) = server.json("POST", "/api/runs", Some(&json!({ "case": "smoke" })));
    assert_eq!(status, 409, "{answer}");
    let path = format!("/api/runs/{name}");
    assert_eq!(server.json("DELETE", &path, None), (200, json!({ "stopped": name })));
    let ended = wait_until_idle(&server)[0].clone();
    assert!(ended["error"].as_str().unwrap().contains("interrupted"), "{ended}");
    assert!(
        !server.folder.path().join("results").join(&name).exists(),
        "its results folder is left"
    );
    // After the end it cannot be stopped, and another run may start.
    assert_eq!(server.json("DELETE", &path, None).0, 404);
    assert_eq!(server.json("DELETE", "/api/runs/none", None).0, 404);
    let (status, answer) = server.json("POST", "/api/runs", Some(&json!({ "yaml": yaml })));
    assert_eq!(status, 201, "{answer}");
    // When the server exits, it waits for the run that it has started.
}

/// Waits until no run is active; returns the list of runs.
fn wait_until_idle(server: &Server) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, runs) = server.json("GET", "/api/runs", None);
        if runs.as_array().unwrap().iter().all(|run| run["running"] == false) {
            return runs;
        }
        assert!(Instant::now() < deadline, "{runs}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs that are stopped at once start in the same second: their names alone do not give the order.
#[test]
fn runs_of_the_same_second_are_listed_newest_first() {
    let server = Server::start(&[]);
    let mut newest_first: Vec<Value> = Vec::new();
    let orders = [json!({ "case": "smoke", "backend": "sim" }), json!({ "yaml": YAML })];
    for request_body in orders.iter().cycle().take(8) {
        let (status, answer) = server.json("POST", "/api/runs", Some(request_body));
        assert_eq!(status, 201, "{answer}");
        newest_first.insert(0, answer["name"].clone());
        let path = format!("/api/runs/{}", answer["name"].as_str().unwrap());
        // It may end before it can be stopped.
        server.json("DELETE", &path, None);
        let runs = wait_until_idle(&server);
        let names: Vec<Value> =
            runs.as_array().unwrap().iter().map(|run| run["name"].clone()).collect();
        assert_eq!(names, newest_first);
    }
}

#[test]
fn requests_without_the_token_are_refused() {
    let server = Server::start(&["--token", "0123456789abcdef"]);
    let get = |path: &str, headers: &[&str]| server.ask_without_token("GET", path, headers, None).0;
    assert_eq!(get("/api/runs", &[]), 401);
    for wrong in ["0123456789abcdee", "0123456789abcde", ""] {
        assert_eq!(get("/api/runs", &[&format!("Authorization: Bearer {wrong}")]), 401, "{wrong}");
    }
    // Addresses are stored and logged, so the token does not count there.
    assert_eq!(get("/api/runs?token=0123456789abcdef", &[]), 401);
    let bearer = "Authorization: Bearer 0123456789abcdef";
    assert_eq!(get("/api/runs", &[bearer]), 200);
    assert_eq!(get("/api/runs", &[bearer, "Host: evil.example"]), 403);
    assert_eq!(
        server
            .ask(
                "POST",
                "/api/runs",
                &["Origin: http://evil.example"],
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
        let (status, body) = server.ask("GET", path, &[], None);
        assert!(status == 404 || status == 400, "{path}: {status} {body}");
    }
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--token", "short"]);
    assert_eq!(output.status.code(), Some(1));
}

/// The page has no data, so that it can be loaded before it presents the token. Its cookie grants
/// files of runs only: browsers send it to other ports of the host, too.
#[test]
fn the_page_needs_no_token_and_its_cookie_grants_only_files() {
    let server = Server::start(&[]);
    let (status, page) = server.ask_without_token("GET", "/", &[], None);
    assert!(status == 200 && !page.contains(&server.token), "{status}");
    assert_eq!(server.ask_without_token("POST", "/api/session", &[], None).0, 401);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let request = format!(
        "POST /api/session HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n",
        server.address, server.token
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/runs"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    let header = format!("Cookie: {}", cookie.split(';').next().unwrap());
    let place = server.folder.path().join("results/one");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("report.html"), "a report").unwrap();
    let with_cookie = |method: &str, path: &str| {
        server.ask_without_token(method, path, &[&header], Some(&json!({ "case": "smoke" }))).0
    };
    assert_eq!(with_cookie("GET", "/runs/one/report.html"), 200);
    assert_eq!(server.ask_without_token("GET", "/runs/one/report.html", &[], None).0, 401);
    for (method, path) in [
        ("GET", "/api/runs"),
        ("POST", "/api/runs"),
        ("DELETE", "/runs/one"),
        ("DELETE", "/api/runs/one"),
    ] {
        assert_eq!(with_cookie(method, path), 401, "{method} {path}");
    }
    assert!(place.exists());
}

/// The owner of a TCP connection cannot be found reliably: when the client has closed it, the kernel
/// attributes it to user 0. So a request that is handled after the client has gone counts no more
/// than others.
#[test]
fn queued_requests_of_a_client_that_has_gone_start_no_run() {
    let server = Server::start(&[]);
    // Returns the status, if the client waits for the answer.
    let attack = |headers: &str, has_gone: bool| {
        let queued: Vec<TcpStream> = (0..60)
            .map(|_| {
                let mut stream = TcpStream::connect(&server.address).unwrap();
                let request =
                    format!("GET /api/cases HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
                stream.write_all(request.as_bytes()).unwrap();
                stream
            })
            .collect();
        let body = format!("{}{}", json!({ "yaml": YAML }), " ".repeat(800 << 10));
        let mut stream = TcpStream::connect(&server.address).unwrap();
        let request = format!(
            "POST /api/runs HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            server.address,
            body.len()
        );
        // The server may refuse it before it has read all.
        let _ = stream.write_all(request.as_bytes());
        if has_gone {
            return None;
        }
        let mut answer = String::new();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = stream.read_to_string(&mut answer);
        drop(queued);
        answer.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok())
    };
    for _ in 0..8 {
        assert_eq!(attack("", true), None);
    }
    std::thread::sleep(Duration::from_secs(1));
    // The connection may be reset before the answer is read.
    assert!(attack("", false).is_none_or(|status| status == 401));
    assert_eq!(server.json("GET", "/api/runs", None).1, json!([]), "a run was started");
    // The same request with the token does start a run.
    let token = format!("Authorization: Bearer {}\r\n", server.token);
    assert_eq!(attack(&token, false), Some(201));
}

/// Requests of other pages are refused although they have the token; other users of this machine do
/// not have it.
#[test]
fn other_pages_and_users_are_refused() {
    let server = Server::start(&[]);
    let request_body = json!({ "yaml": YAML });
    let port = server.address.rsplit_once(':').unwrap().1.to_owned();
    for (headers, status) in [
        // A DNS-rebinding name, or a page of another origin.
        (vec!["Host: evil.example".to_owned()], 403),
        (vec![format!("Host: evil.example:{port}")], 403),
        (vec!["Origin: http://evil.example".to_owned()], 403),
        (vec!["Origin: null".to_owned()], 403),
        (vec![format!("Origin: https://127.0.0.1:{port}")], 403),
        (vec!["Sec-Fetch-Site: cross-site".to_owned()], 403),
        (vec!["Sec-Fetch-Site: same-site".to_owned()], 403),
    ] {
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        assert_eq!(
            server.ask("POST", "/api/runs", &headers, Some(&request_body)).0,
            status,
            "{headers:?}"
        );
        assert_eq!(server.ask("DELETE", "/api/runs/x", &headers, None).0, status, "{headers:?}");
        assert_eq!(server.ask("DELETE", "/runs/x", &headers, None).0, status, "{headers:?}");
    }
    // A form of another page can only send text.
    let text = "Content-Type: text/plain";
    assert_eq!(server.ask("POST", "/api/runs", &[text], Some(&request_body)).0, 415);
    let (_, runs) = server.json("GET", "/api/runs", None);
    assert_eq!(runs, json!([]), "a run was started");
    let own_origin = format!("Origin: http://127.0.0.1:{port}");
    assert_eq!(server.ask("DELETE", "/api/runs/x", &[&own_origin], None).0, 404);
    assert_eq!(server.ask("GET", "/api/runs", &["Sec-Fetch-Site: cross-site"], None).0, 200);
    // Neither this user nor another needs to be known by the kernel: only the token counts.
    assert_eq!(server.ask_without_token("GET", "/api/runs", &[&own_origin], None).0, 401);
}

#[test]
fn runs_can_be_quick_limited_to_a_test_compared_and_deleted() {
    let server = Server::start(&[]);
    let (_, test) = YAML.split_once("tests:\n").unwrap();
    let yaml = format!("{YAML}{}", test.replace("served", "other").replace("num: 4", "num: 60"));
    let start = |more: Value| {
        let mut request = json!({ "yaml": yaml });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, answer) = server.json("POST", "/api/runs", Some(&request));
        assert_eq!(status, 201, "{answer}");
        let name = answer["name"].as_str().unwrap().to_owned();
        wait_until_idle(&server);
        let (status, result) = server.json("GET", &format!("/api/runs/{name}"), None);
        assert_eq!(status, 200, "{result}");
        (name, result)
    };
    let (quick, result) = start(json!({ "only": "other", "quick": true }));
    let cases = result["cases"].as_array().unwrap();
    assert!(cases.len() == 1 && cases[0]["name"] == "other", "{cases:?}");
    let command: Vec<&str> =
        result["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(command.contains(&"--quick"), "{command:?}");
    let rate = cases[0]["measurements"][0]["series"][0]["points"].as_array().unwrap();
    assert!(rate.last().unwrap()[0].as_f64().unwrap() < 29.0, "not shortened: {rate:?}");
    let (whole, _) = start(json!({ "only": "served" }));
    let (again, _) = start(json!({ "only": "served" }));

    let pair = |a: &str, b: &str| format!("/api/compare?a={a}&b={b}");
    let (status, rows) = server.json("GET", &pair(&quick, &quick), None);
    assert!(status == 200 && rows.to_string().contains("throughput"), "{status} {rows}");
    let (status, text) =
        server.ask("GET", &format!("{}&text=true", pair(&quick, &quick)), &[], None);
    assert!(status == 200 && text.contains("throughput"), "{status} {text}");
    let (status, error) = server.json("GET", &pair(&quick, &whole), None);
    assert!(status == 400 && error["error"].as_str().unwrap().contains("common"), "{error}");
    assert_eq!(server.json("GET", &pair(&quick, ".."), None).0, 404);
    let (status, page) =
        server.ask("GET", &format!("/runs?run={quick}&run={whole}&run={quick}"), &[], None);
    assert!(status == 400 && page.contains("twice"), "{status} {page}");
    let (status, page) = server.ask("GET", &format!("/runs?run={quick}&run={whole}"), &[], None);
    assert!(status == 400 && page.contains("in common"), "{status} {page}");
    let (status, page) = server.ask("GET", &format!("/runs?run={whole}&run={again}"), &[], None);
    assert!(status == 200 && page.contains("<svg") && page.contains(&again), "{status} {page}");

    // Only runs are deleted, and only within the results directory.
    let results = server.folder.path().join("results");
    std::fs::create_dir(results.join("other")).unwrap();
    std::fs::write(results.join("other/file"), "x").unwrap();
    std::fs::create_dir(server.folder.path().join("outside")).unwrap();
    std::fs::write(server.folder.path().join("outside/result.json"), "{}").unwrap();
    std::os::unix::fs::symlink("../outside", results.join("link")).unwrap();
    for name in ["other", "link", "none", "..", "%2e%2e", "..%2foutside", "."] {
        let (status, answer) = server.ask("DELETE", &format!("/runs/{name}"), &[], None);
        assert!(status == 404 || status == 405, "{name}: {status} {answer}");
    }
    std::fs::remove_file(results.join("link")).unwrap();
    assert!(results.join("other/file").exists());
    assert!(server.folder.path().join("outside/result.json").exists());
    assert_eq!(
        server.json("DELETE", &format!("/runs/{quick}"), None),
        (200, json!({ "deleted": quick }))
    );
    assert!(!results.join(&quick).exists() && !results.join(format!("{quick}.yaml")).exists());
    let (_, runs) = server.json("GET", "/api/runs", None);
    let names: Vec<&str> =
        runs.as_array().unwrap().iter().filter_map(|run| run["name"].as_str()).collect();
    assert_eq!(names, [again.as_str(), whole.as_str()]);

    // A running run is not deleted.
    let yaml = YAML.replace("interval_num: 4", "interval_num: 4000");
    let (_, answer) = server.json("POST", "/api/runs", Some(&json!({ "yaml": yaml })));
    let running = answer["name"].as_str().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !results.join(running).exists() {
        assert!(Instant::now() < deadline, "the run did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.json("DELETE", &format!("/runs/{running}"), None).0, 409);
}
