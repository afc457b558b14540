//! A session with a server for `get`, `put` and `ls`: its options, its start, and why a server refuses.

use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use smb2::{
    ErrorKind,
    types::{Command, status::NtStatus},
};
use smbdirect::{Connection, ConnectionError};
use smbdirect_smb2::{Account, Client, Error, File, Login, OpenMode, Share, ShareEntry, Transfer};

use crate::{
    failure::{Kind, OfKind, of_kind},
    login::LoginOptions,
    options::{Address, CommonOptions, ConnectOptions, seconds},
    pcap::Capture,
    report::{NegotiatedReport, Report},
    transport,
};

use super::place::Place;

/// Options of `get`, `put` and `ls`.
#[derive(Debug, Args)]
pub(crate) struct SmbOptions {
    #[command(flatten)]
    login: LoginOptions,

    /// Longest time for the server to answer a request
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    answer_timeout: Duration,

    #[command(flatten)]
    pub(crate) connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) common: CommonOptions,
}

/// Longest time for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Advice for a server that does not answer.
const CURE_FOR_NO_ANSWER: &str = "--answer-timeout SECONDS sets how long to wait";

/// A session with one share.
pub(super) struct Session {
    pub(super) share: Share,
    connection: Connection,
    /// The capture ends with the session.
    _capture: Option<Capture>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Connected {
        address: String,
        transport: &'static str,
        negotiated: NegotiatedReport,
        dialect: &'a str,
        signs: bool,
        /// Whether data moves by RDMA; unknown without a share.
        rdma: Option<bool>,
        reason: Option<String>,
    },
}

impl SmbOptions {
    /// Connects, logs in and connects to the share of `place`. With `by_messages`, data does not move by
    /// RDMA.
    pub(super) async fn open(
        &self,
        place: &Place,
        by_messages: bool,
        report: &Report,
    ) -> Result<Session> {
        let mut client = self.log_in(place).await?;
        if by_messages {
            client.smb.use_messages();
        }
        let share = client.smb.share(&place.share).await;
        let share = share.map_err(|error| {
            let kind = kind_of(&error, Kind::Share);
            let can_encrypt = client.smb.can_encrypt();
            of_kind(kind, explain_share(error, place, self.other(), can_encrypt))
        })?;
        client.report(report, Some(share.transfer()));
        Ok(Session {
            share,
            connection: client.connection,
            _capture: client.capture,
        })
    }

    /// Connects, logs in, and returns the shares that the server of `place` lists.
    pub(super) async fn shares(&self, place: &Place, report: &Report) -> Result<Vec<ShareEntry>> {
        let mut client = self.log_in(place).await?;
        client.report(report, None);
        let shares = client.smb.shares().await;
        transport::close(&client.connection, CLOSE_TIMEOUT).await;
        shares.map_err(|error| {
            let kind = kind_of(&error, Kind::Share);
            of_kind(kind, explain_list(error, place, self.other()))
        })
    }

    /// Connects and logs in.
    async fn log_in(&self, place: &Place) -> Result<LoggedIn> {
        let login = self.login.login(place).await?;
        let login = login.unwrap_or_else(|| Login::Account(Account::default()));
        let config = self.common.config(Some(&self.connect), None)?;
        let (rdma, capture) =
            transport::one_end(&self.common, Some(&self.connect), &place.address)?;
        let connection = rdma.connect(&place.address, &config).await;
        let connection = connection.of_kind(Kind::Connect)?;
        let server = &place.address.host;
        let smb = Client::connect(connection.clone(), server, &login, self.answer_timeout).await;
        let smb = smb.map_err(|error| {
            let kind = kind_of(&error, Kind::Login);
            of_kind(kind, explain_login(error, place, &login))
        })?;
        Ok(LoggedIn {
            smb,
            connection,
            transport: rdma.name(),
            capture,
        })
    }

    /// Returns how to log in as another user.
    const fn other(&self) -> &'static str {
        if self.login.kerberos {
            "log in as another user by `kinit USER@REALM`"
        } else {
            "give --user USER"
        }
    }
}

/// A connection with a session, and no share yet.
struct LoggedIn {
    smb: Client,
    connection: Connection,
    transport: &'static str,
    capture: Option<Capture>,
}

impl LoggedIn {
    /// Reports the session, and how the data of its share moves.
    fn report(&self, report: &Report, transfer: Option<Transfer>) {
        let reason = match transfer {
            Some(Transfer::Messages(reason)) => Some(reason.to_string()),
            Some(Transfer::Rdma(_)) | None => None,
        };
        report.event(&Event::Connected {
            address: self.connection.peer_addr().to_string(),
            transport: self.transport,
            negotiated: self.connection.negotiated().into(),
            dialect: &self.smb.dialect(),
            signs: self.smb.signs(),
            rdma: transfer.map(|_| reason.is_none()),
            reason,
        });
    }
}

