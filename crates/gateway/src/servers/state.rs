//! The state of a server: what its checks saw, and what follows from it. This is the only place that decides;
//! docs/clusters.md has the table in words.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smbdirect_transport::Cause;
use tokio::time::Instant;

use crate::live::Check;

/// What a check of a server saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// An answer to NEGOTIATE, whatever it says about the dialects of the check.
    Answers,
    /// The server accepted the connection and closed it: it is full, or may serve no further client of this address.
    Closes,
    /// The server answered, and not in SMB2: TLS, HTTP, another port.
    OtherProtocol,
    /// The machine of the server answers that nothing listens.
    Refuses,
    /// The server accepted the connection and did not answer.
    #[default]
    Silent,
    /// No packet came back, or there is no route.
    Unreachable,
    /// The name of the server cannot be looked up, or has no address.
    Nameless,
}

/// Whether a server gets clients that have no sessions there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewClients {
    Yes,
    /// New clients try the server if no other server takes them.
    IfNoOther,
    No,
}

/// What follows when a check saw something.
#[derive(Clone, Copy, Debug)]
struct Consequences {
    /// The name in figures and events.
    label: &'static str,
    new_clients: NewClients,
    /// Whether the server may be dead, so that its sessions end if they have no answers either.
    may_be_dead: bool,
}

impl Seen {
    /// Everything that a check can see.
    pub const ALL: [Self; 7] = [
        Self::Answers,
        Self::Closes,
        Self::OtherProtocol,
        Self::Refuses,
        Self::Silent,
        Self::Unreachable,
        Self::Nameless,
    ];

    /// Returns what follows: the table.
    const fn consequences(self) -> Consequences {
        use NewClients::{IfNoOther, No, Yes};
        let (label, new_clients, may_be_dead) = match self {
            Self::Answers => ("answers", Yes, false),
            Self::Closes => ("closes", IfNoOther, false),
            Self::OtherProtocol => ("other_protocol", No, false),
            // Its kernel has ended the connections of a server that has ended.
            Self::Refuses => ("refuses", No, false),
            Self::Silent => ("silent", No, true),
            Self::Unreachable => ("unreachable", No, true),
            Self::Nameless => ("nameless", IfNoOther, false),
        };
        Consequences {
            label,
            new_clients,
            may_be_dead,
        }
    }

    /// Returns the name in figures and events.
    pub const fn label(self) -> &'static str {
        self.consequences().label
    }

    /// Returns what the failure of a connection says; `None` if it says nothing about the server.
    pub(crate) const fn of(cause: Cause) -> Option<Self> {
        Some(match cause {
            Cause::Own => return None,
            Cause::Name => Self::Nameless,
            Cause::Refused => Self::Refuses,
            Cause::Closed => Self::Closes,
            Cause::OtherProtocol => Self::OtherProtocol,
            Cause::Silent => Self::Silent,
            Cause::Unreachable => Self::Unreachable,
        })
    }
}

/// The result of a check.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// What it saw; `None` if something of this machine kept it from seeing anything.
    pub(crate) seen: Option<Seen>,
    /// What is wrong, for people; `None` if nothing is.
    pub(crate) fault: Option<String>,
    /// The answers to sessions of the server when the check began, and when it ended.
    pub(crate) answers: [u64; 2],
}

/// What a check has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The server takes clients again.
    Up,
    /// The server gets no new clients.
    Down,
    /// The sessions of the server end.
    GivenUp,
}

/// The state of a server.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// What decides.
    pub(crate) seen: Seen,
    /// Checks in a row that contradict whether the server answers.
    pub(crate) contrary: u32,
    /// Checks in a row without any sign of life, from the server or to its sessions.
    pub(crate) lifeless: u32,
    /// The answers to its sessions when the last check began, if that saw no sign of life.
    pub(crate) answers: Option<u64>,
    pub(crate) is_given_up: bool,
    /// Whether anything is known. If not, the first check alone decides about new clients.
    pub(crate) is_known: bool,
    /// Time at which the server began to take clients again.
    pub(crate) up_since: Option<Instant>,
    pub(crate) slow_start: Duration,
    /// The fault that the last check found.
    pub(crate) fault: Option<String>,
}

impl Default for State {
    /// Returns the state of a server that no check has seen: it is assumed to answer.
    fn default() -> Self {
        Self {
            seen: Seen::Answers,
            contrary: 0,
            lifeless: 0,
            answers: None,
            is_given_up: false,
            is_known: false,
            up_since: None,
            slow_start: Duration::ZERO,
            fault: None,
        }
    }
}

impl State {
    pub(crate) const fn new_clients(&self) -> NewClients {
        self.seen.consequences().new_clients
    }

    pub(crate) fn is_up(&self) -> bool {
        self.seen == Seen::Answers
    }

