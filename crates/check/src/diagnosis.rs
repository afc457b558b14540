//! A diagnosis: a verdict, and steps with their evidence, causes and cures.

use serde::Serialize;

use crate::{
    facts::{AttemptFault, Fabric},
    fault::Fault,
    measurement::{Comparison, Limited, Rate, Speed},
};

/// The conclusions from facts.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Whether SMB Direct works.
    pub outcome: Outcome,
    /// The conclusion in one sentence.
    pub verdict: String,
    /// The steps that led to it.
    pub sections: Vec<Section>,
    /// The rates that were measured, and what limits them.
    pub speed: Option<Speed>,
}

/// Whether SMB Direct works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// SMB Direct works.
    Works,
    /// SMB Direct does not work.
    DoesNot,
    /// The probes could not tell.
    Unknown,
}

/// The steps about one subject.
#[derive(Clone, Debug)]
pub struct Section {
    /// The subject, for programs.
    pub about: About,
    /// The subject, for people.
    pub title: String,
    /// The steps.
    pub steps: Vec<Step>,
}

/// The subject of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum About {
    /// This machine as a client.
    Client,
    /// This machine as a server.
    Server,
    /// The mounts of this machine.
    Mounts,
    /// A server and the network to it.
    #[serde(rename = "way")]
    Remote,
    /// A session with the server.
    Session,
}

/// One step of the examination, with its result.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The thing.
    pub name: String,
    /// The result.
    pub state: State,
    /// What was seen.
    pub evidence: String,
    /// The fault or limit, if there is one.
    pub fault: Option<Fault>,
    /// The cause of the fault.
    pub cause: Option<String>,
    /// The cures of the fault.
    pub cures: Vec<Cure>,
    /// The kind of RDMA and the failure, if the step is a failed attempt to connect.
    #[serde(skip)]
    pub(crate) attempt: Option<(Fabric, AttemptFault)>,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// There is no fault.
    Ok,
    /// SMB Direct works, but not for every client, or not as fast as it could.
    Warning,
    /// SMB Direct does not work because of it.
    Fault,
    /// The probes could not determine it.
    Unknown,
    /// The step was not run, or does not matter here.
    Skipped,
}

/// A cure of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cure {
    /// The machine to run the command on.
    #[serde(rename = "place")]
    pub run_on: RunOn,
    /// A command to paste.
    pub command: String,
}

/// The machine to run a command on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOn {
    /// This machine.
    Here,
    /// The server, on any operating system.
    Server,
    /// A server with Linux.
    ServerLinux,
    /// A server with ksmbd.
    Ksmbd,
    /// A server with Samba.
    Samba,
    /// A server with Windows.
    Windows,
    /// A client with Windows.
    WindowsClient,
}

impl RunOn {
    /// Returns the name for people, which JSON also has.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Here => "here",
            Self::Server => "server",
            Self::ServerLinux => "server (Linux)",
            Self::Ksmbd => "server (ksmbd)",
            Self::Samba => "server (Samba)",
            Self::Windows => "server (Windows)",
            Self::WindowsClient => "client (Windows)",
        }
    }
}

