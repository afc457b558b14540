//! `smbdirect tdi`: requests of TDI by hand or by script, and what comes of them; and the same for
//! `smbdirect listen --tdi`.
//!
//! [`command`] is the language, [`session`] runs it on one endpoint, [`lines`] is what it shows,
//! [`passive`] has the end that listens.

pub(crate) mod command;
mod lines;
pub(crate) mod passive;
mod session;

use std::{
    io::{IsTerminal, stdin, stdout},
    net::SocketAddr,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use smbdirect::{
    Config, ConfigError, Settings, Token,
    rdma::provider::Provider,
    tdi::{
        self, Answer, Cause, ChainedTsdu, Client, ConnectAnswer, DisconnectFlags, Expedited,
        Indication, NoResponse, NonBlocking, Offer, ReceiveCompletion, SendSettings, Status,
        TransportSettings,
    },
};
use tokio::sync::mpsc;

use crate::{
    options::{Address, CommonOptions, ConnectOptions, size, usage, with_profiles},
    report::{self, Report},
    signals, transport,
};
use command::{Script, ScriptOptions, Step, Unparsed, parse, wrong};
use lines::{Event, Lines};
use passive::Passive;
use session::{Runner, Session, SessionEndpoint};

const SESSION: &str = "Session";
const TDI: &str = "TDI settings";

/// Send with TDI's flags, by hand or by script, and see what comes of it
///
/// Connects an endpoint of the Transport Driver Interface to ADDR, and takes commands, one a line,
/// from stdin, a file or the command line: `send --expedited`, `send --partial`, `receive`, `hold`,
/// `disconnect --release` and others; `help` lists them. Requests have numbers; a line tells that
/// one was submitted, another that it was completed; others what is indicated and what handlers
/// are told. At the end what was sent may leave, and then the endpoint disconnects.
///
/// The status is 0 if the session ended as asked. It is 1 if the connection was lost, or if a
/// command that nobody typed on a terminal ended with an error that no `expect` before it allows.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Tdi {
    /// Who listens: HOST[:PORT] [default port: 5445]
    #[arg(value_name = "ADDR")]
    address: Address,

    #[command(flatten)]
    script: ScriptOptions,

    #[command(flatten)]
    tdi: TdiOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,

    #[command(flatten)]
    connect: ConnectOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect tdi 127.0.0.1
  smbdirect tdi 127.0.0.1 -e 'send --partial hel; send lo; wait'
  smbdirect tdi 127.0.0.1 --script session.txt --max-tsdu 1K --send-buffer 2K --json

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, max_tsdu, negotiated}
  {\"event\":\"command\", command}
  {\"event\":\"request\", id, request, flags, bytes, status, information}
  {\"event\":\"completed\", id, status, information, data, invalidated_token, expected}
  {\"event\":\"done\", request, status, expected}     of requests that have no completion
  {\"event\":\"indicated\", flags, indicated, available, tsdu_offset, tsdu_length, data, answer}
  {\"event\":\"chained\", tsdu_length, data, answer}
  {\"event\":\"send_possible\", available}
  {\"event\":\"disconnected\", flags, status, cause}
  {\"event\":\"info\", ...}, {\"event\":\"statistics\", ...}, {\"event\":\"connection\", ...}";

/// How the transport treats sends and what arrives.
#[derive(Clone, Debug, Args)]
pub(crate) struct TdiOptions {
    /// Most bytes of a TSDU to send [default: --max-fragmented-size]
    #[arg(long, value_name = "SIZE", help_heading = TDI, value_parser = size)]
    max_tsdu: Option<u32>,

    /// Size of the send buffer, for partial and non-blocking sends; 0 is none [default: two TSDUs]
    #[arg(long, value_name = "SIZE", help_heading = TDI, value_parser = size)]
    send_buffer: Option<u32>,

    /// Bytes that are held for receives before the peer gets no more credits [default: 4M]
    #[arg(long, value_name = "SIZE", help_heading = TDI, value_parser = size)]
    receive_buffer: Option<u32>,

    /// Send expedited TSDUs in the order of all others
    #[arg(long, help_heading = TDI)]
    no_expedited: bool,

    /// Take all of a non-blocking send or nothing
    #[arg(long, help_heading = TDI)]
    atomic: bool,

    /// When a send that expects no response asks the peer for a sign [default: low]
    #[arg(long, value_enum, value_name = "WHEN", help_heading = TDI)]
    no_response: Option<When>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    /// Never
    Ignore,
    /// When it leaves few credits
    Low,
    /// Each time, if none is outstanding
    Always,
}

impl TdiOptions {
    /// An option that was given, if any was.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--max-tsdu", self.max_tsdu.is_some()),
            ("--send-buffer", self.send_buffer.is_some()),
            ("--receive-buffer", self.receive_buffer.is_some()),
            ("--no-expedited", self.no_expedited),
            ("--atomic", self.atomic),
            ("--no-response", self.no_response.is_some()),
        ];
        given
            .iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| *name)
    }

    /// # Errors
    /// A usage error that names the option.
    pub(crate) fn settings(&self, config: Config) -> Result<TransportSettings> {
        let mut settings = TransportSettings::new(config);
        if let Some(max_tsdu) = self.max_tsdu {
            settings.send = SendSettings::new(max_tsdu as usize);
        }
        let send = &mut settings.send;
        if send.max_tsdu == 0 {
            return Err(usage("--max-tsdu must be at least 1"));
        }
        let classes = if self.no_expedited { 1 } else { 2 };
        if let Some(bytes) = self.send_buffer {
            let (bytes, least) = (bytes as usize, classes * send.max_tsdu);
            if bytes > 0 && bytes < least {
                return Err(usage(format!(
                    "--send-buffer {bytes} is too small, the least is {least} for TSDUs of up to \
                     {}; 0 is none; see --max-tsdu",
                    send.max_tsdu
                )));
            }
            send.high_water = bytes;
            send.low_water = send.low_water.min(bytes.saturating_sub(1));
        }
        if self.no_expedited {
            send.expedited = Expedited::Ignore;
        }
        if self.atomic {
            send.non_blocking = NonBlocking::Atomic;
        }
        send.no_response = match self.no_response {
            Some(When::Ignore) => NoResponse::Ignore,
            Some(When::Always) => NoResponse::Always,
            Some(When::Low) | None => NoResponse::WhenLowOnCredits,
        };
        if let Some(bytes) = self.receive_buffer {
            if bytes == 0 {
                return Err(usage("--receive-buffer must be at least 1"));
            }
            settings.receive.receive_buffer = bytes as usize;
            settings.receive.lendable = bytes as usize / 2;
            settings.config = with_receive_buffer(&settings.config, bytes as usize)?;
        }
        Ok(settings)
    }
}

/// The connection below holds segments too: as few bytes, or the fewest that credits need.
fn with_receive_buffer(config: &Config, bytes: usize) -> Result<Config> {
    let with = |bytes| {
        Config::new(Settings {
            receive_buffer: Some(bytes),
            ..config.clone().into_settings()
        })
    };
    let config = match with(bytes) {
        Err(ConfigError::TooSmall { minimum, .. }) => with(minimum as usize),
        config => config,
    };
    config.map_err(|error| usage(error.to_string()))
}

impl Tdi {
    pub(crate) async fn run(self) -> Result<bool> {
        transport::check_connectable(&self.address)?;
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect), None)?;
        let settings = self.tdi.settings(config)?;
        let script = self.script.load()?;
        let is_typed = script.is_none() && stdin().is_terminal();
        let (provider, _capture) =
            transport::one_end(&self.options, Some(&self.connect), &self.address)?;
        let default_port = provider.default_port();
        let handlers = Handlers::new(provider, settings, None)?;
        handlers.open(handlers.transport.open_any_address());
        let prompts = is_typed && stdout().is_terminal() && !self.options.json;
        let session = Session::new(Lines::new(report, None, prompts), 0, !is_typed);
        let endpoint = handlers.transport.open_endpoint(session.clone());
        let associated = handlers.associate(&endpoint);
        associated.map_err(|status| anyhow!("the endpoint has no address: {status}"))?;
        let mut runner = Runner {
            handlers: handlers.clone(),
            session: session.clone(),
            endpoint,
            remote: None,
        };
        let mut commands = match script {
            Some(mut script) => {
                runner.answer_first(&mut script);
                Commands::Script(script)
            }
            None => Commands::Typed(Typed::new(is_typed)),
        };
        let work = async {
            let addresses = transport::resolve(&self.address, default_port).await?;
            runner
                .connect_to(&addresses, &self.address, &self.connect)
                .await?;
            runner.driven(runner.converse(&mut commands)).await?;
            runner.driven(runner.release(None)).await;
            Ok(())
        };
        let worked = signals::unless_interrupted(work).await;
        handlers.close();
        worked?;
        session.verdict().map_err(|what| anyhow!(what))?;
        Ok(true)
    }
}

impl Runner {
    /// Connects to the first address that answers.
    async fn connect_to(
        &mut self,
        addresses: &[SocketAddr],
        name: &Address,
        options: &ConnectOptions,
    ) -> Result<()> {
        let limit = options.connect_timeout;
        let mut last = None;
        for &address in addresses {
            match self.endpoint.connect(address, Some(limit)).await {
                Ok(()) => {
                    self.remote = Some(address);
                    self.session
                        .connected(&self.endpoint, self.handlers.transport_name);
                    return Ok(());
                }
                Err(status) => last = Some(explain_connect(status, address, limit)),
            }
        }
        Err(last.unwrap_or_else(|| anyhow!("{name} has no addresses")))
    }

    /// Does what is in force before there is a connection.
    fn answer_first(&self, script: &mut Script) {
        while let Some(step) = script.next_answer() {
            self.show_command(&step);
            self.answer(&step.command);
        }
    }

    fn show_command(&self, step: &Step) {
        let command = step.text.clone();
        self.session.lines.show(&Event::Command { command });
    }

    /// Runs commands until there are no more. False if the last one was to end the session.
    ///
    /// # Errors
    /// One that cannot be understood and that nobody can correct.
    async fn converse(&self, commands: &mut Commands) -> Result<bool> {
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

fn explain_connect(status: Status, address: SocketAddr, limit: Duration) -> anyhow::Error {
    match status {
        Status::REMOTE_NOT_LISTENING => anyhow!(
            "nobody listens on {address}, or it turned the offer away ({status}); start `smbdirect \
             listen --tdi` there, or check the port"
        ),
        Status::BAD_NETWORK_PATH => {
            anyhow!("{address} cannot be reached ({status}); check the address and the route to it")
        }
        Status::IO_TIMEOUT => anyhow!(
            "{address} did not answer as SMB Direct within {} ({status}); check the address, and \
             what listens there, or give it more by --connect-timeout",
            report::time(limit)
        ),
        Status::CONNECTION_REFUSED => {
            anyhow!("SMB Direct was not negotiated with {address} ({status}); its log may say why")
        }
        status => anyhow!(
            "no connection to {address} ({status}); is it an SMB Direct listener? `smbdirect ping` \
             tells more"
        ),
    }
}

/// Where the commands of a session come from.
enum Commands {
    Script(Script),
    Typed(Typed),
    /// From whoever reads stdin for several sessions.
    Sent(mpsc::UnboundedReceiver<Step>),
}

impl Commands {
    /// The next one; `None` if there are no more.
    async fn next(&mut self, lines: &Lines) -> Result<Option<Step>> {
        match self {
            Self::Script(script) => Ok(script.next()),
            Self::Typed(typed) => typed.next(lines).await,
            Self::Sent(steps) => Ok(steps.recv().await),
        }
    }
}

/// Commands from stdin.
struct Typed {
    lines: mpsc::Receiver<String>,
    is_terminal: bool,
    /// Those of the last line that have not been run.
    steps: std::vec::IntoIter<Step>,
    /// Lines so far.
    count: usize,
}

impl Typed {
    fn new(is_terminal: bool) -> Self {
        let (sender, lines) = mpsc::channel(1);
        // Reading a terminal cannot be interrupted: this thread ends with the process.
        thread::spawn(move || {
            for line in stdin().lines() {
                let Ok(line) = line else {
                    return;
                };
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            lines,
            is_terminal,
            steps: Vec::new().into_iter(),
            count: 0,
        }
    }

    /// The next command. On a terminal, what cannot be understood is said and can be corrected.
    async fn next(&mut self, lines: &Lines) -> Result<Option<Step>> {
        loop {
            if let Some(step) = self.steps.next() {
                return Ok(Some(step));
            }
            let Some(line) = self.lines.recv().await else {
                return Ok(None);
            };
            lines.typed();
            self.count += 1;
            match parse(&line) {
                Ok(steps) => self.steps = steps.into_iter(),
                Err(Unparsed::Help(text)) => lines.help(&text),
                Err(Unparsed::Wrong(what)) if self.is_terminal => report::error(&anyhow!(what)),
                Err(Unparsed::Wrong(what)) => return Err(wrong("stdin", self.count - 1, &what)),
            }
            lines.prompt();
        }
    }
}

/// The handlers of the address that all endpoints of the command are associated with.
struct Handlers {
    transport: tdi::Transport,
    transport_name: &'static str,
    /// Given up at the end: it holds the handlers, and they hold it.
    address: Mutex<Option<tdi::Address<Arc<Session>>>>,
    chained: AtomicBool,
    passive: Option<Passive>,
    this: Weak<Self>,
}

impl Handlers {
    fn new(
        provider: Arc<dyn Provider>,
        settings: TransportSettings,
        passive: Option<Passive>,
    ) -> Result<Arc<Self>> {
        let transport_name = provider.name();
        let transport = tdi::Transport::new(provider, settings);
        let transport = transport.map_err(|status| usage(format!("{status}: TDI settings")))?;
        Ok(Arc::new_cyclic(|this| Self {
            transport,
            transport_name,
            address: Mutex::default(),
            chained: AtomicBool::new(false),
            passive,
            this: this.clone(),
        }))
    }

    /// Has the events of `address` handled.
    fn open(self: &Arc<Self>, address: tdi::Address<Arc<Session>>) {
        *self.address.lock().expect("no panic under it") = Some(address.clone());
        address.set_client(Some(self.clone()));
    }

    /// Handles no more events.
    fn close(&self) {
        let address = self.address.lock().expect("no panic under it").take();
        if let Some(address) = address {
            address.set_client(None);
        }
    }

    fn associate(&self, endpoint: &SessionEndpoint) -> Result<(), Status> {
        let address = self.address.lock().expect("no panic under it").clone();
        endpoint.associate(&address.ok_or(Status::ADDRESS_CLOSED)?)
    }

    fn take_chained(&self, chained: bool) {
        self.chained.store(chained, Ordering::Relaxed);
    }
}

impl Client<Arc<Session>> for Handlers {
    fn connect(
        &self,
        _: &tdi::Address<Arc<Session>>,
        offer: &Offer,
    ) -> ConnectAnswer<Arc<Session>> {
        match (&self.passive, self.this.upgrade()) {
            (Some(passive), Some(handlers)) => passive.offered(&handlers, offer),
            _ => ConnectAnswer::Refuse,
        }
    }

    fn accept_completed(&self, endpoint: &SessionEndpoint, result: Result<(), Status>) {
        if let Some(passive) = &self.passive {
            passive.accepted(endpoint, result, self.transport_name);
        }
    }

    fn receive(&self, endpoint: &SessionEndpoint, indication: Indication) -> Answer {
        endpoint.context().indicated(endpoint, indication)
    }

    fn takes_chained(&self) -> bool {
        self.chained.load(Ordering::Relaxed)
    }

    fn chained_receive(
        &self,
        endpoint: &SessionEndpoint,
        tsdu: ChainedTsdu,
    ) -> Result<(), ChainedTsdu> {
        match endpoint.context().lent(endpoint, tsdu) {
            Some(tsdu) => Err(tsdu),
            None => Ok(()),
        }
    }

    fn receive_completed(&self, endpoint: &SessionEndpoint, completion: ReceiveCompletion) {
        endpoint.context().supplied_completed(completion);
    }

    fn send_possible(&self, endpoint: &SessionEndpoint, available: usize) {
        endpoint.context().event(&Event::SendPossible { available });
    }

    fn invalidated(&self, endpoint: &SessionEndpoint, token: Token) {
        endpoint.context().invalidated(token);
    }

    fn disconnect(&self, endpoint: &SessionEndpoint, flags: DisconnectFlags, cause: &Cause) {
        endpoint.context().disconnected(flags, cause);
    }

    fn error(&self, status: Status) {
        if let Some(passive) = &self.passive {
            passive.failed(status);
        }
    }
}
