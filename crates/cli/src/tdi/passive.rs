//! `smbdirect listen --tdi`: accepts peers in the connect handler, one endpoint and one session
//! each.

use std::{
    collections::HashMap,
    io::{IsTerminal, stdin},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use anyhow::{Result, anyhow};
use smbdirect::{
    rdma::provider::Provider,
    tdi::{ConnectAnswer, Offer, Share, Status, TransportSettings},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use super::{
    command::{Script, Step},
    handlers::{Acceptor, Handlers},
    input::{Commands, Typed},
    lines::{Event, Lines, Name},
    runner::Runner,
    session::{Session, SessionEndpoint},
};
use crate::{
    options::Address,
    report::{self, Report},
    signals::Interrupted,
    transport,
};

/// Largest number of concurrent sessions; further peers are refused.
const MAX_SESSIONS: usize = 64;
/// Longest time that sessions may take to end after a signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// The options of `listen --tdi`.
pub(crate) struct Listening {
    pub(crate) report: Report,
    pub(crate) address: Address,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) settings: TransportSettings,
    /// The commands of each session. Without a script, commands come from stdin.
    pub(crate) script: Option<Script>,
    /// Number of connections after which to end.
    pub(crate) most: Option<u64>,
    pub(crate) interrupted: Interrupted,
}

/// Accepts peers, one session each.
pub(super) struct Passive {
    report: Report,
    /// At most one peer connects, so lines do not name it.
    is_only: bool,
    is_typed: bool,
    most: Option<u64>,
    state: Mutex<State>,
    news: mpsc::UnboundedSender<News>,
}

struct State {
    /// Commands that each session begins with.
    first: Script,
    /// Number of peers accepted, without those whose connection failed.
    accepted: u64,
    last_number: u64,
    open: usize,
    /// Peers that are accepted and not yet connected, by their numbers.
    coming: HashMap<u64, Coming>,
}

struct Coming {
    runner: Runner,
    /// The commands that have not been run.
    script: Script,
    address: SocketAddr,
}

enum News {
    Connected(Coming),
    /// The address failed: no further peer can connect.
    Failed(Status),
}

impl Acceptor for Passive {
    fn offered(&self, handlers: &Arc<Handlers>, offer: &Offer) -> ConnectAnswer<Arc<Session>> {
        let mut state = self.lock();
        if self.most.is_some_and(|most| state.accepted >= most) {
            return ConnectAnswer::Refuse;
        }
        if state.open >= MAX_SESSIONS {
            return ConnectAnswer::NoResources;
        }
        let number = state.last_number + 1;
        let lines = Lines::new(self.report, (!self.is_only).then_some(number), false);
        let session = Session::new(lines, number, !self.is_typed);
        session.expect_end();
        let endpoint = handlers.transport.open_endpoint(session.clone());
        if handlers.associate(&endpoint).is_err() {
            return ConnectAnswer::NoResources;
        }
        let runner = Runner {
            handlers: handlers.clone(),
            session,
            endpoint: endpoint.clone(),
            remote: None,
        };
        let mut script = state.first.clone();
        runner.answer_first(&mut script);
        state.accepted += 1;
        state.open += 1;
        state.last_number = number;
        let address = offer.remote_address;
        let coming = Coming {
            runner,
            script,
            address,
        };
        state.coming.insert(number, coming);
        ConnectAnswer::Accept(endpoint)
    }

    fn accepted(
        &self,
        endpoint: &SessionEndpoint,
        result: Result<(), Status>,
        transport: &'static str,
    ) {
        let session = endpoint.context();
        let Some(coming) = self.lock().coming.remove(&session.number) else {
            return;
        };
        match result {
            Ok(()) => {
                session.connected(endpoint, transport);
                // If the receiver is gone, the listener has ended, and the connection ends too.
                let _ = self.news.send(News::Connected(coming));
            }
            Err(status) => {
                session.not_connected(coming.address, status);
                let mut state = self.lock();
                state.accepted -= 1;
                state.open -= 1;
            }
        }
    }

    fn failed(&self, status: Status) {
        // If the receiver is gone, the listener has ended.
        let _ = self.news.send(News::Failed(status));
    }
}

impl Passive {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under it")
    }

    /// Keeps a command that was typed while no peer was connected for the peers that come, if it
    /// says how indications are answered. Returns whether it does.
    fn keep(&self, step: Step) -> bool {
        self.lock().first.push_answer(step)
    }
}

impl Listening {
    /// Serves peers until a signal, or until enough sessions have ended. Returns whether all ended
    /// as asked.
    ///
    /// # Errors
    /// It cannot listen, or a command cannot be parsed.
    pub(crate) async fn serve(self) -> Result<bool> {
        let (news, arrivals) = mpsc::unbounded_channel();
        let is_typed = self.script.is_none() && stdin().is_terminal();
        let typed = self.script.is_none().then(|| Typed::new(is_typed));
        let passive = Arc::new(Passive {
            report: self.report,
            is_only: self.most == Some(1),
            is_typed,
            most: self.most,
            state: Mutex::new(State {
                first: self.script.unwrap_or_default(),
                accepted: 0,
                last_number: 0,
                open: 0,
                coming: HashMap::new(),
            }),
            news,
        });
        let default_port = self.provider.default_port();
        let handlers = Handlers::new(self.provider, self.settings, Some(passive.clone()))?;
        let lines = Lines::new(self.report, None, false);
        let opened = open(&handlers, &self.address, default_port).await?;
        lines.show(&Event::Listening {
            address: opened.to_string(),
        });
        let mut server = Server {
            passive,
            handlers,
            lines,
            typed,
            arrivals,
            sessions: JoinSet::new(),
            end: watch::Sender::new(false),
            talking: Vec::new(),
            all_well: true,
            served: 0,
        };
        let worked = server.serve(self.interrupted).await;
        if worked.is_ok() {
            server.end_sessions().await;
        }
        server.handlers.close();
        Ok(worked? || server.all_well)
    }
}

