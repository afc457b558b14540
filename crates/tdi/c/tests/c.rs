//! TDI clients in C: each compiles unchanged against this package's headers, with gcc and clang, and against the headers
//! of Windows' driver kit. They run over loopback and iWARP, under valgrind and with AddressSanitizer.

mod common;
#[allow(dead_code, reason = "its `main` is for the command line")]
#[path = "../../examples/tdi_echo.rs"]
mod tdi_echo;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use smbdirect::{Iwarp, rdma::iwarp::IwarpConfig};
use smbdirect_tdi::{Transport, TransportSettings};
use tokio::runtime::Builder;

use common::{available, check_with_driver_kit, compile, libraries, options, source};

/// What `examples/flags.c` prints.
const FLAGS: &str = r#"send "hello": 0x00000000, 5 bytes taken
the peer returned "hello"
send PARTIAL "in ": 0x00000000, 3 bytes taken
send PARTIAL "three ": 0x00000000, 6 bytes taken
send "parts": 0x00000000, 5 bytes taken
the peer returned "in three parts"
send EXPEDITED "urgent": 0x00000000, 6 bytes taken
the peer returned "urgent"
send NO_RESPONSE_EXPECTED "no hurry": 0x00000000, 8 bytes taken
the peer returned "no hurry"
send NON_BLOCKING "now or never": 0x00000000, 12 bytes taken
the peer returned "now or never"
send NON_BLOCKING until there is no room: 0xC00000A3
a send is possible
send NON_BLOCKING of the rest: 0x00000000
the peer returned all blocks
send PARTIAL NON_BLOCKING "normal ": 0x00000000, 7 bytes taken
send EXPEDITED PARTIAL "expedited ": 0x00000000, 10 bytes taken
send EXPEDITED NO_RESPONSE_EXPECTED "TSDU": 0x00000000, 4 bytes taken
the peer returned "expedited TSDU"
send "TSDU": 0x00000000, 4 bytes taken
the peer returned "normal TSDU"
send AND_DISCONNECT "bye": 0xC00000BB, 0 bytes taken
send "": 0xC000000D, 0 bytes taken
send "too late": 0xC0000140, 0 bytes taken
"#;
/// Longest time for a program, under valgrind too.
const TIME_LIMIT: Duration = Duration::from_secs(100);
/// The clients that run.
const CLIENTS: [&str; 11] = [
    "sends",
    "requests",
    "events",
    "chained",
    "callbacks",
    "returned",
    "memory",
    "addresses",
    "receives",
    "listens",
    "kernel",
];
const DEVICES: [&str; 2] = ["loopback", "iwarp"];
const VALGRIND: [&str; 6] = [
    "valgrind",
    "--quiet",
    "--error-exitcode=9",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(source().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .collect();
    assert!(!files.is_empty());
    files
}

/// Builds a program from a file of this package.
fn build(folder: &Path, file: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(Path::new(file).file_stem().unwrap());
    let mut arguments = options();
    arguments.extend(["-g", "-O1"].map(str::to_owned));
    arguments.extend(flags.iter().map(ToString::to_string));
    let file = source().join(file);
    arguments.extend([
        file.display().to_string(),
        "-L".to_owned(),
        libraries().display().to_string(),
    ]);
    arguments.extend(["-lsmbdirect_tdi_c", "-pthread", "-o"].map(str::to_owned));
    arguments.push(program.display().to_string());
    compile("cc", arguments);
    program
}

/// Returns the clients, compiled once.
fn clients() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if !available("cc") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in CLIENTS {
            build(folder.path(), &format!("tests/c/{name}.c"), &[]);
        }
        Some(folder)
    });
    folder.as_ref().map(tempfile::TempDir::path)
}

/// Runs a program by the words before it, and prints what it prints.
fn run(words: &[&str], program: &Path, device: &str) {
    let mut all: Vec<_> = words.iter().map(Into::into).collect();
    all.push(program.as_os_str().to_owned());
    let mut child = Command::new(&all[0])
        .args(&all[1..])
        .arg(device)
        .env("LD_LIBRARY_PATH", libraries())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + TIME_LIMIT;
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    // A program that has ended is not affected.
    let _ = child.kill();
    let (mut text, mut errors) = (String::new(), String::new());
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    let status = child.wait().unwrap();
    assert!(
        status.success(),
        "{program:?} {device}: {status}\n{text}\n{errors}"
    );
    print!("{text}");
}

fn run_all(name: &str) {
    let Some(folder) = clients() else { return };
    for device in DEVICES {
        run(&[], &folder.join(name), device);
    }
}

