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
    Commands, Handlers, TdiOptions, Typed,
    command::{Script, ScriptOptions, Step},
    lines::{Event, Lines, Name},
    session::{Runner, Session, SessionEndpoint},
};
use crate::{
    options::Address,
    report::{self, Report},
    signals::Interrupted,
    transport,
};

/// Sessions at once; more peers are turned away.
const MAX_SESSIONS: usize = 64;
/// How long sessions may take to end once this process is told to.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// What `listen` was told.
pub(crate) struct Listening {
    pub(crate) report: Report,
    pub(crate) address: Address,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) settings: TransportSettings,
    /// For each peer. Without one, commands come from stdin.
    pub(crate) script: Option<Script>,
    /// End after so many connections.
    pub(crate) most: Option<u64>,
    pub(crate) interrupted: Interrupted,
}

/// The part of the handlers that peers come to.
pub(super) struct Passive {
    report: Report,
    /// There is only one peer, and no need to say which.
    is_only: bool,
    is_typed: bool,
    most: Option<u64>,
    state: Mutex<State>,
    news: mpsc::UnboundedSender<News>,
}

struct State {
    /// Before each session.
    first: Script,
    /// Peers accepted, those not counted that did not make it.
    accepted: u64,
    last_number: u64,
    open: usize,
    /// Accepted and not connected, by their numbers.
    coming: HashMap<u64, Coming>,
}

struct Coming {
    runner: Runner,
    /// What is left of the script.
    script: Script,
    address: SocketAddr,
}

enum News {
    Connected(Coming),
    /// Nobody can come any more.
    Failed(Status),
}

impl Passive {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under it")
    }

    pub(super) fn offered(
        &self,
        handlers: &Arc<Handlers>,
        offer: &Offer,
    ) -> ConnectAnswer<Arc<Session>> {
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

    pub(super) fn accepted(
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
                // Nobody listens any more if this fails, and the connection ends.
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

    pub(super) fn failed(&self, status: Status) {
        // Nobody listens any more if this fails.
        let _ = self.news.send(News::Failed(status));
    }

    /// A command that was typed while nobody was there is for those who come, if it can be.
    fn keep(&self, step: Step) -> bool {
        self.lock().first.push_answer(step)
    }
}

impl Listening {
    /// Serves peers until it is told to end, or enough have come.
    ///
    /// # Errors
    /// It cannot listen, or a command cannot be understood.
    pub(crate) async fn serve(mut self) -> Result<bool> {
        let (news, mut arrivals) = mpsc::unbounded_channel();
        let is_typed = self.script.is_none() && stdin().is_terminal();
        let mut typed = self.script.is_none().then(|| Typed::new(is_typed));
        let passive = Passive {
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
        };
        let default_port = self.provider.default_port();
        let handlers = Handlers::new(self.provider, self.settings, Some(passive))?;
        let passive = handlers.passive.as_ref().expect("it was just put there");
        let lines = Lines::new(self.report, None, false);
        let opened = open(&handlers, &self.address, default_port).await?;
        lines.show(&Event::Listening {
            address: opened.to_string(),
        });
        let (end, ended) = watch::channel(false);
        let (mut sessions, mut all_well, mut served) = (JoinSet::new(), true, 0);
        // Where commands from stdin go: to the peer that came last.
        let mut talking: Vec<mpsc::UnboundedSender<Step>> = Vec::new();
        let signalled = loop {
            if self.most.is_some_and(|most| served >= most) {
                break false;
            }
            tokio::select! {
                Some(news) = arrivals.recv() => match news {
                    News::Connected(coming) => {
                        let Coming { runner, script, .. } = coming;
                        let commands = match &typed {
                            Some(_) => {
                                let (sender, steps) = mpsc::unbounded_channel();
                                talking.push(sender);
                                Commands::Sent(steps)
                            }
                            None => Commands::Script(script),
                        };
                        sessions.spawn(attend(runner, commands, ended.clone()));
                    }
                    News::Failed(status) => {
                        lines.show(&Event::Error { status: Name(status) });
                        handlers.close();
                        return Err(anyhow!("cannot listen any longer: {status}"));
                    }
                },
                Some(well) = sessions.join_next() => {
                    all_well &= well.unwrap_or(false);
                    served += 1;
                    passive.lock().open -= 1;
                }
                step = next(&mut typed, &lines) => match step {
                    Ok(Some(step)) => {
                        talking.retain(|sender| !sender.is_closed());
                        let sent = talking.last().map(|sender| sender.send(step.clone()));
                        if !matches!(sent, Some(Ok(()))) && !passive.keep(step) {
                            report::error(&anyhow!("no peer is connected; wait for one"));
                        }
                    }
                    Ok(None) => {
                        typed = None;
                        talking.clear();
                    }
                    Err(error) => {
                        handlers.close();
                        return Err(error);
                    }
                },
                () = self.interrupted.wait() => break true,
            }
        };
        end.send_replace(true);
        let all = async { while sessions.join_next().await.is_some() {} };
        if timeout(SHUTDOWN, all).await.is_err() {
            tracing::debug!("some sessions did not end in time");
        }
        handlers.close();
        Ok(signalled || all_well)
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

/// One session, from its beginning to its end. Says whether all went well.
async fn attend(runner: Runner, mut commands: Commands, mut ended: watch::Receiver<bool>) -> bool {
    let endpoint = runner.endpoint.clone();
    let are_sent = matches!(commands, Commands::Sent(_));
    let over = async {
        endpoint.disconnected().await;
    };
    let talk = async {
        // What can be understood was told apart from what cannot before it came here.
        let goes_on = runner.converse(&mut commands).await.unwrap_or(false);
        if goes_on {
            endpoint.disconnected().await;
        }
    };
    let told_to_end = async {
        // The lock in the result is not to be kept.
        let _ = ended.wait_for(|&ended| ended).await;
    };
    let whole = async {
        tokio::select! {
            () = talk => {}
            // A script goes on to its end; whoever types finds nobody.
            () = over, if are_sent => {}
            () = told_to_end => {}
        }
        runner.release(Some(SHUTDOWN)).await;
    };
    runner.driven(whole).await;
    let session = &runner.session;
    // An event has told of a connection that was lost.
    match session.verdict() {
        Ok(()) => true,
        Err(_) if session.is_lost() => false,
        Err(what) => {
            report::error(&anyhow!("peer {}: {what}", session.number));
            false
        }
    }
}

/// Which of the options that go with `--tdi` was given, if any was.
pub(crate) fn given(tdi: &TdiOptions, script: &ScriptOptions) -> Option<&'static str> {
    tdi.given().or_else(|| script.given())
}
