//! Runs the command, with a time limit for every wait.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fmt, fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;
use smbdirect_test::decoded::Decoded;
pub(crate) use smbdirect_test::noise;

/// The time limit of a step.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_smbdirect");

pub(crate) fn command(arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env_remove("NO_COLOR")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // A console of its own, so that `kill` ends this process and not the tests. See .ci/windows.
    #[cfg(windows)]
    std::os::windows::process::CommandExt::creation_flags(&mut command, CREATE_NO_WINDOW);
    command
}

/// A flag of CreateProcess: the process has a console, which is not shown.
#[cfg(windows)]
const CREATE_NO_WINDOW: u32 = 0x0800_0000;

/// The result of a finished command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        assert!(self.status.success(), "{self:?}");
        assert_eq!(self.stderr, "");
        self
    }

    /// Asserts that it failed with `code` and one line on stderr.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, says: &str) -> &Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        assert!(self.stderr.starts_with("error: "), "{self:?}");
        assert!(self.stderr.contains(says), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn one_line(&self) {
        assert_eq!(self.stderr.lines().count(), 1, "{self:?}");
    }

    /// Returns stdout as one object per line, without what every object has: the time and the version.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        let mut events = self.stamped_json();
        for event in events.iter_mut().filter_map(Value::as_object_mut) {
            event.remove("time");
            event.remove("version");
        }
        events
    }

    /// Returns stdout as one object per line.
    #[track_caller]
    pub(crate) fn stamped_json(&self) -> Vec<Value> {
        let parse = |line| {
            let unique = serde_json::from_str::<Unique>(line);
            unique.unwrap_or_else(|error| panic!("{error}: {line}"));
            serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))
        };
        self.stdout.lines().map(parse).collect()
    }
}

/// JSON whose objects have no key twice. `Value` takes the last of two.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        let mut keys = HashSet::new();
        while let Some((key, _)) = object.next_entry::<String, Self>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format!("the key {key} is there twice")));
            }
            keys.insert(key);
        }
        Ok(self)
    }
}

impl Decoded for Done {
    #[track_caller]
    fn json(&self) -> Vec<Value> {
        self.json()
    }
}

/// A command that is running; dropping it kills it.
pub(crate) struct Running {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: Option<BufReader<ChildStderr>>,
    /// What was read of stderr.
    logged: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn start(arguments: &[impl AsRef<OsStr>]) -> Running {
    Running::new(command(arguments))
}

pub(crate) fn run(arguments: &[impl AsRef<OsStr>]) -> Done {
    start(arguments).finish()
}

impl Running {
    pub(crate) fn new(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        let stderr = child.stderr.take().map(BufReader::new);
        Self {
            child,
            stdout,
            stderr,
            logged: String::new(),
        }
    }

    /// Returns the next line of stdout.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        next_line(&mut self.stdout)
    }

    /// Waits for a line with this text in stderr.
    #[cfg(unix)]
    #[track_caller]
    pub(crate) fn logs(&mut self, text: &str) {
        loop {
            let line = next_line(&mut self.stderr);
            assert!(!line.is_empty(), "{text} is not in {}", self.logged);
            self.logged += &line;
            if line.contains(text) {
                return;
            }
        }
    }

    /// Types a line, if stdin is a pipe.
    #[track_caller]
    pub(crate) fn type_line(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin is a pipe");
        writeln!(stdin, "{line}").unwrap();
    }

    /// Writes bytes to stdin, which is a pipe.
    #[track_caller]
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.child.stdin.as_mut().expect("stdin is a pipe");
        stdin.write_all(bytes).unwrap();
    }

    pub(crate) fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn close_stdout(&mut self) {
        self.stdout = None;
    }

    /// Waits for the end of a command, and discards its output.
    #[track_caller]
    pub(crate) fn status(mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < STEP_TIMEOUT, "it ends in time");
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }

    #[track_caller]
    pub(crate) fn finish(self) -> Done {
        self.finish_within(STEP_TIMEOUT)
    }

    #[track_caller]
    pub(crate) fn finish_within(mut self, limit: Duration) -> Done {
        let mut stdout = self.stdout.take().expect("nobody else reads");
        let mut stderr = self.stderr.take().expect("nobody else reads");
        let logged = std::mem::take(&mut self.logged);
        let (sender, receiver) = mpsc::channel();
        let other = sender.clone();
        thread::spawn(move || {
            let mut text = String::new();
            let _ = stdout.read_to_string(&mut text);
            let _ = sender.send((true, text));
        });
        thread::spawn(move || {
            let mut text = logged;
            let _ = stderr.read_to_string(&mut text);
            let _ = other.send((false, text));
        });
        let mut texts = [String::new(), String::new()];
        for _ in 0..2 {
            let (is_stdout, text) = receiver.recv_timeout(limit).expect("it ends in time");
            texts[usize::from(!is_stdout)] = text;
        }
        let [stdout, stderr] = texts;
        let status = self.child.wait().unwrap();
        Done {
            status,
            stdout,
            stderr,
        }
    }
}

/// Returns the next line, which is empty at the end.
#[track_caller]
fn next_line<R: Read + Send + 'static>(stream: &mut Option<BufReader<R>>) -> String {
    let mut reader = stream.take().expect("nobody else reads");
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let result = reader.read_line(&mut line).map(|_| line);
        let _ = sender.send((reader, result));
    });
    let (reader, line) = receiver.recv_timeout(STEP_TIMEOUT).expect("a line in time");
    *stream = Some(reader);
    line.unwrap()
}

/// A `listen` on a port of its own.
pub(crate) struct Listening {
    pub(crate) running: Running,
    pub(crate) address: String,
}

pub(crate) fn listen(arguments: &[impl AsRef<OsStr>]) -> Listening {
    let mut command = command(&["listen", "127.0.0.1:0"]);
    command.args(arguments);
    listening(command)
}

#[track_caller]
pub(crate) fn listening(command: Command) -> Listening {
    Listening::of(Running::new(command))
}

impl Listening {
    /// Returns a command whose next line of output has the address on which it listens.
    #[track_caller]
    pub(crate) fn of(mut running: Running) -> Self {
        let first = running.line();
        let prefixes = ["listening on ", "{\"event\":\"listening\",\"address\":\""];
        let rest = prefixes
            .iter()
            .find_map(|prefix| first.strip_prefix(prefix));
        let rest = rest.unwrap_or_else(|| panic!("{first:?}"));
        let end = rest.find(['"', ' ', '\n']).unwrap_or(rest.len());
        let address = rest[..end].to_owned();
        Self { running, address }
    }

    #[track_caller]
    pub(crate) fn terminate(self) -> Done {
        self.running.signal("TERM");
        self.running.finish()
    }
}

pub(crate) fn write_noise(directory: &Path, name: &str, length: usize) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, noise(length, length as u64 + 1)).unwrap();
    path
}

pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let entries = fs::read_dir(directory).unwrap().map(name);
    let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits until another process has made `condition` true.
#[track_caller]
pub(crate) fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < STEP_TIMEOUT, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether this process, and those that it starts, ignore SIGHUP, as under nohup.
#[cfg(target_os = "linux")]
pub(crate) fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    u64::from_str_radix(mask.unwrap().trim(), 16).unwrap() & 1 == 1
}