impl Session {
    /// Opens the file of `place` to read it.
    pub(super) async fn open(&self, place: &Place) -> Result<File> {
        let opened = match self.share.open(&place.path, OpenMode::Read).await {
            Err(error) if is_missing(&error) => match self.share.find(&place.path).await {
                Ok((path, _)) => self.share.open_exact(&path).await,
                Err(other) if is_missing(&other) => Err(error),
                Err(other) => Err(other),
            },
            opened => opened,
        };
        opened.map_err(|error| explain(error, place))
    }

    /// Ends the connection gracefully.
    pub(super) async fn close(self) {
        transport::close(&self.connection, CLOSE_TIMEOUT).await;
    }
}

/// Returns the kind of a failure: that of the connection if it is the cause, or else `kind`.
const fn kind_of(error: &Error, kind: Kind) -> Kind {
    match error {
        Error::Connection(_) | Error::NoAnswer(_) => Kind::Connection,
        _ => kind,
    }
}

/// STATUS_ILLEGAL_CHARACTER: Samba lists names that are not well-formed UTF-16, but does not open them.
const ILLEGAL_CHARACTER: NtStatus = NtStatus(0xc000_0161);

/// STATUS_QUOTA_EXCEEDED and STATUS_DISK_QUOTA_EXCEEDED.
const QUOTA_EXCEEDED: NtStatus = NtStatus(0xc000_0044);
const DISK_QUOTA_EXCEEDED: NtStatus = NtStatus(0xc000_0802);
/// STATUS_LOCK_NOT_GRANTED.
const LOCK_NOT_GRANTED: NtStatus = NtStatus(0xc000_0055);
/// STATUS_MEDIA_WRITE_PROTECTED.
const MEDIA_WRITE_PROTECTED: NtStatus = NtStatus(0xc000_00a2);
/// STATUS_TOO_MANY_OPENED_FILES.
const TOO_MANY_OPENED_FILES: NtStatus = NtStatus(0xc000_011f);
/// STATUS_NAME_TOO_LONG.
const NAME_TOO_LONG: NtStatus = NtStatus(0xc000_0106);

/// The reason why the server refuses a guest but not other users.
const NO_GUESTS: &str = "guest and anonymous sessions cannot encrypt";

/// STATUS_NTLM_BLOCKED.
const NTLM_BLOCKED: NtStatus = NtStatus(0xc000_0418);

/// Statuses of a server that takes no more sessions or connections: STATUS_INSUFFICIENT_RESOURCES,
/// STATUS_TOO_MANY_SESSIONS, STATUS_REQUEST_NOT_ACCEPTED, STATUS_INSUFF_SERVER_RESOURCES and
/// STATUS_CONNECTION_COUNT_LIMIT.
const FULL: [u32; 5] = [
    0xc000_009a,
    0xc000_00ce,
    0xc000_00d0,
    0xc000_0205,
    0xc000_0246,
];

/// Returns the explanation of an error that is none of a login, a share or a path.
fn explain_any(error: &Error, about: &str) -> Option<anyhow::Error> {
    Some(match error {
        Error::Connection(cause) => anyhow!("{about}: {}", transport::explain_end(cause)),
        Error::NoAnswer(_) => anyhow!("{about}: {error}; {CURE_FOR_NO_ANSWER}"),
        Error::Status { status, .. } if FULL.contains(&status.0) => anyhow!(
            "{about}: the server has reached its limit of clients ({error}); try again later, or raise its limit \
             (Samba: `max connections`)"
        ),
        _ => return None,
    })
}

/// Returns the explanation of an error that comes before the login, or that does not concern the user.
fn explain_start(error: &Error, address: &Address) -> Option<anyhow::Error> {
    match error {
        Error::Status {
            command: Command::Negotiate,
            ..
        } => Some(anyhow!(
            "{address} has no SMB dialect or signing algorithm in common with this client ({error}); allow SMB 2.0.2 or later there, and with \
             SMB 3.1.1 signing by AES-CMAC or AES-GMAC, not by HMAC-SHA256 alone"
        )),
        Error::Connection(cause) => {
            let end = transport::explain_end(cause);
            let cure = match cause {
                ConnectionError::Closed => {
                    "; the server may be full (Samba: `max smbd processes`), or the gateway before it does not reach it: \
                     see their logs, or try again later"
                }
                _ => "",
            };
            Some(anyhow!(
                "{address} speaks SMB Direct, but the login failed: {end}{cure}"
            ))
        }
        _ => explain_any(error, &address.to_string()),
    }
}

