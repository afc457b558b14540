//! Programs in C: the examples with each other and with those in Rust and Python, misuse, threads, and fork.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

/// Longest time for a program, under valgrind too.
const TIME_LIMIT: Duration = Duration::from_secs(100);

fn source() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder of the libraries, which cargo has built next to this test.
fn libraries() -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap().to_owned();
    assert!(folder.join("libsmbdirect_capi.so").exists(), "{folder:?}");
    folder
}

/// Returns whether a tool can be run. In the gate it has to be.
fn available(tool: &str) -> bool {
    let found = Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{tool} is missing"
        );
        eprintln!("skipped: {tool} is missing");
    }
    found
}

/// Compiles a program with all warnings as errors, and returns its path.
fn compile(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(Path::new(name).file_stem().unwrap());
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
            "-g",
            "-O1",
        ])
        .args(flags)
        .arg(source().join(name))
        .arg("-I")
        .arg(source().join("include"))
        .arg("-I")
        .arg(source().join("examples"))
        .arg("-L")
        .arg(libraries())
        .args(["-lsmbdirect_capi", "-pthread", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {text}");
    program
}

/// The programs of this test, compiled once.
fn programs() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<tempfile::TempDir>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if !available("cc") {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["echo", "rdma", "select_loop"] {
            compile(folder.path(), &format!("examples/{name}.c"), &[]);
        }
        for name in [
            "misuse", "fork", "threads", "stream", "wakeups", "sigpipe", "layout", "storm",
            "ending", "waits", "pauses", "cut",
        ] {
            compile(folder.path(), &format!("tests/c/{name}.c"), &[]);
        }
        Some(folder)
    });
    folder.as_ref().map(tempfile::TempDir::path)
}

fn start(command: &mut Command) -> Child {
    command
        .env("LD_LIBRARY_PATH", libraries())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for the end of a program and returns its output, which was read to `seen` already.
fn finish(mut child: Child, name: &str, mut seen: String) -> String {
    let deadline = Instant::now() + TIME_LIMIT;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{name} did not end: {seen}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut seen).unwrap();
    }
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{name}: {status}\n{seen}\n{errors}");
    seen
}

fn run(name: &str) {
    let Some(folder) = programs() else {
        return;
    };
    let child = start(&mut Command::new(folder.join(name)));
    print!("{}", finish(child, name, String::new()));
}

/// Returns the command of one end of an example, run by `tool` if there is one.
fn end(folder: &Path, name: &str, tool: &[&str]) -> Command {
    let mut words: Vec<_> = tool.iter().map(Into::into).collect();
    words.push(folder.join(name).into_os_string());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Returns the command of an end of an example in Python, or `None` without Python.
fn python_end(name: &str) -> Option<Command> {
    let package = source().join("../../python");
    if !available("python3") || !package.exists() {
        return None;
    }
    let mut command = Command::new("python3");
    command
        .args(["-B", "-W", "error"])
        .arg(package.join(format!("examples/{name}.py")))
        .env("PYTHONPATH", package.join("src"))
        .env(
            "SMBDIRECT_LIBRARY",
            libraries().join("libsmbdirect_capi.so"),
        );
    Some(command)
}

/// Returns the path of a program of another package, which cargo builds with the workspace.
fn built(program: &str) -> Option<PathBuf> {
    let path = libraries().join("..").join(program);
    if !path.exists() {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{path:?} is missing"
        );
        eprintln!("skipped: {path:?} is missing; cargo test --workspace builds it");
        return None;
    }
    Some(path)
}

/// Returns the commands of an end of an example in each language that this machine has.
fn ends(name: &str) -> Vec<(&'static str, Command)> {
    let c = programs().map(|folder| end(folder, name, &[]));
    let rust = built(&format!("examples/{name}")).map(Command::new);
    let languages = [("C", c), ("Rust", rust), ("Python", python_end(name))];
    let found = languages
        .into_iter()
        .filter_map(|(language, command)| Some((language, command?)));
    found.collect()
}

