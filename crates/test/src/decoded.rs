//! The events decoded from a capture, by the library or by the command, as JSON.

use serde_json::Value;

/// The objects of a decoded capture, the summary last.
pub trait Decoded {
    fn json(&self) -> Vec<Value>;
}

/// The objects of a kind.
pub fn events(decoded: &impl Decoded, kind: &str) -> Vec<Value> {
    let is = |line: &Value| line["event"] == kind;
    decoded.json().into_iter().filter(is).collect()
}

/// The decoded messages, without their positions in the file.
pub fn messages(decoded: &impl Decoded) -> Vec<Value> {
    without_positions(events(decoded, "message"))
}

/// All events without their positions in the file, and without the summary.
pub fn all(decoded: &impl Decoded) -> Vec<Value> {
    let mut lines = decoded.json();
    lines.retain(|line| line["event"] != "summary");
    without_positions(lines)
}

fn without_positions(mut lines: Vec<Value>) -> Vec<Value> {
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        line.remove("frame");
        line.remove("seconds");
    }
    lines
}

/// The names of the messages, in order.
pub fn names(decoded: &impl Decoded) -> Vec<String> {
    let name = |line: &Value| line["message"].as_str().unwrap().to_owned();
    events(decoded, "message").iter().map(name).collect()
}

/// Returns the violated rules, each once.
pub fn broken(decoded: &impl Decoded) -> Vec<String> {
    let summary = events(decoded, "summary").pop().expect("a summary");
    let rules = summary["broken"].as_array().unwrap();
    let rule = |rule: &Value| rule["rule"].as_str().unwrap().to_owned();
    rules.iter().map(rule).collect()
}