/// A listener that is open, and its sessions.
struct Server {
    passive: Arc<Passive>,
    handlers: Arc<Handlers>,
    lines: Lines,
    /// Commands from stdin, until its end.
    typed: Option<Typed>,
    arrivals: mpsc::UnboundedReceiver<News>,
    sessions: JoinSet<bool>,
    /// Tells the sessions to end.
    end: watch::Sender<bool>,
    /// Where commands from stdin go: to the peer that connected last.
    talking: Vec<mpsc::UnboundedSender<Step>>,
    /// Whether all sessions so far ended as asked.
    all_well: bool,
    /// Number of sessions that ended.
    served: u64,
}

impl Server {
    /// Serves peers. Returns true at a signal, false when enough sessions have ended.
    ///
    /// # Errors
    /// The address failed, or a command cannot be parsed.
    async fn serve(&mut self, mut interrupted: Interrupted) -> Result<bool> {
        loop {
            if self.passive.most.is_some_and(|most| self.served >= most) {
                return Ok(false);
            }
            tokio::select! {
                Some(news) = self.arrivals.recv() => match news {
                    News::Connected(coming) => self.start_session(coming),
                    News::Failed(status) => {
                        self.lines.show(&Event::Error { status: Name(status) });
                        return Err(anyhow!("cannot listen any longer: {status}"));
                    }
                },
                Some(well) = self.sessions.join_next() => {
                    self.all_well &= well.unwrap_or(false);
                    self.served += 1;
                    self.passive.lock().open -= 1;
                }
                step = next(&mut self.typed, &self.lines) => match step? {
                    Some(step) => self.pass_on(step),
                    None => {
                        self.typed = None;
                        self.talking.clear();
                    }
                },
                () = interrupted.wait() => return Ok(true),
            }
        }
    }

    fn start_session(&mut self, coming: Coming) {
        let Coming { runner, script, .. } = coming;
        let commands = match &self.typed {
            Some(_) => {
                let (sender, steps) = mpsc::unbounded_channel();
                self.talking.push(sender);
                Commands::Sent(steps)
            }
            None => Commands::Script(script),
        };
        let session = attend(runner, commands, self.end.subscribe());
        self.sessions.spawn(session);
    }

    /// Passes a command from stdin to the peer that connected last.
    fn pass_on(&mut self, step: Step) {
        self.talking.retain(|sender| !sender.is_closed());
        let sent = self.talking.last().map(|sender| sender.send(step.clone()));
        if !matches!(sent, Some(Ok(()))) && !self.passive.keep(step) {
            report::error(&anyhow!("no peer is connected; wait for one"));
        }
    }

    /// Tells all sessions to end, and waits for them.
    async fn end_sessions(&mut self) {
        self.end.send_replace(true);
        let all = async { while self.sessions.join_next().await.is_some() {} };
        if timeout(SHUTDOWN_TIMEOUT, all).await.is_err() {
            tracing::debug!("some sessions did not end in time");
        }
    }
}

async fn next(typed: &mut Option<Typed>, lines: &Lines) -> Result<Option<Step>> {
    match typed {
        Some(typed) => typed.next(lines).await,
        None => std::future::pending().await,
    }
}

async fn open(handlers: &Arc<Handlers>, name: &Address, default_port: u16) -> Result<SocketAddr> {
    let families = transport::Families::of(handlers.transport_name);
    let address = transport::resolve_listen(name, default_port, families).await?;
    let opened = handlers.transport.open_address(address, Share::Exclusive);
    let opened = opened.await.map_err(|status| {
        let cure = match status {
            Status::ADDRESS_ALREADY_EXISTS => {
                "another program listens there; stop it, or give another port as ADDR"
            }
            Status::INVALID_ADDRESS_COMPONENT => {
                "it is no address of this machine; leave the host out to listen on all of them"
            }
            _ => "give another address as ADDR",
        };
        anyhow!("cannot listen on {address}: {status}; {cure}")
    })?;
    let address = opened.local_address();
    handlers.open(opened);
    Ok(address)
}

/// Runs one session from its beginning to its end. Returns whether it went as asked.
async fn attend(runner: Runner, mut commands: Commands, mut ended: watch::Receiver<bool>) -> bool {
    let endpoint = runner.endpoint.clone();
    let are_sent = matches!(commands, Commands::Sent(_));
    let over = async {
        endpoint.disconnected().await;
    };
    let talk = async {
        // Commands were parsed before they came here.
        let goes_on = runner.converse(&mut commands).await.unwrap_or(false);
        if goes_on {
            endpoint.disconnected().await;
        }
    };
    let told_to_end = async {
        // The result holds a lock, so it is dropped immediately.
        let _ = ended.wait_for(|&ended| ended).await;
    };
    let whole = async {
        tokio::select! {
            () = talk => {}
            // A script goes on to its end; commands from stdin have no peer any more.
            () = over, if are_sent => {}
            () = told_to_end => {}
        }
        runner.release(Some(SHUTDOWN_TIMEOUT)).await;
    };
    runner.driven(whole).await;
    let session = &runner.session;
    // An event has reported a connection that was lost.
    match session.verdict() {
        Ok(()) => true,
        Err(_) if session.is_lost() => false,
        Err(what) => {
            report::error(&anyhow!("peer {}: {what}", session.number));
            false
        }
    }
}