#[test]
fn clients_compile_against_headers_of_windows() {
    for file in [files("tests/c"), files("examples")].concat() {
        check_with_driver_kit(&file);
    }
}

#[test]
fn clients_compile_with_clang() {
    if !available("clang") {
        return;
    }
    for file in [files("tests/c"), files("examples")].concat() {
        let mut arguments = options();
        arguments.extend(["-fsyntax-only".to_owned(), file.display().to_string()]);
        compile("clang", arguments);
    }
}

//= TDI-SEND-01 test
//= TDI-SEND-02 test
//= TDI-SEND-03 test
//= TDI-SEND-04 test
//= TDI-SEND-05 test
//= TDI-SEND-07 test
//= TDI-SEND-08 test
//= TDI-SEND-09 test
//= TDI-SEND-12 test
//= TDI-SEND-14 test
//= TDI-SEND-15 test
//= TDI-SEND-16 test
//= TDI-SEND-17 test
//= TDI-SEND-18 test
//= TDI-SEND-20 test
//= TDI-SEND-21 test
//= TDI-SEND-22 test
//= TDI-SEND-23 test
//= TDI-SEND-24 test
//= TDI-SEND-25 test
//= TDI-SEND-28 test
//= TDI-SEND-29 test
//= TDI-SEND-30 test
//= TDI-SEND-31 test
//= TDI-SEND-32 test
//= TDI-SEND-34 test
//= TDI-RECV-09 test
//= TDI-RECV-17 test
//= TDI-DISC-03 test
//= TDI-QUERY-01 test
#[test]
fn sends_do_what_their_page_says() {
    run_all("sends");
}

//= TDI-SEND-26 test
//= TDI-SEND-33 test
//= TDI-RECV-01 test
//= TDI-RECV-02 test
//= TDI-RECV-03 test
//= TDI-RECV-04 test
//= TDI-RECV-05 test
//= TDI-CONN-01 test
//= TDI-CONN-02 test
//= TDI-CONN-09 test
//= TDI-CONN-10 test
//= TDI-ADDR-01 test
//= TDI-CLOSE-01 test
//= TDI-DISC-01 test
//= TDI-DISC-02 test
//= TDI-DISC-06 test
//= TDI-QUERY-02 test
//= TDI-STATUS-02 test
#[test]
fn requests_complete_as_by_windows() {
    run_all("requests");
}

//= TDI-SEND-10 test
//= TDI-RECV-10 test
//= TDI-RECV-11 test
//= TDI-RECV-12 test
//= TDI-RECV-13 test
//= TDI-RECV-14 test
//= TDI-CONN-00 test
//= TDI-CONN-06 test
//= TDI-DISC-09 test
#[test]
fn handlers_are_called_for_events() {
    run_all("events");
}

//= TDI-CHN-01 test
//= TDI-CHN-05 test
//= TDI-CHN-06 test
#[test]
fn chained_receives_lend_memory() {
    run_all("chained");
}

//= TDI-RECV-06 test
//= TDI-RECV-08 test
//= TDI-RECV-11 test
//= TDI-CHN-03 test
//= TDI-CHN-04 test
//= TDI-ADDR-02 test
//= TDI-DISC-08 test
#[test]
fn received_data_goes_to_one_receive_or_handler_in_order() {
    run_all("receives");
}

//= TDI-CONN-04 test
//= TDI-CONN-05 test
//= TDI-CONN-07 test
//= TDI-ADDR-02 test
//= TDI-DISC-05 test
#[test]
fn listens_accept_their_peers_in_order() {
    run_all("listens");
}

#[test]
fn handlers_and_routines_may_call_the_transport() {
    run_all("callbacks");
}

//= TDI-CONN-06 test
//= TDI-RECV-14 test
//= TDI-CLOSE-01 test
//= TDI-CLOSE-02 test
//= TDI-DISC-07 test
#[test]
fn requests_of_handlers_complete_once() {
    run_all("returned");
}

#[test]
fn parts_of_the_kernel_work() {
    run_all("kernel");
}

//= TDI-SEND-25 test
#[test]
fn memory_is_described_and_returned() {
    run_all("memory");
}

#[test]
fn clients_are_clean_under_valgrind() {
    let Some(folder) = clients() else { return };
    if !available("valgrind") {
        return;
    }
    for (index, name) in CLIENTS.into_iter().enumerate() {
        run(&VALGRIND, &folder.join(name), DEVICES[index % 2]);
    }
}

