//! A case, and the server or client that its steps test.

use smbdirect::wire::{NegotiateRequest, NegotiateResponse};

use crate::{
    outcome::{Stop, Verdict, fail},
    peer::{Client, ClientAction, PeerFacts, PeerSettings, Server},
    raw::Raw,
    script::{Script, encoded, proposal},
    upper::UpperLayer,
};

/// Where a case comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Cases 1 to 42 of Microsoft's suite for servers (WindowsProtocolTestSuites, MS-SMBD).
    Microsoft,
    /// The mirror image of Microsoft's cases, for clients.
    Mirror,
    /// Peers that break RDMA or SMB Direct on purpose.
    Hostile,
    /// Malformed MPA, DDP and RDMAP.
    Iwarp,
    /// Bugs that other implementations have had, as far as they show on the wire.
    Bugs,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 5] = [
        Self::Microsoft,
        Self::Mirror,
        Self::Hostile,
        Self::Iwarp,
        Self::Bugs,
    ];

    /// Returns the name for reports and for the selection of cases.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Microsoft => "microsoft",
            Self::Mirror => "mirror",
            Self::Hostile => "hostile",
            Self::Iwarp => "iwarp",
            Self::Bugs => "bugs",
        }
    }

    /// Returns a case for servers.
    pub(crate) const fn case(
        self,
        id: &'static str,
        title: &'static str,
        section: &'static str,
        does: &'static str,
        run: fn(&mut ServerTrial<'_>) -> Verdict,
    ) -> Case {
        self.with((id, title, section, does), Run::Server(run))
    }

    const fn with(
        self,
        words: (&'static str, &'static str, &'static str, &'static str),
        run: Run,
    ) -> Case {
        let (id, title, section, does) = words;
        Case {
            id,
            group: self,
            title,
            section,
            does,
            is_disruptive: false,
            run,
        }
    }
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The name for selections: `m7` is case 7 of Microsoft's suite.
    pub id: &'static str,
    /// Where the case comes from.
    pub group: Group,
    /// The title; for Microsoft's cases the name in the suite.
    pub title: &'static str,
    /// The section of [MS-SMBD], or of an RFC, that decides.
    pub section: &'static str,
    /// What the case does and expects, in one sentence.
    pub does: &'static str,
    /// Whether the case can disable a peer that does not handle it.
    pub is_disruptive: bool,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Server(fn(&mut ServerTrial<'_>) -> Verdict),
    Client(fn(&mut ClientTrial<'_>) -> Verdict),
}

impl Case {
    pub(crate) const fn client(
        id: &'static str,
        title: &'static str,
        section: &'static str,
        does: &'static str,
        run: fn(&mut ClientTrial<'_>) -> Verdict,
    ) -> Self {
        Group::Mirror.with((id, title, section, does), Run::Client(run))
    }

    pub(crate) const fn disruptive(self) -> Self {
        Self {
            is_disruptive: true,
            ..self
        }
    }

    /// Returns whether the case judges a server; the others judge a client.
    pub const fn is_for_servers(&self) -> bool {
        matches!(self.run, Run::Server(_))
    }

    /// Runs a case for servers.
    ///
    /// # Errors
    /// The server broke a rule, or the case cannot decide.
    ///
    /// # Panics
    /// Panics if the case is for clients.
    pub fn judge_server(&self, server: &mut dyn Server, upper: &dyn UpperLayer) -> Verdict {
        let Run::Server(run) = self.run else {
            panic!("{} is for clients", self.id);
        };
        server.prepare(&PeerSettings::default())?;
        run(&mut ServerTrial::new(server, upper))
    }

    /// Runs a case for clients.
    ///
    /// # Errors
    /// The client broke a rule, or the case cannot decide.
    ///
    /// # Panics
    /// Panics if the case is for servers.
    pub fn judge_client(&self, client: &mut dyn Client, upper: &dyn UpperLayer) -> Verdict {
        let Run::Client(run) = self.run else {
            panic!("{} is for servers", self.id);
        };
        retried(|| {
            let verdict = run(&mut ClientTrial { client, upper });
            (verdict, client.facts().is_strict())
        })
    }
}

/// Maximum number of connections that a client may leave unused before a step of a case, and the case, fails.
const MAX_UNUSED: usize = 8;

/// Runs a step again whose connection the client has left unused, unless the client is strict.
fn retried<T>(mut step: impl FnMut() -> (Verdict<T>, bool)) -> Verdict<T> {
    let mut attempts = 1;
    loop {
        match step() {
            (Err(Stop::Unused { .. }), false) if attempts < MAX_UNUSED => attempts += 1,
            (verdict, _) => return verdict,
        }
    }
}

/// A server, during a case.
pub(crate) struct ServerTrial<'a> {
    server: &'a mut dyn Server,
    upper: &'a dyn UpperLayer,
}

impl<'a> ServerTrial<'a> {
    pub(crate) fn new(server: &'a mut dyn Server, upper: &'a dyn UpperLayer) -> Self {
        Self { server, upper }
    }

    /// Prepares the server with other settings than the default.
    pub(crate) fn prepare(&mut self, requested: &PeerSettings) -> Verdict {
        self.server.prepare(requested)
    }

    pub(crate) fn facts(&self) -> PeerFacts {
        self.server.facts()
    }

    /// Connects, without a negotiation.
    pub(crate) fn connect(&mut self) -> Verdict<Script> {
        let link = self.server.connect()?;
        Ok(Script::new(link, self.server.facts(), self.upper))
    }

    /// Connects below RDMA.
    pub(crate) fn connect_tcp(&mut self) -> Verdict<Raw> {
        let tcp = self.server.connect_tcp()?;
        Raw::new(tcp, self.server.facts().prompt)
    }

    /// Connects and negotiates.
    pub(crate) fn negotiated(&mut self, request: &NegotiateRequest) -> Verdict<Script> {
        let mut script = self.connect()?;
        script.negotiate(request)?;
        Ok(script)
    }

    /// Returns a connection that negotiated the proposal of the suite's client.
    pub(crate) fn session(&mut self) -> Verdict<Script> {
        self.negotiated(&proposal())
    }

    /// Checks that the server accepts the next connection and that it works.
    pub(crate) fn serves(&mut self) -> Verdict {
        let mut script = self.session().map_err(after_the_case)?;
        script.works().map_err(after_the_case)?;
        script.done()
    }

    /// Checks that the server ends the connection immediately because of a rule, and that it
    /// accepts the next one.
    pub(crate) fn terminated(&mut self, script: Script, reason: &str) -> Verdict {
        self.terminated_for_one_of(script, &[reason])
    }

    /// Like [`terminated`](Self::terminated), if several rules are broken.
    pub(crate) fn terminated_for_one_of(
        &mut self,
        mut script: Script,
        reasons: &[&str],
    ) -> Verdict {
        script.expect_terminated()?;
        self.ended_because(reasons)?;
        self.serves()
    }

    pub(crate) fn ended_because(&mut self, reasons: &[&str]) -> Verdict {
        let reasons: Vec<_> = reasons.iter().map(|&reason| reason.to_owned()).collect();
        self.server.ended_because(&reasons)
    }

    /// Checks that the request is accepted and that the connection works.
    pub(crate) fn negotiates(&mut self, request: &NegotiateRequest) -> Verdict<NegotiateResponse> {
        let mut script = self.connect()?;
        let response = script.negotiate(request)?;
        script.works()?;
        script.disconnect();
        Ok(response)
    }

    /// Checks that the request ends the connection without an answer.
    pub(crate) fn refuses(&mut self, request: &NegotiateRequest, reason: &str) -> Verdict {
        let mut script = self.connect()?;
        script.send_bytes(&encoded(|out| request.encode(out)))?;
        self.terminated(script, reason)
    }
}

/// Reports that the fault appeared on the connection that followed the connection of the case.
fn after_the_case(stop: Stop) -> Stop {
    stop.with_expected(|expected| {
        format!("the server accepts the next connection, and it works: {expected}")
    })
}

/// A client, during a case.
pub(crate) struct ClientTrial<'a> {
    client: &'a mut dyn Client,
    upper: &'a dyn UpperLayer,
}

impl ClientTrial<'_> {
    pub(crate) fn facts(&self) -> PeerFacts {
        self.client.facts()
    }

    /// Accepts the next connection.
    fn accept(&mut self, requested: &PeerSettings, action: ClientAction) -> Verdict<Script> {
        let link = self.client.accept(requested, action)?;
        Ok(Script::new(link, self.client.facts(), self.upper))
    }

    /// Accepts the next connection that the client uses, and begins the conversation on it.
    ///
    /// A client whose user has given up may connect once more for nothing, as a mount of Linux does after a
    /// failed attempt. Such a connection does not show whether the peer passes the case, so the next connection
    /// is used. A client whose settings are known was started for the case, and uses its connection.
    pub(crate) fn accept_used<T>(
        &mut self,
        requested: &PeerSettings,
        action: ClientAction,
        begin: impl Fn(&mut Script) -> Verdict<T>,
    ) -> Verdict<(Script, T)> {
        retried(|| {
            let accepted = self.accept(requested, action);
            let begun = accepted.and_then(|mut script| {
                let begun = begin(&mut script)?;
                Ok((script, begun))
            });
            (begun, self.client.facts().is_strict())
        })
    }

    /// Accepts the next connection that the client uses, and takes its Negotiate Request.
    pub(crate) fn asked(&mut self, action: ClientAction) -> Verdict<(Script, NegotiateRequest)> {
        self.accept_used(&PeerSettings::default(), action, Script::expect_request)
    }

    /// Checks that the client ends the connection immediately and fails because of `reason`.
    pub(crate) fn terminated(&mut self, mut script: Script, reason: &str) -> Verdict {
        script.expect_terminated()?;
        drop(script);
        self.fails(&[reason])
    }

    /// Checks that the client reports one of `reasons`, if its error message is known.
    pub(crate) fn fails(&mut self, reasons: &[&str]) -> Verdict {
        let Some(outcome) = self.client.finish()? else {
            return Ok(());
        };
        let expected = format!("the client fails with \"{}\"", reasons.join("\" or \""));
        match outcome {
            Ok(()) => fail(expected, "it reports success"),
            Err(words) if reasons.iter().any(|reason| words.contains(reason)) => Ok(()),
            Err(words) => fail(expected, words),
        }
    }

    /// Checks that the client has taken the answer and reports success.
    pub(crate) fn ends_well(&mut self, mut script: Script) -> Verdict {
        script.expect_taken()?;
        if script.facts().is_strict() {
            script.expect_end()?;
        } else {
            script.disconnect();
        }
        match self.client.finish()? {
            None | Some(Ok(())) => Ok(()),
            Some(Err(words)) => fail("the client succeeds", words),
        }
    }

    /// Checks that the connection works: answers the client's message in segments of `size`
    /// bytes.
    pub(crate) fn works(&mut self, mut script: Script) -> Verdict {
        let request = script.receive_request()?;
        let reply = script.reply_to(&request, 500)?;
        script.send_whole(&reply)?;
        self.ends_well(script)
    }
}
