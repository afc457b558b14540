//! The password of an account: from a file descriptor, the environment, or the terminal. Never from the
//! command line, where other users of the machine see it.

use std::{env, fmt, io, str::FromStr};

use anyhow::{Context, Result, anyhow};

use crate::{options::usage, report};

/// The variable of the environment.
const VARIABLE: &str = "SMBDIRECT_PASSWORD";
/// Longest password that is read, in bytes.
#[cfg(any(unix, test))]
const MAX_BYTES: usize = 4096;

pub(crate) use system::Descriptor;

/// Returns the password of `user`: the next line of `descriptor`, or else the variable of the
/// environment, or else what the user types at the terminal of the process.
///
/// # Errors
/// The descriptor cannot be read, there is no terminal to ask on, the password is not UTF-8, or a signal ended the
/// wait.
///
/// # Cancel safety
/// If the future is dropped while it asks, the terminal shows again what is typed.
pub(crate) async fn password(user: &str, descriptor: Option<&Descriptor>) -> Result<String> {
    if let Some(descriptor) = descriptor {
        let source = format!("--password-fd {descriptor}");
        let line = descriptor.line().await;
        let line = line.with_context(|| source.clone())?;
        return in_utf8(line, &source);
    }
    match env::var(VARIABLE) {
        Ok(password) => Ok(password),
        Err(env::VarError::NotUnicode(_)) => Err(not_utf8(VARIABLE)),
        Err(env::VarError::NotPresent) => {
            let user = report::printable(user);
            let typed = system::ask(&format!("Password of {user}: ")).await;
            in_utf8(typed?, "the password from the terminal")
        }
    }
}

fn in_utf8(password: Vec<u8>, source: &str) -> Result<String> {
    String::from_utf8(password).map_err(|_| not_utf8(source))
}

fn not_utf8(source: &str) -> anyhow::Error {
    anyhow!("{source} is not UTF-8; give the password in UTF-8, whatever the locale is")
}

fn no_terminal(error: io::Error) -> anyhow::Error {
    usage(format!(
        "--user needs a password, and there is no terminal to ask on ({error}); set {VARIABLE}, or give \
         --password-fd N"
    ))
}

/// Reads the bytes of a line one by one, so that what follows the line stays unread. An empty line is an empty
/// password; the end of the input is none.
#[cfg(any(unix, test))]
fn read_line(mut next: impl FnMut() -> io::Result<Option<u8>>) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        match next()? {
            Some(b'\n') => break,
            Some(byte) => line.push(byte),
            None if line.is_empty() => {
                return Err(anyhow!("there is no password: the input is at its end"));
            }
            None => break,
        }
        anyhow::ensure!(
            line.len() <= MAX_BYTES,
            "the password is longer than {MAX_BYTES} bytes"
        );
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