impl Serialize for RunOn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A part of a diagnosis, as programs read it.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// The conclusion.
    Verdict {
        /// Whether SMB Direct works.
        outcome: Outcome,
        /// The conclusion in one sentence.
        verdict: &'a str,
        /// The faults of all steps.
        faults: Vec<Fault>,
        /// The limits of all steps.
        limits: Vec<Fault>,
    },
    /// A step.
    Step {
        /// The subject of its section, for programs.
        about: About,
        /// The subject of its section, for people.
        section: &'a str,
        /// The step.
        #[serde(flatten)]
        step: &'a Step,
    },
    /// What the path carries without SMB.
    Path {
        /// Bytes in a second, if they were measured.
        bytes_per_second: Option<f64>,
        /// The rate, or why it is unknown, in a sentence.
        sentence: &'a str,
    },
    /// A rate.
    Rate {
        /// As in `TCP` or `SMB Direct by software iWARP`.
        transport: &'a str,
        /// The rate.
        #[serde(flatten)]
        rate: &'a Rate,
    },
    /// What limits a rate.
    Limit {
        /// As in `TCP` or `SMB Direct by software iWARP`.
        transport: &'a str,
        /// The limit.
        #[serde(flatten)]
        limited: &'a Limited,
    },
    /// Rates that were not measured.
    NotMeasured {
        /// As in `TCP` or `SMB Direct by software iWARP`.
        transport: &'a str,
        /// The reason.
        reason: &'a str,
    },
    /// SMB Direct compared with TCP.
    Comparison {
        /// The comparison.
        #[serde(flatten)]
        comparison: &'a Comparison,
    },
}

impl Diagnosis {
    /// Returns the verdict, then all steps, and then the rates and what follows from them.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let faults_in = |state: State| {
            let steps = self.steps().filter(|step| step.state == state);
            steps.filter_map(|step| step.fault).collect()
        };
        let verdict = Event::Verdict {
            outcome: self.outcome,
            verdict: &self.verdict,
            faults: faults_in(State::Fault),
            limits: faults_in(State::Warning),
        };
        let steps = self.sections.iter().flat_map(|section| {
            section.steps.iter().map(|step| Event::Step {
                about: section.about,
                section: &section.title,
                step,
            })
        });
        let speed = self.speed.iter().flat_map(Speed::events);
        std::iter::once(verdict).chain(steps).chain(speed)
    }

    /// Returns all steps.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.sections.iter().flat_map(|section| &section.steps)
    }
}

impl Speed {
    fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let path = Event::Path {
            bytes_per_second: self.path,
            sentence: &self.path_sentence,
        };
        let transports = self.transports.iter().flat_map(|speed| {
            let transport = &*speed.name;
            let rates = speed.rates.iter();
            let rates = rates.map(move |rate| Event::Rate { transport, rate });
            let limits = speed.limits.iter();
            let limits = limits.map(move |limited| Event::Limit { transport, limited });
            let failure = speed.failure.as_deref();
            let failure = failure.map(|reason| Event::NotMeasured { transport, reason });
            rates.chain(limits).chain(failure)
        });
        let comparisons = self.comparisons.iter();
        let comparisons = comparisons.map(|comparison| Event::Comparison { comparison });
        std::iter::once(path).chain(transports).chain(comparisons)
    }
}

impl Step {
    pub(crate) fn ok(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(name, State::Ok, evidence)
    }

    pub(crate) fn skipped(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(name, State::Skipped, evidence)
    }

    pub(crate) fn unknown(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(name, State::Unknown, evidence)
    }

    /// Creates a step that says why SMB Direct does not work.
    pub(crate) fn fault(
        name: impl Into<String>,
        evidence: impl Into<String>,
        fault: Fault,
        cause: impl Into<String>,
    ) -> Self {
        Self {
            fault: Some(fault),
            cause: Some(cause.into()),
            ..Self::new(name, State::Fault, evidence)
        }
    }

    /// Creates a step that says what limits SMB Direct.
    pub(crate) fn warning(
        name: impl Into<String>,
        evidence: impl Into<String>,
        fault: Fault,
        cause: impl Into<String>,
    ) -> Self {
        Self {
            state: State::Warning,
            ..Self::fault(name, evidence, fault, cause)
        }
    }

    /// Adds a command that cures the fault.
    pub(crate) fn cure(mut self, run_on: RunOn, command: impl Into<String>) -> Self {
        self.cures.push(Cure {
            run_on,
            command: command.into(),
        });
        self
    }

    fn new(name: impl Into<String>, state: State, evidence: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state,
            evidence: evidence.into(),
            fault: None,
            cause: None,
            cures: Vec::new(),
            attempt: None,
        }
    }
}
