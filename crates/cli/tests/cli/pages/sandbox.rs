//! Runs the commands of a page in namespaces of their own.

use std::{
    env,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::support::{PROGRAM, Running, STEP_TIMEOUT};

use super::markdown::{Mark, Page};

/// Names of other machines in the book. All of these names refer to this machine.
const HOSTS: &str = "127.0.0.1 localhost server.example client.example server fileserver SERVER HOST\n\
    ::1 localhost\n";

/// The time limit of a page in the long form of the test.
const LONG_TIMEOUT: Duration = Duration::from_secs(3600);

/// Begin of the script of a page. `serve NUMBER` starts a block and waits for its first line.
const FUNCTIONS: &str = r#"set -eu
ip link set lo up
mount --bind hosts /etc/hosts
servers=
serve() {
  sh -eu "block-$1.sh" >"out-$1" 2>"out-$1-errors" </dev/null &
  servers="$servers $!"
  for _ in $(seq 200); do
    kill -0 $!
    [ ! -s "out-$1" ] || return 0
    sleep 0.05
  done
  echo "no line within 10 s" >&2
  return 1
}
"#;

/// End of the script: every server still runs.
const END: &str = "for server in $servers; do kill -0 $server; done\n";

/// Returns whether this machine can run the commands of a page.
pub(super) fn is_available() -> bool {
    let status = unshare()
        .args([
            "sh",
            "-c",
            "ip link set lo up && mount --bind /etc/hosts /etc/hosts",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// Returns whether this machine has a program, or a file next to the command, such as a library that is built
/// on its own. `root` asks whether the test runs as root.
pub(super) fn has(need: &str) -> bool {
    if need == "root" {
        return is_root();
    }
    let paths = env::var_os("PATH").unwrap_or_default();
    let program = Path::new(PROGRAM).parent().map(Path::to_owned);
    let mut folders = env::split_paths(&paths).chain(program);
    folders.any(|folder| folder.join(need).exists())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

/// Runs the commands of a page, with those that take minutes if `long`, and returns the number of its blocks
/// that ran.
pub(super) fn run(page: &Page, long: bool) -> usize {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("hosts"), HOSTS).unwrap();
    let mut script = FUNCTIONS.to_owned();
    let mut blocks = 0;
    for block in &page.blocks {
        let call = match block.mark {
            Mark::Run | Mark::Hidden => "sh -eux block-",
            Mark::Serve => "serve ",
            Mark::Long if long => "sh -eux block-",
            Mark::Long | Mark::RunBy(_) | Mark::NotRun(_) | Mark::None => continue,
        };
        let file = if call == "serve " { "" } else { ".sh" };
        writeln!(script, "echo '== {}:{}'", page.path, block.line).unwrap();
        writeln!(script, "{call}{}{file}", block.line).unwrap();
        let name = format!("block-{}.sh", block.line);
        fs::write(folder.path().join(name), &block.commands).unwrap();
        blocks += 1;
    }
    script += END;
    fs::write(folder.path().join("page.sh"), script).unwrap();

    let helpers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/pages/bin");
    let program = Path::new(PROGRAM).parent().unwrap();
    let path = env::var("PATH").unwrap_or_default();
    let mut command = unshare();
    command
        .args(["sh", "page.sh"])
        .current_dir(folder.path())
        .env(
            "PATH",
            format!("{}:{}:{path}", helpers.display(), program.display()),
        )
        .env("HOME", folder.path())
        // The password of the users that start-samba creates.
        .env("SMBDIRECT_PASSWORD", "secret")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let limit = if long { LONG_TIMEOUT } else { STEP_TIMEOUT };
    let done = Running::new(command).finish_within(limit);
    let outputs = fs::read_dir(folder.path()).unwrap();
    let outputs: Vec<_> = outputs
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("out-"))
        .map(|entry| fs::read_to_string(entry.path()).unwrap_or_default())
        .collect();
    assert!(
        done.status.success(),
        "{} failed\n{}\n{}\nservers: {outputs:#?}",
        page.path,
        done.stdout,
        done.stderr
    );
    blocks
}
