//! `smbdirect tdi`: TDI requests by hand or by script, and what they lead to; and the same for
//! `smbdirect listen --tdi`.
//!
//! [`command`] is the language, [`input`] where commands come from, [`runner`] runs them on the
//! endpoint of a [`session`], [`handlers`] passes it events, [`lines`] is what it shows, [`passive`]
//! has the end that listens.

pub(crate) mod command;
mod handlers;
mod input;
mod lines;
pub(crate) mod options;
pub(crate) mod passive;
mod pending;
mod queries;
mod runner;
mod session;

use std::{
    io::{IsTerminal, stdin, stdout},
    net::SocketAddr,
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::Args;
use smbdirect::tdi::Status;

use crate::{
    options::{Address, CommonOptions, ConnectOptions, with_profiles},
    report::{self, Report},
    signals, transport,
};
use command::ScriptOptions;
use handlers::Handlers;
use input::{Commands, Typed};
use lines::Lines;
use options::TdiOptions;
use runner::Runner;
use session::Session;

/// Send with the flags of TDI, by hand or by script, and see the results
///
/// Connects an endpoint of the Transport Driver Interface to ADDR, and takes commands, one per
/// line, from stdin, a file or the command line: `send --expedited`, `send --partial`, `receive`,
/// `hold`, `disconnect --release` and others; `help` lists them. Requests have numbers: one line
/// shows that a request was submitted, another that it completed; further lines show indications
/// and events. At the end, sends complete, and then the endpoint disconnects.
///
/// The status is 0 if the session ended as asked. It is 1 if the connection was lost, or if a
/// command that was not typed on a terminal ended with an error that no `expect` before it allows.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Tdi {
    /// The listener: HOST[:PORT]; the default port is 5445 for iWARP, 445 for RoCE and InfiniBand
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
}

fn explain_connect(status: Status, address: SocketAddr, limit: Duration) -> anyhow::Error {
    match status {
        Status::REMOTE_NOT_LISTENING => anyhow!(
            "nothing listens on {address}, or it turned the offer away ({status}); start `smbdirect \
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
