//! The command line itself: help, versions, and usage errors.

use crate::support::{command, run};

#[test]
fn usage_errors_have_status_2() {
    for (arguments, says) in [
        (&["frobnicate"][..], "unrecognized subcommand"),
        (
            &["bench", "--what", "everything"],
            "invalid value 'everything'",
        ),
        (
            &["bench", "--sizes", "64,0"],
            "--sizes 0 is not within 1 to 8M",
        ),
        (&["bench", "--sizes", "9M"], "--sizes 9437184 is not within"),
        (
            &["bench", "--segment", "100"],
            "--segment 100 is too small; the minimum is 128",
        ),
        (&["bench", "--outstanding", "0"], "0 is not in 1..=128"),
        (&["bench", "--rounds", "0"], "at least 1"),
        (&["bench", "--time", "0"], "more than zero"),
        (
            &["bench", "--busy-poll", "--both"],
            "--busy-poll cannot be combined with --both",
        ),
        (
            &["bench", "--busy-poll", "--placement", "same-core"],
            "--busy-poll cannot be combined with --placement same-core",
        ),
        (
            &["bench", "localhost", "--transport", "loopback"],
            "stays within one process",
        ),
        (
            &["bench", "localhost", "--placement", "same-core"],
            "the other end is not on this machine",
        ),
        (
            &["bench", "--keep-awake", "--placement", "free"],
            "--keep-awake needs a core for each end",
        ),
        (&["bench", "localhost:0"], "port 0 cannot be connected to"),
        (&["bench", ":5446"], "has no host"),
        (&["bench", "--once"], "--serve"),
        (
            &["bench", "--congestion-control", "telepathy"],
            "--congestion-control telepathy: no such file",
        ),
        (
            &["bench", "--pcap", "x"],
            "--pcap cannot be used with bench",
        ),
        (
            &["bench", "--max-fragmented-size", "64K"],
            "--max-fragmented-size 65536 is too small",
        ),
        (&["listen"], "--echo|--sink|--memory <SIZE>"),
        (&["listen", "--echo", "--sink"], "cannot be used with"),
        (
            &["listen", "--echo", "--once", "--count", "2"],
            "cannot be used with",
        ),
        (&["listen", "--echo", "--count", "0"], "at least 1"),
        (&["listen", "5445", "--echo"], "has no host"),
        (
            &["listen", "--echo", "--transport", "rdma"],
            "invalid value 'rdma'",
        ),
        (
            &["listen", "--echo", "--transport", "loopback"],
            "only `smbdirect demo` can use it",
        ),
        (&["gateway", ":0"], "<UPSTREAM>"),
        (&["gateway", ":0", ":445"], "has no host"),
        (
            &["gateway", ":0", "localhost:0"],
            "port 0 cannot be connected to",
        ),
        (
            &["gateway", ":0", "localhost", "--from", "udp"],
            "invalid value 'udp'",
        ),
        (
            &["gateway", ":0", "localhost", "--max-connections", "0"],
            "at least 1",
        ),
        (
            &["gateway", ":0", "localhost", "--from", "tcp", "--pcap", "x"],
            "--pcap cannot capture",
        ),
        (&["ping"], "<ADDR>"),
        (&["ping", "::1::"], "IPv6"),
        (&["ping", ":5445"], "has no host"),
        (&["ping", "localhost:99999"], "not a port"),
        (&["ping", "localhost", "--size", "5"], "--size needs --echo"),
        (
            &["ping", "localhost", "--timeout", "5"],
            "--timeout needs --echo",
        ),
        (&["ping", "127.0.0.1:0"], "port 0 cannot be connected to"),
        (
            &["ping", "http://host"],
            "an address is HOST[:PORT]; IPv6 with a port is [IPv6]:PORT",
        ),
        (
            &["ping", "localhost", "--echo", "--size", "0"],
            "at least 1",
        ),
        (&["ping", "localhost", "--count=-1"], "--count"),
        (
            &["ping", "localhost", "--interval", "often"],
            "number of seconds",
        ),
        (
            &["ping", "localhost", "--connect-timeout", "0"],
            "more than zero",
        ),
        (
            &["ping", "localhost", "--transport", "loopback"],
            "only `smbdirect demo` can use it",
        ),
        (
            &["demo", "--max-send-size", "127"],
            "--max-send-size 127 is too small; the minimum is 128",
        ),
        (
            &["demo", "--max-receive-size", "1"],
            "--max-receive-size 1 is too small",
        ),
        (
            &["demo", "--max-fragmented-size", "127K"],
            "--max-fragmented-size 130048 is too small",
        ),
        (
            &["demo", "--max-read-write-size", "63K"],
            "--max-read-write-size 64512 is too small",
        ),
        (
            &["demo", "--send-credit-target", "0"],
            "--send-credit-target",
        ),
        (
            &["demo", "--receive-credit-max", "65536"],
            "--receive-credit-max",
        ),
        (
            &["demo", "--max-send-size", "8T"],
            "a size is a number of bytes",
        ),
        (&["demo", "--max-send-size", "4G"], "the maximum is"),
        (&["demo", "--keepalive-interval", "0"], "more than zero"),
        (
            &["demo", "--keepalive-response-timeout", "0"],
            "more than zero",
        ),
        (&["demo", "--credit-grant-timeout", "0"], "more than zero"),
        (
            &["listen", "--sink", "--negotiation-timeout", "0"],
            "more than zero",
        ),
        (
            &["ping", "localhost", "--negotiation-timeout", "1"],
            "unexpected argument",
        ),
        (&["get", "server/share/a"], "a path on a server is //SERVER"),
        (&["get", "//server/share"], "is a folder"),
        (&["put", ".", "//server/share"], "is not a regular file"),
        (&["get", "//server"], "a path on a server is //SERVER"),
        (&["ls", "//"], "a path on a server is //SERVER"),
        (
            &["ls", "//server/share", "--kerberos", "--user", "me"],
            "cannot be used with",
        ),
        (
            &["ls", "//server/share", "--password-fd", "0"],
            "--password-fd needs --user",
        ),
        (
            &["get", "smb://me:hidden@server/share/f"],
            "a URL with a password is refused",
        ),
        (
            &["ls", "smb://me@server/share", "--user", "you"],
            "the URL has a user",
        ),
        (&["ls", "smb://me@server/share", "-k"], "the URL has a user"),
        (
            &["ls", "//server/share", "--transport", "loopback"],
            "stays within one process",
        ),
        (&["demo", "--profile", "macos"], "invalid value 'macos'"),
        (&["demo", "--mpa-crc", "maybe"], "invalid value 'maybe'"),
        (&["demo", "--mpa-alignment", "on"], "invalid value 'on'"),
        (&["demo", "--mpa-revision", "0"], "0 is not in 1..=2"),
        (&["demo", "--mpa-revision", "3"], "3 is not in 1..=2"),
        (&["listen", "--sink", "--ird", "0"], "0 is not in 1..=128"),
        (
            &["ping", "localhost", "--ord", "129"],
            "129 is not in 1..=128",
        ),
        (&["demo", "--revision", "2018"], "invalid value '2018'"),
        (
            &["demo", "--pcap", "x", "--transport", "loopback"],
            "--pcap",
        ),
    ] {
        let done = run(arguments);
        // Only on Linux the command can pin threads to cores, and choose the congestion control.
        if cfg!(not(target_os = "linux")) && arguments.contains(&"telepathy") {
            done.failed(2, "this system offers no choice");
            continue;
        }
        let pins = cfg!(target_os = "linux") || !arguments.contains(&"same-core");
        let says = if pins {
            says
        } else {
            "this system cannot pin threads"
        };
        done.failed(2, says);
        assert_eq!(done.stdout, "", "{arguments:?}");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    for command in ["demo", "listen", "ping", "get", "put", "ls"] {
        let done = run(&[command, "--help"]).succeeded();
        assert!(
            done.stdout.contains("Examples:\n  smbdirect "),
            "{}",
            done.stdout
        );
        assert!(done.stdout.contains("With --json:"), "{}", done.stdout);
        for row in [
            "\n                             default   windows     linux\n",
            "\n  --send-credit-target           255       255       255\n",
            "\n  --max-send-size               8136      1364      1364\n",
            "\n  --max-receive-size            8192      8192      1364\n",
            "\n  --max-fragmented-size      1048576   1048576    173910\n",
            "\n  --keepalive-interval           120       120       120\n",
        ] {
            assert!(done.stdout.contains(row), "{row}{}", done.stdout);
        }
        assert!(!done.stdout.contains('\x1b'));
        let short = |line: &str| line.chars().count() <= 100;
        assert!(done.stdout.lines().all(short), "{}", done.stdout);
    }
    let done = run(&["--help"]).succeeded();
    for command in ["demo", "listen", "ping", "get", "put", "ls"] {
        assert!(
            done.stdout.contains(&format!("\n  {command} ")),
            "{}",
            done.stdout
        );
    }
    run(&["--version"]).succeeded();
    run(&["help"]).succeeded();
    let by_name = run(&["help", "demo"]).succeeded().stdout;
    assert_eq!(by_name, run(&["demo", "--help"]).succeeded().stdout);
}

/// The commands that `smbdirect --help` lists.
fn commands() -> Vec<String> {
    let help = run(&["--help"]).succeeded().stdout;
    let lines = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names
        .filter(|name| !["", "help"].contains(name))
        .map(str::to_owned)
        .collect()
}

/// Lines of a terminal that short help may fill.
const MAX_SHORT_HELP_LINES: usize = 50;

#[test]
fn short_help_fits_a_screen_and_long_help_has_everything() {
    let commands = commands();
    assert!(commands.len() > 10, "{commands:?}");
    let mut lines = vec![vec!["-h"]];
    lines.extend(commands.iter().map(|name| vec![name.as_str(), "-h"]));
    lines.push(vec!["gateway", "ctl", "-h"]);
    for arguments in lines {
        for columns in ["80", "100"] {
            let output = command(&arguments).env("COLUMNS", columns).output();
            let text = String::from_utf8(output.unwrap().stdout).unwrap();
            let count = text.lines().count();
            assert!(count <= MAX_SHORT_HELP_LINES, "{count} lines:\n{text}");
            assert!(!text.contains("With --json:"), "{text}");
            assert!(text.contains("Examples:\n  "), "{text}");
        }
    }
    for name in commands {
        let long = run(&[&name, "--help"]).succeeded().stdout;
        let short = run(&[&name, "-h"]).succeeded().stdout;
        let has_settings = long.contains("--profile <PROFILE>");
        assert_eq!(
            has_settings,
            long.contains("\nConnection settings:\n"),
            "{long}"
        );
        assert!(!short.contains("Connection settings"), "{short}");
    }
    let gateway = run(&["gateway", "-h"]).succeeded().stdout;
    assert!(gateway.contains("\n  ctl "), "{gateway}");
    let ctl = run(&["help", "gateway", "ctl"]).succeeded().stdout;
    assert!(ctl.contains("With --json:"), "{ctl}");
    let whole = run(&["--help"]).succeeded().stdout;
    for heading in ["Exit status:", "Environment:"] {
        assert!(whole.contains(&format!("\n{heading}\n")), "{whole}");
    }
}

/// `--force` writes files, not devices, FIFOs or sockets.
#[cfg(unix)]
#[test]
fn get_writes_only_files() {
    use std::os::unix::{fs::FileTypeExt, net::UnixListener};

    let root = tempfile::tempdir().unwrap();
    let socket = root.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let path = socket.to_str().unwrap();
    let done = run(&["get", "//127.0.0.1:1/share/a", path, "--force"]);
    done.failed(1, "is no regular file");
    assert!(socket.metadata().unwrap().file_type().is_socket());
}

/// Colour is used on terminals only, and not with NO_COLOR.
#[cfg(target_os = "linux")]
#[test]
fn colour_where_it_is_wanted() {
    use std::process::{Command, Stdio};

    use crate::support::PROGRAM;

    let demo = format!("{PROGRAM} demo Cargo.toml --transport loopback");
    for (no_color, coloured) in [(None, true), (Some("1"), false), (Some(""), true)] {
        let mut script = Command::new("script");
        script
            .args(["-qec", &demo, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        script.envs(no_color.map(|value| ("NO_COLOR", value)));
        let Ok(output) = script.stdin(Stdio::null()).output() else {
            eprintln!("skipped: there is no `script` to make a terminal");
            return;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("every byte arrived"), "{text}");
        assert_eq!(text.contains("\x1b["), coloured, "{no_color:?}: {text}");
    }
}
