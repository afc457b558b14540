//! The answer of `smbdirect check`: a verdict, and steps with their evidence, causes and cures.

use serde::Serialize;

use super::fault::Fault;

/// What was concluded.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// One sentence.
    pub(super) verdict: String,
    pub(super) sections: Vec<Section>,
}

/// Whether SMB Direct works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Works,
    DoesNot,
    Unknown,
}

/// Steps about one thing.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) about: About,
    pub(super) title: String,
    pub(super) steps: Vec<Step>,
}

/// What the steps of a section are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum About {
    /// This machine as a client.
    Client,
    /// This machine as a server.
    Server,
    Mounts,
    Way,
    Session,
}

/// One thing that was examined.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) state: State,
    /// What was seen.
    pub(super) evidence: String,
    pub(super) fault: Option<Fault>,
    pub(super) cause: Option<String>,
    pub(super) cures: Vec<Cure>,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Ok,
    /// SMB Direct works, but not for everybody, or not as fast as it could.
    Warning,
    /// SMB Direct does not work because of it.
    Fault,
    /// The probes could not determine it.
    Unknown,
    /// It was not examined, or does not matter here.
    Skipped,
}

/// What to do about a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Cure {
    /// Where to do it, such as `here` or `server (ksmbd)`.
    pub(super) place: &'static str,
    /// A command to paste.
    pub(super) command: String,
}

impl Step {
    pub(super) fn ok(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(name, State::Ok, evidence)
    }

    pub(super) fn skipped(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(name, State::Skipped, evidence)
    }

    pub(super) fn unknown(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self::new(name, State::Unknown, evidence)
    }

    /// Creates a step that says why SMB Direct does not work.
    pub(super) fn fault(
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
    pub(super) fn warning(
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
    pub(super) fn cure(mut self, place: &'static str, command: impl Into<String>) -> Self {
        self.cures.push(Cure {
            place,
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
        }
    }
}

impl Answer {
    /// Returns all steps.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.sections.iter().flat_map(|section| &section.steps)
    }
}

/// Places of cures.
pub(super) mod place {
    pub(in crate::check) const HERE: &str = "here";
    pub(in crate::check) const KSMBD: &str = "server (ksmbd)";
    pub(in crate::check) const SAMBA: &str = "server (Samba)";
    pub(in crate::check) const SERVER: &str = "server";
    pub(in crate::check) const SERVER_LINUX: &str = "server (Linux)";
    pub(in crate::check) const WINDOWS: &str = "server (Windows)";
    pub(in crate::check) const WINDOWS_CLIENT: &str = "client (Windows)";
}
