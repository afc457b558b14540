//! [`Runner`]: runs the commands of a session on its endpoint.

use std::{
    future::Future,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use bytes::{Bytes, BytesMut};
use smbdirect::{
    Token,
    tdi::{DisconnectFlags, EndpointState, ReceiveFlags, SendFlags, SendOptions, Status},
};
use tokio::time::{sleep, timeout};

use super::{
    command::{Command, Script, SendCommand, Step, Switch},
    handlers::Handlers,
    input::Commands,
    lines::Event,
    pending::{Pending, Submitted},
    queries::{Connection, names},
    session::{Handling, Session, SessionEndpoint},
};

/// Runs the commands of a session.
pub(super) struct Runner {
    pub(super) handlers: Arc<Handlers>,
    pub(super) session: Arc<Session>,
    pub(super) endpoint: SessionEndpoint,
    /// The address that `connect` connects to; the accepting end has none.
    pub(super) remote: Option<SocketAddr>,
}

/// Interval at which `wait --credits` checks the credits.
const CREDIT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl Runner {
    /// Runs one command. Returns false if it ends the session.
    pub(super) async fn run(&self, step: Step) -> bool {
        let goes_on = self.execute(step).await;
        self.session.sweep();
        goes_on
    }

    async fn execute(&self, step: Step) -> bool {
        let Step {
            command, expected, ..
        } = step;
        let (session, endpoint) = (&self.session, &self.endpoint);
        match command {
            Command::Take { .. }
            | Command::Hold
            | Command::Request { .. }
            | Command::Echo
            | Command::Chained { .. } => self.answer(&command),
            Command::Send(command) => self.send(command, expected),
            Command::Write { text } => {
                let text = text.join(" ");
                let sending = endpoint.write(text.as_bytes());
                self.submit("write", "0".into(), Some(text.len()), sending, expected);
            }
            Command::Receive { bytes, peek } => {
                let mut flags = ReceiveFlags::empty();
                flags.set(ReceiveFlags::PEEK, peek);
                let receiving = endpoint.receive(BytesMut::zeroed(bytes), flags);
                self.submit("receive", names(flags), Some(bytes), receiving, expected);
            }
            Command::Resume => session.done("resume", endpoint.resume(), expected),
            Command::Discard { expedited } => {
                session.done("discard", self.discard(expedited), expected);
            }
            Command::Cancel { id } => session.done("cancel", session.cancel(id), expected),
            Command::Poke => session.done("poke", endpoint.force_send(), expected),
            Command::Info | Command::Statistics | Command::Connection => {
                self.query(&command, expected);
            }
            Command::Sleep { time } => sleep(time).await,
            Command::Wait {
                credits,
                disconnected,
                timeout,
            } => {
                let result = self.wait(credits, disconnected, timeout).await;
                // The lines above show that the wait is done.
                if result.is_err() || expected.is_some() {
                    session.done("wait", result, expected);
                }
            }
            Command::Disconnect {
                release, timeout, ..
            } => {
                let flags = match release {
                    true => DisconnectFlags::RELEASE,
                    false => DisconnectFlags::ABORT,
                };
                self.disconnect(flags, timeout, expected);
            }
            Command::Connect { timeout } => self.connect(timeout, expected),
            Command::Associate => {
                let result = self.handlers.associate(endpoint);
                session.done("associate", result, expected);
            }
            Command::Disassociate => {
                session.done("disassociate", endpoint.disassociate(), expected);
            }
            Command::Expect { .. } => unreachable!("the parser takes it into the next step"),
            Command::Quit => return false,
        }
        true
    }

    fn discard(&self, expedited: bool) -> Result<(), Status> {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::EXPEDITED, expedited);
        match self.endpoint.discard_partial(flags) {
            true => Ok(()),
            false => Err(Status::INVALID_DEVICE_STATE),
        }
    }

    /// Shows the answer to a query.
    fn query(&self, command: &Command, expected: Option<Status>) {
        let transport = &self.handlers.transport;
        let event = match command {
            Command::Info => Event::Info((&transport.info()).into()),
            Command::Statistics => Event::Statistics((&transport.statistics()).into()),
            _ => {
                let connection = self.endpoint.connection().ok();
                match self.endpoint.query_connection() {
                    Ok(info) => Event::Connection(Connection::new(&info, connection.as_ref())),
                    Err(status) => {
                        return self.session.done("connection", Err(status), expected);
                    }
                }
            }
        };
        self.session.lines.show(&event);
    }

    /// Runs a command that says how indications are answered from now on.
    pub(super) fn answer(&self, command: &Command) {
        let handling = match *command {
            Command::Take { bytes } => Handling::Take(bytes),
            Command::Hold => Handling::Hold,
            Command::Request { bytes } => Handling::Request(bytes),
            Command::Echo => Handling::Echo,
            Command::Chained { switch } => {
                return self.handlers.take_chained(switch == Switch::On);
            }
            _ => return,
        };
        self.session.handle(handling);
    }

    /// Runs `work`, and shows completions as they come.
    pub(super) async fn driven<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            () = self.session.drive(&self.endpoint) => unreachable!("drive() never returns"),
            done = work => done,
        }
    }

    fn submit(
        &self,
        request: &'static str,
        flags: String,
        bytes: Option<usize>,
        submitted: impl Into<Submitted>,
        expected: Option<Status>,
    ) {
        let pending = Pending::new(submitted.into(), expected);
        self.session.submit(request, flags, bytes, pending);
    }

    fn send(&self, command: SendCommand, expected: Option<Status>) {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::EXPEDITED, command.expedited);
        flags.set(SendFlags::PARTIAL, command.partial);
        flags.set(SendFlags::NON_BLOCKING, command.non_blocking);
        flags.set(
            SendFlags::NO_RESPONSE_EXPECTED,
            command.no_response_expected,
        );
        flags.set(SendFlags::AND_DISCONNECT, command.and_disconnect);
        let data: Bytes = match command.size {
            Some(size) => (b'a'..=b'z').cycle().take(size).collect::<Vec<_>>().into(),
            None => command.text.join(" ").into(),
        };
        let options = SendOptions {
            deadline: command
                .timeout
                .and_then(|timeout| Instant::now().checked_add(timeout)),
            invalidate: command.invalidate.map(Token),
        };
        let bytes = data.len();
        let sending = self.endpoint.send_with(data, flags, options);
        self.submit("send", names(flags), Some(bytes), sending, expected);
    }

    async fn wait(
        &self,
        credits: Option<u16>,
        disconnected: bool,
        limit: Option<Duration>,
    ) -> Result<(), Status> {
        let waiting = async {
            if let Some(credits) = credits {
                self.wait_for_credits(credits).await
            } else if disconnected {
                self.session.expect_end();
                self.endpoint.disconnected().await;
                Ok(())
            } else {
                self.session.until_idle().await;
                Ok(())
            }
        };
        match limit {
            Some(limit) => match timeout(limit, waiting).await {
                Ok(result) => result,
                Err(_) => Err(Status::IO_TIMEOUT),
            },
            None => waiting.await,
        }
    }

    async fn wait_for_credits(&self, credits: u16) -> Result<(), Status> {
        while self.endpoint.connection()?.credits().send_credits < credits {
            sleep(CREDIT_CHECK_INTERVAL).await;
        }
        Ok(())
    }

    fn connect(&self, limit: Option<Duration>, expected: Option<Status>) {
        let Some(remote) = self.remote else {
            // The accepting end has no address to connect to.
            return self
                .session
                .done("connect", Err(Status::INVALID_ADDRESS), expected);
        };
        let requested = self.endpoint.connect(remote, limit);
        self.submit("connect", "0".into(), None, requested, expected);
    }

    pub(super) fn disconnect(
        &self,
        flags: DisconnectFlags,
        limit: Option<Duration>,
        expected: Option<Status>,
    ) {
        let requested = self.endpoint.disconnect(flags, limit);
        self.submit("disconnect", names(flags), None, requested, expected);
    }

    /// Ends the connection gracefully, if there is one: sends complete first.
    pub(super) async fn release(&self, limit: Option<Duration>) {
        if self.endpoint.state() == EndpointState::Connected {
            self.disconnect(DisconnectFlags::RELEASE, limit, None);
        }
        self.session.close();
        self.session.until_sent().await;
    }

    /// Runs the commands at the beginning of `script` that say how indications are answered: these
    /// are in force before there is a connection.
    pub(super) fn answer_first(&self, script: &mut Script) {
        while let Some(step) = script.next_answer() {
            self.show_command(&step);
            self.answer(&step.command);
        }
    }

    fn show_command(&self, step: &Step) {
        let command = step.text.clone();
        self.session.lines.show(&Event::Command { command });
    }

    /// Runs commands until there are no more. Returns false if the last one ended the session.
    ///
    /// # Errors
    /// A command of a script that cannot be parsed.
    pub(super) async fn converse(&self, commands: &mut Commands) -> Result<bool> {
        loop {
            self.session.lines.prompt();
            let Some(step) = commands.next(&self.session.lines).await? else {
                return Ok(true);
            };
            if self.session.is_scripted {
                self.show_command(&step);
            }
            if !self.run(step).await {
                return Ok(false);
            }
        }
    }
}