//= TDI-ADDR-01 test
#[test]
fn addresses_are_of_both_versions_and_shared() {
    run_all("addresses");
}

/// Connects to a process, ends that process, and checks that the client is told of it.
fn fail_the_link(words: &[&str], program: &Path) {
    let mut peer = Command::new(program)
        .env("LD_LIBRARY_PATH", libraries())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    let mut output = BufReader::new(peer.stdout.take().unwrap());
    output.read_line(&mut port).unwrap();
    let mut all: Vec<_> = words.iter().map(Into::into).collect();
    all.push(program.as_os_str().to_owned());
    let mut client = Command::new(&all[0])
        .args(&all[1..])
        .arg(port.trim())
        .env("LD_LIBRARY_PATH", libraries())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let connected = lines.next().and_then(Result::ok);
    peer.kill().unwrap();
    peer.wait().unwrap();
    assert_eq!(connected.as_deref(), Some("connected"));
    let rest: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(client.wait().unwrap().success(), "{rest:?}");
    assert!(rest.concat().starts_with("the link has failed"), "{rest:?}");
}

//= TDI-SEND-26 test
//= TDI-RECV-03 test
//= TDI-DISC-09 test
#[test]
fn failed_link_completes_everything_once() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = "tests/c/link.c";
    let program = build(folder.path(), file, &[]);
    fail_the_link(&[], &program);
    if available("valgrind") {
        fail_the_link(&VALGRIND, &program);
    }
    fail_the_link(&[], &build(folder.path(), file, &SANITIZERS));
}

/// The sanitizers detect uses of memory after the transport has returned it, double frees and leaks.
#[test]
fn clients_are_clean_under_sanitizers() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in CLIENTS {
        let program = build(folder.path(), &format!("tests/c/{name}.c"), &SANITIZERS);
        for device in DEVICES {
            run(&[], &program, device);
        }
    }
}

/// Threads make requests, cancel them and close their files concurrently. ThreadSanitizer cannot judge them, because it
/// does not know the locks of the library.
#[test]
fn threads_make_and_cancel_requests_concurrently() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let clients = source().join("tests/c").display().to_string();
    let program = build(
        folder.path(),
        "tests/stress/storm.c",
        &["-I", &clients, SANITIZERS[0], SANITIZERS[1]],
    );
    for device in DEVICES {
        run(&[], &program, device);
    }
}

//= TDI-RECV-06 test
//= TDI-RECV-08 test
//= TDI-RECV-10 test
//= TDI-DISC-08 test
//= TDI-DISC-09 test
//= TDI-CLOSE-01 test
//= TDI-CLOSE-02 test
#[test]
fn everything_comes_in_one_order_and_nothing_after_the_end() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let clients = source().join("tests/c").display().to_string();
    let program = build(folder.path(), "tests/stress/order.c", &["-I", &clients]);
    for device in ["loopback", "iwarp", "roce"] {
        run(&[], &program, device);
    }
}

#[test]
fn misuse_that_a_debugging_kernel_stops_ends_with_a_sentence() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let clients = source().join("tests/c").display().to_string();
    let program = build(folder.path(), "tests/stress/misuse.c", &["-I", &clients]);
    for misuse in [
        "IoCallDriver",
        "IoFreeIrp",
        "IoReuseIrp",
        "IoCompleteRequest",
        "KeLowerIrql",
        "KeRaiseIrql",
        "KeWaitForSingleObject",
        "KeDelayExecutionThread",
        "KeFlushQueuedDpcs",
        "assertion failed",
    ] {
        let output = Command::new(&program)
            .args(["loopback", misuse])
            .env("LD_LIBRARY_PATH", libraries())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_none(), "{misuse}: {text}");
        assert_eq!(text.lines().count(), 1, "{misuse}: {text}");
        assert!(text.contains(misuse), "{misuse}: {text}");
    }
}

/// Returns a port of this machine that no program uses.
fn free_port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap().port().to_string()
}

/// Sends with each flag from C to the package in Rust, which returns every TSDU.
#[test]
fn each_flag_works_between_c_and_rust() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = build(folder.path(), "examples/flags.c", &[]);
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let transport = Transport::new(provider, TransportSettings::default()).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let service = runtime
        .block_on(tdi_echo::serve(&transport, address))
        .unwrap();
    let client = Command::new(flags)
        .arg(service.local_addr().port().to_string())
        .env("LD_LIBRARY_PATH", libraries())
        .output()
        .unwrap();
    let text = String::from_utf8(client.stdout).unwrap();
    assert!(client.status.success(), "{text}");
    assert_eq!(text, FLAGS);
}

