//! A headless Chromium, driven over a pipe in the DevTools protocol. It needs no port and no library, only JSON
//! messages that end with a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use conformance::{Ability, able};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::wait_for;

/// Names of the Chromium program, on Debian and elsewhere.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Time limit for one answer. A busy machine stays far below it; only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

/// Command that starts the browser. The protocol uses descriptors 3 and 4, which the shell makes of its input and
/// output.
const SHELL: &str = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null";

const FLAGS: [&str; 11] = [
    "--headless=new",
    "--remote-debugging-pipe",
    // Tests run as root in containers, where the sandbox cannot be set up; the only page opened is our own.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
];

/// One page in a browser of its own, which ends when this is dropped.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    calls: u64,
    session: Option<String>,
    /// Every event that the browser has reported.
    events: Vec<Value>,
    profile: TempDir,
}

impl Browser {
    /// Starts a browser; `None` where no Chromium is installed.
    pub(crate) fn start() -> Option<Self> {
        let found = |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|told| told.status.success());
        let program = NAMES.iter().find(found).ok_or("none is installed (Debian package chromium)");
        let program = able(Ability::Chromium, program)?;
        let profile = tempfile::tempdir().unwrap();
        let stderr = std::fs::File::create(profile.path().join("stderr")).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", SHELL, program])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = follow(child.stdout.take().unwrap());
        let mut browser = Self { child, to, from, calls: 0, session: None, events: Vec::new(), profile };
        let page = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": page["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Calls a method and waits for its result.
    #[track_caller]
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        write!(self.to, "{message}\0").unwrap();
        loop {
            let Ok(mut answer) = self.from.recv_timeout(HANG) else {
                let said = std::fs::read_to_string(self.profile.path().join("stderr")).unwrap();
                panic!("no answer to {method} from the browser:\n{said}");
            };
            if answer["id"] != self.calls {
                self.events.push(answer);
                continue;
            }
            assert!(answer.get("error").is_none(), "{method}: {answer}");
            return answer["result"].take();
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
    }

    /// Returns the value of an expression in the page.
    #[track_caller]
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let mut answer = self.call("Runtime.evaluate", json!({ "expression": expression, "returnByValue": true }));
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Returns the text of the first element that matches a selector; empty without one.
    #[track_caller]
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self.eval(&format!("document.querySelector({selector:?})?.innerText ?? ''"));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn wait(&mut self, expression: &str) {
        wait_for(expression, || {
            let held = self.eval(expression) == json!(true);
            if !held {
                std::thread::sleep(Duration::from_millis(20));
            }
            held.then_some(())
        });
    }

    /// One below the maximum of an eventfd's counter. The next write fills it, and a further one blocks.
    #[track_caller]
    pub(crate) fn click(&mut self, selector: &str) {
        let middle = self.eval(&format!(
            "(() => {{ const node = document.querySelector({selector:?}); node.scrollIntoView({{ block: 'center' }});
              const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": middle[0], "y": middle[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Presses and releases a key in the element with the focus.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Sets the size of the window, and the colour scheme that the reader's system prefers.
    pub(crate) fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// Saves the whole page as a PNG file in `SOLKV_SCREENSHOTS`, where that is set.
    pub(crate) fn shoot(&mut self, name: &str) {
        let Some(dir) = std::env::var_os("SOLKV_SCREENSHOTS") else { return };
        let shot = self.call("Page.captureScreenshot", json!({ "format": "png", "captureBeyondViewport": true }));
        let png = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, shot["data"].as_str().unwrap()).unwrap();
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.png")), png).unwrap();
    }

    /// Returns the browser's complaints so far: errors and warnings of the console, exceptions, refused contents.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.collect();
        let of = |event: &Value| {
            let (method, params) = (event["method"].as_str().unwrap_or_default(), &event["params"]);
            let bad = match method {
                "Runtime.exceptionThrown" => true,
                "Runtime.consoleAPICalled" => {
                    ["error", "warning", "assert"].contains(&params["type"].as_str().unwrap())
                }
                "Log.entryAdded" => ["error", "warning"].contains(&params["entry"]["level"].as_str().unwrap()),
                _ => false,
            };
            bad.then(|| params.to_string())
        };
        self.events.iter().filter_map(of).collect()
    }

    /// Returns the URLs requested so far.
    pub(crate) fn requests(&mut self) -> Vec<String> {
        self.collect();
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }

    /// Collects all events so far: the answer to this call comes after them.
    fn collect(&mut self) {
        self.eval("0");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // An error means that it has ended already, which is fine.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the browser's messages, read by a thread that ends with the browser.
fn follow(from: ChildStdout) -> Receiver<Value> {
    let (send, messages) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut message = Vec::new();
        while from.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
            message.pop();
            let Ok(value) = serde_json::from_slice(&message) else { return };
            if send.send(value).is_err() {
                return;
            }
            message.clear();
        }
    });
    messages
}