/// Explains why the login failed, and what to try.
fn explain_login(error: Error, place: &Place, login: &Login) -> anyhow::Error {
    let (address, user) = (&place.address, &login.user());
    if let Some(explained) = explain_start(&error, address) {
        return explained;
    }
    let status = error.status();
    let is_guest_only =
        matches!(&error, Error::Smb2(cause) if cause.kind() == ErrorKind::GuestSessionRefused);
    if let Error::Kerberos(error) = error {
        return anyhow!("no login by Kerberos: {error}");
    }
    if let Login::Tickets(_) = login {
        return match error {
            error if status.is_some() => anyhow!(
                "{address} refuses the Kerberos ticket of {user} ({error}); run `kinit` again, in case the cache has a \
                 ticket for an older key of the server; its clock may be wrong, its keytab older than its key in the \
                 realm, or the user unknown there; its log says which"
            ),
            Error::NoKey => anyhow!(
                "{address} asks for encryption, and takes {user} for a guest, who cannot encrypt; the user is unknown there"
            ),
            _ if is_guest_only => anyhow!(
                "{address} lets {user} in as a guest only: it accepts the ticket, but has no such user; add the user there"
            ),
            error => anyhow!("{address} refuses the login of `{user}`: {error}"),
        };
    }
    let is_guest = user.is_empty() || user.eq_ignore_ascii_case("guest");
    match (status, error) {
        (Some(NTLM_BLOCKED), error) => anyhow!(
            "{address} accepts no passwords: NTLM is off there ({error}); log in with --kerberos"
        ),
        (Some(NtStatus::ACCESS_DENIED), error) if is_guest => anyhow!(
            "{address} accepts no guests, or requires encryption ({error}): {NO_GUESTS}; give --user USER"
        ),
        (Some(NtStatus::ACCESS_DENIED), error) => anyhow!(
            "{address} refuses the login of `{user}` ({error}): the account may not log in, or the server \
             requires encryption other than AES-128"
        ),
        (Some(_), error) if user.is_empty() => anyhow!(
            "{address} refuses an anonymous session ({error}); give --user USER or --kerberos"
        ),
        (Some(NtStatus::LOGON_FAILURE), _) => {
            anyhow!("{address} refuses the login of {user}; check the user and the password")
        }
        (_, Error::NoKey) => {
            anyhow!("{address} asks for encryption: {NO_GUESTS}; give --user USER")
        }
        _ if is_guest_only => anyhow!(
            "{address} lets {user} in as a guest only; check the user and the password, or give --user Guest"
        ),
        (_, error) => anyhow!("{address} refuses the login of `{user}`: {error}"),
    }
}

/// `can_encrypt` distinguishes a share that may require encryption from a share that refuses the user. `other` says how
/// to log in as another one.
fn explain_share(error: Error, place: &Place, other: &str, can_encrypt: bool) -> anyhow::Error {
    let Place { address, share, .. } = place;
    if let Some(explained) = explain_any(&error, &format!("{address}, share `{share}`")) {
        return explained;
    }
    match (error.status(), &error) {
        (Some(NtStatus::BAD_NETWORK_NAME), _) => {
            anyhow!("{address} has no share `{share}`; check its name")
        }
        (Some(NtStatus::ACCESS_DENIED), _) if can_encrypt => anyhow!(
            "{address} refuses the share `{share}` to this user; check the share's permissions, or {other}"
        ),
        (Some(NtStatus::ACCESS_DENIED), _) => anyhow!(
            "{address} refuses the share `{share}` to this session, which cannot encrypt: the share \
             requires encryption, or its permissions exclude the user; {other}, or enable SMB 3 on the server"
        ),
        (_, Error::NoKey) => {
            anyhow!("the share `{share}` of {address} asks for encryption: {NO_GUESTS}; {other}")
        }
        (None, _) => anyhow!("{address}, share `{share}`: {error}"),
        _ => anyhow!("{address} refuses the share `{share}`: {error}"),
    }
}

fn explain_list(error: Error, place: &Place, other: &str) -> anyhow::Error {
    let address = &place.address;
    explain_any(&error, &address.to_string()).unwrap_or_else(|| {
        anyhow!(
            "{address} does not list its shares to this user ({error}); {other}, or name the share"
        )
    })
}