/// Sends with each flag from Rust to an echo server in C.
#[test]
fn each_flag_works_between_rust_and_c() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut server = Command::new(build(folder.path(), "examples/echo.c", &[]));
    let port = free_port();
    let mut server = server
        .arg(&port)
        .env("LD_LIBRARY_PATH", libraries())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let address = format!("127.0.0.1:{port}");
    let run = runtime.block_on(tdi_echo::run(&["connect", &address]));
    assert!(run.is_ok(), "{run:?}");
    assert!(server.wait().unwrap().success());
    assert!(lines.map_while(Result::ok).count() >= 5);
}

/// The examples over iWARP: a server that has event handlers only, and a client.
#[test]
fn examples_work_with_each_other() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let echo = build(folder.path(), "examples/echo.c", &[]);
    let hello = build(folder.path(), "examples/hello.c", &[]);
    let port = free_port();
    let mut server = Command::new(echo)
        .arg(&port)
        .env("LD_LIBRARY_PATH", libraries())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(
        lines.next().unwrap().unwrap(),
        format!("listening on 127.0.0.1:{port}")
    );
    let client = Command::new(hello)
        .arg(&port)
        .env("LD_LIBRARY_PATH", libraries())
        .output()
        .unwrap();
    let text = String::from_utf8(client.stdout).unwrap();
    assert!(text.ends_with("the answer is \"hello, world\"\n"), "{text}");
    assert!(server.wait().unwrap().success());
    let page = fs::read_to_string(source().join("../../../docs/tdi-c.md")).unwrap();
    assert!(page.contains(&text), "{text}");
}

/// The page links the client that `examples_work_with_each_other` runs, which is short.
#[test]
fn client_of_the_documentation_is_the_example() {
    let page = fs::read_to_string(source().join("../../../docs/tdi-c.md")).unwrap();
    assert!(page.contains("(../crates/tdi/c/examples/hello.c)"));
    let client = fs::read_to_string(source().join("examples/hello.c")).unwrap();
    assert!(client.lines().count() <= 60);
}

/// Returns the text of the source files with this extension in a folder and the folders in it.
fn sources(folder: &Path, extension: &str) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &sources(&path, extension);
        } else if path.extension().is_some_and(|end| end == extension) {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

/// Returns the numbers of a list like "35, 36, 61 to 64".
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.split(", ").map(|part| {
        let (first, last) = part.split_once(" to ").unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    ranges.flatten().collect()
}

/// The table of the page has every sentence, with requirements that the sentence belongs to, and with tests that exist.
#[test]
fn table_of_the_documentation_has_every_sentence_and_its_tests() {
    let root = source().join("../../..");
    let page = fs::read_to_string(root.join("docs/tdi-tests.md")).unwrap();
    let specification = fs::read_to_string(root.join("specs/tdi.toml")).unwrap();
    let clients = sources(&source().join("tests/c"), "c");
    let devices = sources(&source().join("src"), "rs");
    let rust = ["../src", "../tests"].map(|folder| sources(&source().join(folder), "rs"));
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| line.contains("| TDI-SEND-")) {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        seen.extend(numbers(cells[1]));
        for sentence in numbers(cells[1]) {
            let list = cells[3].strip_prefix("TDI-SEND-").unwrap();
            let is_of = |number: usize| {
                let id = format!("id = \"TDI-SEND-{number:02}\"");
                let (_, row) = specification.split_once(&id).unwrap();
                let row = row.split("[[requirement]]").next().unwrap();
                row.contains(&format!("\"003.{sentence}\""))
            };
            assert!(numbers(list).into_iter().any(is_of), "{sentence}: {line}");
        }
        let names = |cell: &str| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect()
        };
        let (in_c, in_rust): (Vec<_>, Vec<_>) = (names(cells[4]), names(cells[5]));
        for name in &in_c {
            let is_client = clients.contains(&format!(" {name}("));
            assert!(
                is_client || devices.contains(&format!("fn {name}(")),
                "{name}"
            );
        }
        for name in &in_rust {
            let function = format!("fn {name}(");
            assert!(rust.iter().any(|text| text.contains(&function)), "{name}");
        }
        let is_fact = |cell: &str| cell.starts_with("a statement of fact");
        assert!(
            !in_c.is_empty() || is_fact(cells[4]) || is_fact(cells[5]),
            "{line}"
        );
        assert!(!in_rust.is_empty() || is_fact(cells[5]), "{line}");
    }
    assert_eq!(seen, (1..=87).collect());
}
