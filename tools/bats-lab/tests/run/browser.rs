//! A headless browser, controlled through a pipe with the DevTools protocol: JSON messages, each
//! terminated by a zero byte.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest time for the start of the browser on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest time for a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the installed browser, if there is one.
pub(crate) fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    names.iter().find_map(|name| {
        places.iter().map(|folder| folder.join(name)).find(|place| place.is_file())
    })
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: Option<File>,
    from: Receiver<Value>,
    session: String,
    number: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) fn start(program: &PathBuf) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let (near, far) = (profile.path().join("in"), profile.path().join("out"));
        for pipe in [&near, &far] {
            assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
        }
        // The browser reads from file descriptor 3 and writes to 4.
        let child = Command::new("sh")
            .args(["-c", "exec 3<\"$1\" 4>\"$2\"; shift 2; exec \"$@\"", "sh"])
            .args([&near, &far])
            .arg(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let to = File::options().write(true).open(&near).unwrap();
        let mut messages = BufReader::new(File::open(&far).unwrap());
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while messages.read_until(0, &mut message).is_ok_and(|count| count > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                if sender.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let session = String::new();
        let mut browser = Self { child, to: Some(to), from, session, number: 0, _profile: profile };
        let target = browser.ask_within(
            "Target.createTarget",
            json!({ "url": "about:blank" }),
            START_TIMEOUT,
        );
        let id = &target["targetId"];
        let session =
            browser.ask("Target.attachToTarget", json!({ "targetId": id, "flatten": true }));
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser.ask("Page.enable", json!({}));
        browser
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.ask_within(method, parameters, REPLY_TIMEOUT)
    }

    fn ask_within(&mut self, method: &str, parameters: Value, time: Duration) -> Value {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.as_mut().unwrap().write_all(&bytes).unwrap();
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let reply = self.from.recv_timeout(left).unwrap_or_else(|_| {
                panic!("the browser did not answer {method} in {} s", time.as_secs())
            });
            if reply["id"] == self.number {
                assert!(reply["error"].is_null(), "{method}: {reply}");
                return reply["result"].clone();
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.ask("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{opened}");
    }

    /// Evaluates an expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let reply = self.ask(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(reply["exceptionDetails"].is_null(), "{expression}: {reply}");
        reply["result"]["value"].clone()
    }

    /// Waits until an expression becomes true in the page.
    pub(crate) fn until(&mut self, expression: &str, time: Duration) {
        let deadline = Instant::now() + time;
        while self.value(&format!("Boolean({expression})")) != true {
            if Instant::now() > deadline {
                let page = self.value("document.body.innerText");
                panic!("`{expression}` did not become true: {page}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Clicks in the middle of an element, after scrolling to it.
    pub(crate) fn click(&mut self, selector: &str) {
        let place = self.value(&format!(
            "(() => {{ const one = document.querySelector({selector:?}); \
             one.scrollIntoView({{ block: 'center' }}); const box = one.getBoundingClientRect(); \
             return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }}; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            self.ask(
                "Input.dispatchMouseEvent",
                json!({
                    "type": kind, "x": place["x"], "y": place["y"], "button": "left",
                    "clickCount": 1,
                }),
            );
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser exits when its pipe is closed.
        self.to = None;
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