#[cfg(unix)]
mod system {
    use std::{
        fs::File,
        io::{IoSlice, IoSliceMut, Write},
        mem::MaybeUninit,
        os::{
            fd::{AsFd, AsRawFd, OwnedFd},
            unix::net::UnixStream,
        },
        sync::Arc,
        thread,
    };

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use rustix::{
        event::{PollFd, PollFlags, poll},
        io::{Errno, read},
        net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
        termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr},
    };
    use tokio::sync::oneshot;

    use super::*;
    use crate::signals::{Interrupted, unless};

    /// A copy of a descriptor that the parent of this process has opened. It is made when the command line is
    /// parsed, before this process opens descriptors, which would get the number if the parent left it free.
    #[derive(Clone, Debug)]
    pub(crate) struct Descriptor {
        number: i32,
        copy: Arc<OwnedFd>,
    }

    impl FromStr for Descriptor {
        type Err = String;

        fn from_str(text: &str) -> Result<Self, String> {
            let number = text.parse().ok().filter(|number| *number >= 0);
            let number = number.ok_or("it has to be the number of a descriptor")?;
            let copy =
                copy(number).map_err(|error| format!("the descriptor cannot be used: {error}"))?;
            let copy = Arc::new(copy);
            Ok(Self { number, copy })
        }
    }

    impl fmt::Display for Descriptor {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.number.fmt(f)
        }
    }

    impl Descriptor {
        /// Reads a line, from where the descriptor stands.
        pub(super) async fn line(&self) -> Result<Vec<u8>> {
            let copy = self.copy.clone();
            line_in_thread(Interrupted::new(), move || next_byte(&copy)).await
        }
    }

    /// Reads a line, up to a signal. The thread that reads ends with the process.
    async fn line_in_thread(
        mut interrupted: Interrupted,
        next: impl FnMut() -> io::Result<Option<u8>> + Send + 'static,
    ) -> Result<Vec<u8>> {
        let (answer, answered) = oneshot::channel();
        thread::spawn(move || {
            // An error means that nobody waits any more.
            let _ = answer.send(read_line(next));
        });
        let line = async { answered.await.context("no thread reads it")? };
        Ok(unless(&mut interrupted, line).await?)
    }

    /// Copies a descriptor. Only unsafe code can take one by its number; the kernel copies one that a process sends to
    /// itself.
    fn copy(number: i32) -> io::Result<OwnedFd> {
        let (sender, receiver) = UnixStream::pair()?;
        if [sender.as_raw_fd(), receiver.as_raw_fd()].contains(&number) {
            return Err(Errno::BADF.into());
        }
        sendmsg::<()>(
            sender.as_raw_fd(),
            &[IoSlice::new(&[0])],
            &[ControlMessage::ScmRights(&[number])],
            MsgFlags::empty(),
            None,
        )?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut received = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let byte = &mut [IoSliceMut::new(&mut byte)];
        // The command starts no program before the password is read, so an inherited copy does no harm elsewhere.
        #[cfg(target_os = "linux")]
        let flags = RecvFlags::CMSG_CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = RecvFlags::empty();
        recvmsg(&receiver, byte, &mut received, flags)?;
        let mut descriptors = received.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        descriptors.next().ok_or_else(|| Errno::BADF.into())
    }

    /// Reads one byte, also where the parent has made the descriptor non-blocking.
    fn next_byte(from: impl AsFd) -> io::Result<Option<u8>> {
        let mut byte = [0];
        loop {
            match read(&from, &mut byte) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(byte[0])),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&from, PollFlags::IN)], None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks at the terminal of the process, which need not be its standard input.
    pub(super) async fn ask(prompt: &str) -> Result<Vec<u8>> {
        let opened = File::options().read(true).write(true).open("/dev/tty");
        let mut terminal = opened.map_err(no_terminal)?;
        // First, because without a handler a signal leaves the terminal silent.
        let interrupted = Interrupted::new();
        let silent = Silent::new(terminal.try_clone()?)?;
        terminal.write_all(prompt.as_bytes())?;
        let typed = line_in_thread(interrupted, move || next_byte(&terminal)).await;
        drop(silent);
        typed
    }

    /// A terminal that does not show what is typed, until this value is dropped.
    struct Silent {
        terminal: File,
        before: Termios,
    }

    impl Silent {
        fn new(terminal: File) -> io::Result<Self> {
            let before = tcgetattr(&terminal)?;
            let mut modes = before.clone();
            // The kernel edits the line. Ctrl-C is a signal, for which the command waits; at Ctrl-Z the terminal
            // would stay silent.
            modes.local_modes -= LocalModes::ECHO;
            modes.local_modes |= LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG;
            modes.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
            tcsetattr(&terminal, OptionalActions::Flush, &modes)?;
            Ok(Self { terminal, before })
        }
    }

    /// The code of a special character that the terminal does not have (_POSIX_VDISABLE).
    const DISABLED: u8 = if cfg!(target_os = "linux") { 0 } else { 0xff };

    impl Drop for Silent {
        fn drop(&mut self) {
            // A terminal that is gone needs nothing.
            let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use super::*;

    /// A descriptor, which this system does not pass to a process by its number.
    #[derive(Clone, Debug)]
    pub(crate) enum Descriptor {}

    impl FromStr for Descriptor {
        type Err = String;

        fn from_str(_: &str) -> Result<Self, String> {
            Err(format!(
                "this system passes no descriptors by their numbers; set {VARIABLE}"
            ))
        }
    }

    impl fmt::Display for Descriptor {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }

    impl Descriptor {
        #[allow(clippy::unused_async, reason = "as on Unix")]
        pub(super) async fn line(&self) -> Result<Vec<u8>> {
            match *self {}
        }
    }

    #[allow(clippy::unused_async, reason = "as on Unix")]
    pub(super) async fn ask(prompt: &str) -> Result<Vec<u8>> {
        let typed = rpassword::prompt_password(prompt).map_err(no_terminal);
        typed.map(String::into_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: &[u8]) -> (Result<String>, Vec<u8>) {
        let mut rest = bytes.iter().copied();
        let line = read_line(|| Ok(rest.next()));
        let line = line.and_then(|line| in_utf8(line, "x"));
        (line, rest.collect())
    }

    #[test]
    fn a_password_is_the_next_line() {
        for (bytes, password, rest) in [
            (&b"secret\nuser\n"[..], "secret", &b"user\n"[..]),
            (b"secret\r\n", "secret", b""),
            (b"se cret \n", "se cret ", b""),
            (b"secret", "secret", b""),
            (b"\nsecret", "", b"secret"),
            ("geh\u{e9}im\n".as_bytes(), "geh\u{e9}im", b""),
        ] {
            let (line, left) = line(bytes);
            assert_eq!((&*line.unwrap(), &*left), (password, rest));
        }
        for (bytes, says) in [
            (&b""[..], "at its end"),
            (b"sec\xe9ret\n", "x is not UTF-8"),
            (&[b'a'; MAX_BYTES + 1], "longer than 4096 bytes"),
        ] {
            let error = line(bytes).0.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