/// Returns whether no file has this name, or none can have it.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(
        error.status(),
        Some(
            NtStatus::OBJECT_NAME_NOT_FOUND
                | NtStatus::OBJECT_PATH_NOT_FOUND
                | NtStatus::OBJECT_NAME_INVALID
        )
    )
}

/// Explains why an operation on `place` failed, and what to try.
pub(super) fn explain(error: Error, place: &Place) -> anyhow::Error {
    let kind = kind_of(&error, Kind::Path);
    of_kind(kind, explain_path(error, place))
}

fn explain_path(error: Error, place: &Place) -> anyhow::Error {
    if let Some(explained) = explain_any(&error, &place.to_string()) {
        return explained;
    }
    let cause = match error.status() {
        Some(NtStatus::OBJECT_NAME_NOT_FOUND | NtStatus::NO_SUCH_FILE) => {
            "it does not exist; see `smbdirect ls`"
        }
        Some(NtStatus::OBJECT_PATH_NOT_FOUND) => {
            "its folder does not exist; see `smbdirect ls`, or check the path"
        }
        Some(NtStatus::OBJECT_NAME_COLLISION) => "it exists; --force overwrites it",
        Some(NtStatus::FILE_IS_A_DIRECTORY) => "it is a folder; give the path of a file",
        Some(NtStatus::ACCESS_DENIED) => {
            "access is denied; check the permissions of this user, and whether it is read-only"
        }
        Some(NtStatus::SHARING_VIOLATION) => "another program has it open; try again later",
        Some(NtStatus::FILE_LOCK_CONFLICT | LOCK_NOT_GRANTED) => {
            "another program has locked a part of it; try again when it has ended"
        }
        Some(NtStatus::DELETE_PENDING) => {
            "the server deletes it when its last program closes it, or another `put` has not finished it; \
             try again later"
        }
        Some(NtStatus::OBJECT_NAME_INVALID | NAME_TOO_LONG) => {
            "the server takes no file with this name: it is too long, or a character in it is not allowed; \
             choose another name"
        }
        Some(ILLEGAL_CHARACTER) => {
            "the server cannot open a file with this name, because of a character in it; rename it there"
        }
        Some(NtStatus::DISK_FULL) => "the server's disk is full; make room there",
        Some(QUOTA_EXCEEDED | DISK_QUOTA_EXCEEDED) => {
            "the quota of this user on the server is used up; make room there"
        }
        Some(
            NtStatus::INSUFFICIENT_RESOURCES
            | NtStatus::INSUFF_SERVER_RESOURCES
            | TOO_MANY_OPENED_FILES,
        ) => "the server has no room for another open file; close some there, or try again later",
        Some(MEDIA_WRITE_PROTECTED) => "the share is read-only; choose another one",
        _ => {
            return match error {
                Error::Ambiguous(_) => {
                    anyhow!("{place}: {error}; rename one of them on the server")
                }
                Error::DfsLink(_) => anyhow!("{place}: {error}; name that place"),
                error => anyhow!("{place}: {error}"),
            };
        }
    };
    anyhow!("{place}: {cause}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smb::PlaceParser;

    fn status(command: Command, status: u32) -> Error {
        let status = NtStatus(status);
        Error::Status { command, status }
    }

    #[test]
    fn a_full_server_is_not_the_fault_of_the_user() {
        let place = PlaceParser::InShare.read("//server/share/file").unwrap();
        let login = Login::Account(Account::default());
        for code in FULL {
            for explained in [
                explain_login(status(Command::SessionSetup, code), &place, &login),
                explain_share(status(Command::TreeConnect, code), &place, "", true),
                explain_list(status(Command::TreeConnect, code), &place, ""),
                explain_path(status(Command::Create, code), &place),
            ] {
                let text = explained.to_string();
                assert!(text.contains("reached its limit of clients"), "{text}");
            }
        }
    }

    #[test]
    fn a_login_that_cannot_be_is_explained() {
        let place = PlaceParser::InShare.read("//server/share").unwrap();
        let login = Login::Account(Account::default());
        for (error, says) in [
            (
                status(Command::SessionSetup, 0xc000_0418),
                "log in with --kerberos",
            ),
            (
                status(Command::Negotiate, 0xc000_000d),
                "not by HMAC-SHA256 alone",
            ),
            (
                status(Command::SessionSetup, 0xc000_0022),
                "give --user USER",
            ),
            (
                Error::Connection(ConnectionError::Closed),
                "the server may be full",
            ),
        ] {
            let text = explain_login(error, &place, &login).to_string();
            assert!(text.contains(says), "{text}");
        }
    }
}