    /// Takes the result of a check into account. Returns what changes by it.
    pub(crate) fn checked(&mut self, check: &Check, checked: Checked) -> Vec<Change> {
        self.fault = checked.fault;
        let Some(seen) = checked.seen else {
            return Vec::new();
        };
        self.slow_start = check.slow_start;
        let mut changes = Vec::new();
        self.count_lifeless(seen, checked.answers);
        let is_first = !std::mem::replace(&mut self.is_known, true);
        let (was_up, is_up) = (self.is_up(), seen == Seen::Answers);
        if was_up == is_up {
            self.contrary = 0;
            self.seen = seen;
        } else {
            self.contrary += 1;
            let needed = if is_up { check.rise } else { check.fall };
            if is_first || self.contrary >= needed {
                self.contrary = 0;
                self.seen = seen;
                self.up_since = is_up.then(Instant::now);
                changes.push(if is_up { Change::Up } else { Change::Down });
            }
        }
        let was_given_up = std::mem::replace(&mut self.is_given_up, self.lifeless >= check.fall);
        if self.is_given_up && !was_given_up {
            changes.push(Change::GivenUp);
        }
        changes
    }

    /// Counts the check if the server and its sessions show no sign of life. `answers` are those to its sessions at the
    /// beginning and the end of the check.
    fn count_lifeless(&mut self, seen: Seen, [before, after]: [u64; 2]) {
        if !seen.consequences().may_be_dead {
            (self.lifeless, self.answers) = (0, None);
            return;
        }
        // Also since the beginning of the check before, if that has failed.
        let before = self.answers.replace(before).unwrap_or(before);
        self.lifeless = if before == after {
            self.lifeless + 1
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECK: Check = Check {
        interval: Duration::from_secs(2),
        rise: 2,
        fall: 3,
        slow_start: Duration::ZERO,
    };

    fn checked(seen: Seen, answers: [u64; 2]) -> Checked {
        Checked {
            seen: Some(seen),
            fault: None,
            answers,
        }
    }

    /// A state that has seen an answer.
    fn up() -> State {
        let mut state = State::default();
        assert!(
            state
                .checked(&CHECK, checked(Seen::Answers, [0, 0]))
                .is_empty()
        );
        state
    }

    #[test]
    fn only_a_server_without_any_sign_of_life_is_given_up() {
        for seen in Seen::ALL {
            let (mut state, mut changes) = (up(), Vec::new());
            for _ in 0..9 {
                changes.extend(state.checked(&CHECK, checked(seen, [0, 0])));
            }
            let expected = match seen {
                Seen::Answers => &[][..],
                Seen::Silent | Seen::Unreachable => &[Change::Down, Change::GivenUp],
                _ => &[Change::Down],
            };
            assert_eq!(changes, expected, "{seen:?}");
        }
    }

    #[test]
    fn a_server_whose_sessions_are_answered_is_not_given_up() {
        let mut state = up();
        for at in 0..9 {
            // The answer comes between two checks, or during one.
            let answers = [[at, at], [at, at + 1]][at as usize % 2];
            state.checked(&CHECK, checked(Seen::Unreachable, answers));
        }
        assert!(!state.is_up() && !state.is_given_up);
        let given_up: Vec<_> = (0..4)
            .map(|_| {
                let changes = state.checked(&CHECK, checked(Seen::Unreachable, [9, 9]));
                changes == [Change::GivenUp]
            })
            .collect();
        // The last answer came while the check before the first of these was made.
        assert_eq!(given_up, [false, false, false, true]);
        // Any other sign of life counts, too.
        state.checked(&CHECK, checked(Seen::Closes, [9, 9]));
        assert!(!state.is_given_up);
    }

    #[test]
    fn the_state_goes_with_what_is_seen_while_it_is_down() {
        let mut state = up();
        for seen in [Seen::Closes, Seen::Closes, Seen::Refuses] {
            assert!(state.is_up());
            state.checked(&CHECK, checked(seen, [0, 0]));
        }
        assert_eq!(state.new_clients(), NewClients::No);
        state.checked(&CHECK, checked(Seen::Nameless, [0, 0]));
        assert_eq!(state.new_clients(), NewClients::IfNoOther);
        for changes in [&[][..], &[Change::Up]] {
            assert_eq!(
                state.checked(&CHECK, checked(Seen::Answers, [0, 0])),
                changes
            );
        }
    }

    /// Neither a name server that is away nor a full table of descriptors ends the sessions of every server.
    #[test]
    fn a_fault_of_this_machine_says_nothing_about_a_server() {
        for mut state in [State::default(), up()] {
            for _ in 0..9 {
                let own = Checked {
                    seen: None,
                    fault: Some("too many open files".into()),
                    answers: [0, 0],
                };
                assert!(state.checked(&CHECK, own).is_empty());
            }
            assert!(state.is_up() && state.fault.is_some());
        }
    }

    #[test]
    fn the_first_check_decides_alone() {
        let mut state = State::default();
        let changes = state.checked(&CHECK, checked(Seen::Silent, [0, 0]));
        assert_eq!(changes, [Change::Down]);
        assert!(
            state
                .checked(&CHECK, checked(Seen::Answers, [0, 0]))
                .is_empty()
        );
        let changes = state.checked(&CHECK, checked(Seen::Answers, [0, 0]));
        assert_eq!(changes, [Change::Up]);
        state.checked(&CHECK, checked(Seen::Silent, [0, 0]));
        assert!(state.is_up());
    }
}
