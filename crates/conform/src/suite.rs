//! All cases, the selection of cases by name, and running one.

use std::{error::Error, fmt, str::FromStr};

use crate::{
    bugs,
    case::{Case, Group, ServerTrial},
    client, hostile, iwarp,
    outcome::{Outcome, Verdict},
    peer::{Client, Server},
    server,
    upper::{Echo, Smb2, UpperLayer},
};

/// Returns the cases for servers: Microsoft's, the hostile peers, malformed iWARP, the known bugs. Cases that can disable a server
/// are the last.
pub fn server_cases() -> impl Iterator<Item = &'static Case> {
    let all = || {
        let judged = server::cases().chain(hostile::CASES);
        judged.chain(iwarp::CASES).chain(bugs::CASES)
    };
    let harmless = all().filter(|case| !case.is_disruptive);
    harmless.chain(all().filter(|case| case.is_disruptive))
}

/// Returns the cases for clients.
pub fn client_cases() -> impl Iterator<Item = &'static Case> {
    client::cases()
}

/// Runs a case for servers.
///
/// # Panics
/// Panics if the case is for clients.
pub fn run(case: &Case, server: &mut dyn Server, upper: &dyn UpperLayer) -> Outcome {
    case.judge_server(server, upper).into()
}

/// Runs a case for clients. The client has to connect once or several times; a case without a
/// connection is skipped.
///
/// # Panics
/// Panics if the case is for servers.
pub fn run_client(case: &Case, client: &mut dyn Client, upper: &dyn UpperLayer) -> Outcome {
    case.judge_client(client, upper).into()
}

/// Checks that a server accepts a connection and that it works.
///
/// # Errors
/// What the server did instead.
pub fn serves(server: &mut dyn Server, upper: &dyn UpperLayer) -> Verdict {
    ServerTrial::new(server, upper).serves()
}

/// Detects the upper layer of a server by an SMB2 NEGOTIATE request, which an echo returns unchanged.
///
/// # Errors
/// The server does not negotiate SMB Direct, or its answer belongs to neither upper layer.
pub fn detect(server: &mut dyn Server) -> Verdict<&'static dyn UpperLayer> {
    let mut trial = ServerTrial::new(server, &Smb2);
    let mut script = trial.session()?;
    let request = script.request(0);
    script.send_whole(&request)?;
    let answer = script.receive()?;
    if answer == request {
        script.disconnect();
        return Ok(&Echo);
    }
    script.check_answer(&request, &answer)?;
    script.disconnect();
    Ok(&Smb2)
}

/// A selection of cases: an id such as `m7`, a range such as `m19-m33`, or the name of a group.
///
/// A range has all cases of a letter whose numbers are in it, with and without a suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Selected);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Selected {
    Group(Group),
    Id(&'static str),
    Range(char, u32, u32),
}

/// A selection that names no case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectionError(String);

impl fmt::Display for SelectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown case `{}`; an id is m7, a range m19-m33, a group microsoft, mirror, \
             hostile, iwarp or bugs",
            self.0
        )
    }
}

impl Error for SelectionError {}

impl Selection {
    /// Returns whether the case is selected.
    pub fn contains(&self, case: &Case) -> bool {
        match self.0 {
            Selected::Group(group) => case.group == group,
            Selected::Id(id) => case.id == id,
            Selected::Range(letter, first, last) => number(case.id)
                .is_some_and(|(found, number)| found == letter && (first..=last).contains(&number)),
        }
    }
}

/// Returns the letter and the number of an id.
fn number(id: &str) -> Option<(char, u32)> {
    let letter = id.chars().next()?;
    let digits = id[letter.len_utf8()..].trim_end_matches(|c: char| c.is_ascii_lowercase());
    Some((letter, digits.parse().ok()?))
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Self, SelectionError> {
        if let Some(group) = Group::ALL.into_iter().find(|group| group.name() == text) {
            return Ok(Self(Selected::Group(group)));
        }
        let mut cases = server_cases().chain(client_cases());
        if let Some(case) = cases.find(|case| case.id == text) {
            return Ok(Self(Selected::Id(case.id)));
        }
        let range = text.split_once('-').and_then(|(first, last)| {
            let ((letter, first), (same, last)) = (number(first)?, number(last)?);
            let range = Self(Selected::Range(letter, first, last));
            let is_known = server_cases()
                .chain(client_cases())
                .any(|case| range.contains(case));
            (letter == same && is_known).then_some(range)
        });
        range.ok_or_else(|| SelectionError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_texts_are_complete() {
        let mut ids = BTreeSet::new();
        for case in server_cases().chain(client_cases()) {
            assert!(ids.insert(case.id), "{} appears twice", case.id);
            assert!(number(case.id).is_some(), "{}", case.id);
            assert!(
                !case.does.ends_with('.') && case.does.len() > 20,
                "{}",
                case.id
            );
            assert!(
                case.section.contains(|c: char| c.is_ascii_digit()),
                "{}",
                case.id
            );
        }
        let microsoft: Vec<_> = (1..=42)
            .filter(|number| !ids.contains(format!("m{number}").as_str()))
            .collect();
        assert!(microsoft.is_empty(), "{microsoft:?}");
    }

    #[test]
    fn disruptive_cases_are_the_last() {
        let is_disruptive: Vec<_> = server_cases().map(|case| case.is_disruptive).collect();
        assert!(is_disruptive.is_sorted());
    }

    #[test]
    fn selections() {
        let selected = |text: &str| -> Vec<&str> {
            let selection: Selection = text.parse().unwrap();
            let cases = server_cases().chain(client_cases());
            cases
                .filter(|case| selection.contains(case))
                .map(|case| case.id)
                .collect()
        };
        assert_eq!(selected("m7"), ["m7"]);
        assert_eq!(selected("m12-m14"), ["m12", "m13", "m14b", "m14"]);
        assert_eq!(selected("c34-c36"), ["c34", "c35", "c36"]);
        assert_eq!(selected("bugs").len(), bugs::CASES.len());
        for text in ["", "m", "m99", "m3-", "m3-c4", "m90-m99", "server"] {
            let error = text.parse::<Selection>().unwrap_err();
            assert!(error.to_string().contains("unknown case"), "{text}");
        }
    }
}