/// Starts the listening end of an example, or the command, and returns its address and its further output.
fn start_listening(listen: &mut Command) -> (Child, String, BufReader<ChildStdout>) {
    let mut listener = start(listen);
    let mut stdout = BufReader::new(listener.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let address = line.trim_end().strip_prefix("listening on ");
    let address = address.unwrap_or_else(|| panic!("{listen:?}: {line:?}"));
    (listener, address.to_owned(), stdout)
}

/// Runs both ends of an example by a transport, and returns what they have printed.
fn run_ends(name: &str, transport: &str, mut listen: Command, mut connect: Command) -> String {
    // The examples without a third argument use iWARP. RoCE has an address of its own, whose UDP port no other test
    // uses.
    let (address, third) = match transport {
        "iwarp" => ("127.0.0.1:0", None),
        _ => ("127.0.77.1:0", Some(transport)),
    };
    let listen = listen.args(["listen", address]).args(third);
    let (listener, address, mut stdout) = start_listening(listen);
    let client = start(connect.args(["connect", &address]).args(third));
    let said = finish(client, name, String::new());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let served = finish(listener, name, rest);
    assert!(!said.is_empty() && !served.is_empty());
    said + &served
}

/// Runs an example with itself.
fn run_pair(name: &str, tool: &[&str]) {
    let Some(folder) = programs() else {
        return;
    };
    let printed = run_ends(
        name,
        "iwarp",
        end(folder, name, tool),
        end(folder, name, tool),
    );
    println!("{printed}");
}

/// The script that installs the library has settings and no arguments, so an argument installs nothing.
#[test]
fn an_argument_of_the_install_script_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(source().join("install"))
        .arg("--help")
        .env("DESTDIR", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stderr.starts_with(b"usage: "), "{output:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Each end of the examples in C, Rust and Python works with the other end in each language, by iWARP and by RoCE.
#[test]
fn examples_in_all_languages_work_with_each_other() {
    for (name, line) in [
        ("echo", "1000000 bytes came back"),
        ("rdma", "and wrote 524288"),
    ] {
        let count = ends(name).len();
        let pairs = (0..count).flat_map(|listening| (0..count).map(move |it| (listening, it)));
        for (listening, connecting) in pairs {
            for transport in ["iwarp", "roce"] {
                let (listener, listen) = ends(name).swap_remove(listening);
                let (client, connect) = ends(name).swap_remove(connecting);
                let pair = format!("{name} by {transport}, {client} to {listener}");
                let said = run_ends(&pair, transport, listen, connect);
                assert!(said.contains(line), "{pair}: {said}");
                println!("{pair}: works");
            }
        }
    }
}

/// A call that fails has the text of the command for the same fault, which names the address and what to try.
#[test]
fn errors_are_those_of_the_command() {
    let (Some(folder), Some(command)) = (programs(), built("smbdirect")) else {
        return;
    };
    let other_service = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other_service.local_addr().unwrap().to_string();
    thread::spawn(move || other_service.incoming().for_each(drop));
    let failed = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{command:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        let (_, text) = text.trim_end().split_once(": ").unwrap();
        // Each interface has names of its own for the setting that may help.
        let text = text.strip_suffix(')').unwrap_or(text);
        text.split(" (--").next().unwrap().to_owned()
    };
    for (role, address, transport, cure) in [
        ("connect", "127.0.0.1:1", "iwarp", "check the port"),
        ("connect", &*taken, "iwarp", "is it an SMB Direct listener?"),
        ("connect", "name.invalid", "iwarp", "check the name"),
        ("connect", "127.0.77.2:1", "roce", "start one there"),
        ("listen", &*taken, "iwarp", "give another port"),
        (
            "listen",
            "192.0.2.1:5445",
            "iwarp",
            "not an address of this",
        ),
        ("listen", "192.0.2.1:445", "roce", "not an address of this"),
    ] {
        let words: &[_] = match role {
            "connect" => &["ping"],
            _ => &["listen", "--echo"],
        };
        let mut like = Command::new(&command);
        let like = like.args(words).args([address, "--transport", transport]);
        let of_command = failed(like);
        let mut program = end(folder, "echo", &[]);
        let program = program.env("LD_LIBRARY_PATH", libraries());
        let of_library = failed(program.args([role, address, transport]));
        assert!(
            of_library.starts_with(&of_command),
            "{of_library}\n{of_command}"
        );
        assert!(of_library.contains(cure), "{of_library}");
        println!("{of_library}");
    }
}

/// One thread in C serves two connections concurrently by `select`: its own other end, and an example in Rust
/// together with one in Python.
#[test]
fn select_loop_serves_two_connections() {
    run_pair("select_loop", &[]);
    let Some(folder) = programs() else {
        return;
    };
    let mut clients = ends("echo");
    if clients.len() == 3 {
        clients.remove(0);
    }
    if clients.len() != 2 {
        return;
    }
    let mut listen = end(folder, "select_loop", &[]);
    let (listener, address, mut stdout) = start_listening(listen.args(["listen", "127.0.0.1:0"]));
    let clients = clients.into_iter().map(|(language, mut connect)| {
        let client = start(connect.args(["connect", &address]));
        (language, client)
    });
    for (language, client) in clients.collect::<Vec<_>>() {
        let said = finish(client, language, String::new());
        assert!(said.contains("1000000 bytes came back"), "{said}");
    }
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    let served = finish(listener, "select_loop", rest);
    assert!(served.contains("messages of 2 connections"), "{served}");
}

/// The command is the other end of the connecting examples: it returns the messages of the first ones, and has
/// memory for the second ones.
#[test]
fn examples_work_with_the_command() {
    let (Some(folder), Some(command)) = (programs(), built("smbdirect")) else {
        return;
    };
    let mut clients: Vec<_> = ends("echo")
        .into_iter()
        .map(|(language, connect)| ("--echo", language, connect, "1000000 bytes came back"))
        .collect();
    let select_loop = end(folder, "select_loop", &[]);
    clients.push((
        "--echo",
        "C, select",
        select_loop,
        "200 messages came back on each of 2",
    ));
    let with_memory = ends("rdma").into_iter();
    clients.extend(with_memory.map(|(language, connect)| {
        (
            "--memory=300001",
            language,
            connect,
            "read 300001 bytes and wrote 150001",
        )
    }));
    for (mode, language, mut connect, line) in clients {
        let mut listen = Command::new(&command);
        let (mut listener, address, _stdout) =
            start_listening(listen.args(["listen", "127.0.0.1:0", mode]));
        let client = start(connect.args(["connect", &address]));
        let said = finish(client, language, String::new());
        assert!(said.contains(line), "{mode}, {language}: {said}");
        println!("smbdirect listen {mode}, {language}: works");
        listener.kill().unwrap();
        listener.wait().unwrap();
    }
}

#[test]
fn examples_are_clean_under_valgrind() {
    if !available("valgrind") {
        return;
    }
    let tool = [
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    for name in ["rdma", "select_loop"] {
        run_pair(name, &tool);
    }
}

/// The sanitizers detect invalid uses of the library's memory, double frees and leaks.
#[test]
fn programs_are_clean_under_sanitizers() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for name in ["misuse", "threads", "stream", "storm", "ending"] {
        let program = compile(folder.path(), &format!("tests/c/{name}.c"), &flags);
        print!(
            "{}",
            finish(start(&mut Command::new(program)), name, String::new())
        );
    }
    compile(folder.path(), "examples/rdma.c", &flags);
    let printed = run_ends(
        "rdma",
        "iwarp",
        end(folder.path(), "rdma", &[]),
        end(folder.path(), "rdma", &[]),
    );
    println!("{printed}");
}

/// Every call may be made from several threads at once. ThreadSanitizer finds races in the program: in memory that the
/// library is lent or returns, and in the arguments of callbacks. It does not look into the library, whose locks it
/// does not know without a standard library that was built for it.
#[test]
fn threads_call_everything_without_races() {
    run("storm");
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["storm", "threads"] {
        let program = compile(
            folder.path(),
            &format!("tests/c/{name}.c"),
            &["-fsanitize=thread"],
        );
        let suppressions = source().join("tsan.supp");
        let mut command = Command::new(program);
        command.env(
            "TSAN_OPTIONS",
            format!("suppressions={}:halt_on_error=1", suppressions.display()),
        );
        print!("{}", finish(start(&mut command), name, String::new()));
    }
}

/// Messages that a program reported as sent arrive, also when the program ends.
#[test]
fn messages_arrive_when_a_program_ends() {
    run("ending");
}

/// The end of a handle, and a signal, end every call that waits; pthread_cancel does not.
#[test]
fn calls_that_wait_end() {
    run("waits");
}

/// The end in the middle of a message is an error.
#[test]
fn end_within_a_message_is_an_error() {
    run("cut");
}

/// An end that pauses loses nothing. PAUSE_MS in the environment makes the pauses longer, up to 30 s.
#[test]
fn messages_wait_for_a_receiver_that_pauses() {
    run("pauses");
}

#[test]
fn misuse_fails_with_a_status_code() {
    run("misuse");
}

#[test]
fn forked_process_has_connections_of_its_own() {
    run("fork");
}

#[test]
fn descriptors_lose_no_event() {
    run("wakeups");
}

#[test]
fn peer_that_is_gone_raises_no_signal() {
    run("sigpipe");
}

#[test]
fn connection_is_a_socket() {
    run("stream");
}

#[test]
fn threads_share_a_connection() {
    run("threads");
}

/// Compares the sizes and offsets of all public structures with the committed ones, on 64-bit machines.
#[test]
fn layouts_stay_as_committed() {
    let Some(folder) = programs() else {
        return;
    };
    let child = start(&mut Command::new(folder.join("layout")));
    let layout = finish(child, "layout", String::new());
    let path = source().join("tests/c/layout.txt");
    if env::var_os("SMBDIRECT_BLESS").is_some() {
        fs::write(path, layout).unwrap();
        return;
    }
    assert_eq!(
        layout,
        fs::read_to_string(path).unwrap(),
        "the binary interface has changed"
    );
}

#[test]
fn header_is_valid_in_cpp() {
    if !available("c++") {
        return;
    }
    let status = Command::new("c++")
        .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++"])
        .arg(source().join("include/smbdirect.h"))
        .status()
        .unwrap();
    assert!(status.success());
}
