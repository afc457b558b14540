//! iWARP against Linux: a guest with ksmbd over siw, booted as an ordinary process in a network
//! namespace of its own, and `smbdirect ping` connecting to it in every way.
//!
//! Prints the reason and skips without the lab, or without the right to create a namespace.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// A guest. Dropping it ends the guest and removes its network.
struct Guest {
    namespace: String,
    /// The directory that the guest mounts as /lab.
    shared: TempDir,
    process: Option<Child>,
}

impl Guest {
    /// Boots a guest with ksmbd on 10.77.0.2, and `words` on the kernel's command line.
    fn boot(words: &[&str]) -> Option<Self> {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/lab");
        let Ok(lab) = lab.canonicalize() else {
            eprintln!("skipped: no lab next to the repository");
            return None;
        };
        let shared = TempDir::new().unwrap();
        // At most eight characters.
        let namespace = format!("s{}", std::process::id() % 10_000_000);
        let mut guest = Self {
            namespace,
            shared,
            process: None,
        };
        let network = Command::new(lab.join("net-up.sh"))
            .arg(&guest.namespace)
            .output();
        if !network.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no network namespace with taps can be made here");
            return None;
        }
        let job = lab.join("shared/server.sh");
        fs::copy(job, guest.file("server.sh")).unwrap();
        let console = fs::File::create(guest.file("console")).unwrap();
        let mut command = Command::new(lab.join("run-guest.sh"));
        command
            .env("NS", &guest.namespace)
            .env("NAME", &guest.namespace)
            .env("SHARED", guest.shared.path())
            .args(["lab.ksmbd=1", "lab.job=server.sh"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(console.try_clone().unwrap())
            .stderr(console);
        guest.process = Some(command.spawn().unwrap());
        let is_up = || guest.file("server.up").exists();
        assert!(within(60, is_up), "{}", guest.console());
        Some(guest)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    fn console(&self) -> String {
        fs::read_to_string(self.file("console")).unwrap_or_default()
    }

    /// Makes one connection, up to the end of the negotiation. The server sometimes does not answer the
    /// first keepalive after it (2 of 750, also with another client).
    fn connect(&self, options: &[&str]) {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.namespace])
            .arg(env!("CARGO_BIN_EXE_smbdirect"))
            .args(["ping", "10.77.0.2", "--count", "1"])
            .args(options)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            stdout.contains("over iwarp, SMB Direct 1.0"),
            "{options:?}: {output:?}\n{}",
            self.console()
        );
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = fs::write(self.file("stop"), "");
            if !within(20, || !matches!(process.try_wait(), Ok(None))) {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
        let _ = Command::new("ip")
            .args(["netns", "del", &self.namespace])
            .output();
    }
}

/// Returns whether `condition` holds within this many seconds.
fn within(seconds: u64, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(50));
    }
    true
}

/// siw loses some of the first FPDUs; no connection may fail because of that.
//= MPA-36 test
//= MPA-35 test
//= EST-02 test
#[test]
fn linux_takes_every_connection_of_every_kind() {
    // The ready-to-receive frame and CRC settings of siw affect it as an initiator; they must not affect
    // its peers.
    for words in [
        &[][..],
        &[
            "siw.peer_to_peer=1",
            "siw.mpa_crc_required=1",
            "siw.mpa_crc_strict=1",
        ],
        &["siw.mpa_version=1"],
    ] {
        let Some(guest) = Guest::boot(words) else {
            return;
        };
        for revision in [None, Some("--mpa-revision=1"), Some("--mpa-revision=2")] {
            for crc in ["--mpa-crc=auto", "--mpa-crc=on", "--mpa-crc=off"] {
                let options: Vec<&str> = revision.into_iter().chain([crc]).collect();
                for _ in 0..6 {
                    guest.connect(&options);
                }
            }
        }
    }
}
