//! Logins by Kerberos, with the tickets that `kinit` leaves in a credential cache.
//!
//! The crate smb2 reads caches and makes the messages of Kerberos. This module finds the cache and the KDC as MIT
//! Kerberos does ([`config`]), and says why a login by tickets is not possible.

mod config;

use std::{
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use smb2::{
    auth::{
        KerberosCredentials,
        kerberos::ccache::{CCache, CcacheCredential, CcachePrincipal, parse_ccache},
    },
    client::{Session, connection},
};
use thiserror::Error;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

use self::config::Config;

/// Longest time for a KDC to accept a TCP connection, after which the next one is tried.
const KDC_TIMEOUT: Duration = Duration::from_secs(3);
/// Port of the KDC.
const KDC_PORT: u16 = 88;

/// Why a login by Kerberos is not possible. Each says what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KerberosError {
    /// There is no credential cache.
    #[error("there is no Kerberos ticket: {cache} {why}; run `kinit USER@REALM`")]
    NoCache {
        /// The name of the cache.
        cache: String,
        /// Why it is none.
        why: String,
    },
    /// The cache is not a file.
    #[error(
        "credential caches of the kind {kind} cannot be read; use a file: KRB5CCNAME=FILE:/tmp/krb5cc_smbdirect for \
         `kinit` and for this program"
    )]
    Kind {
        /// The kind, as in `KEYRING`.
        kind: String,
    },
    /// The cache has no ticket for its realm.
    #[error("{cache} has no ticket of {realm}; run `kinit {principal}`")]
    NoTicket {
        /// The name of the cache.
        cache: String,
        /// The principal of the cache.
        principal: String,
        /// Its realm.
        realm: String,
    },
    /// The ticket has expired.
    #[error(
        "the Kerberos ticket of {principal} expired {} ago; run `kinit {principal}`, or set the clock of this machine if \
         it is wrong",
        in_words(*.ago)
    )]
    Expired {
        /// The principal of the ticket.
        principal: String,
        /// How long ago, by the clock of this machine.
        ago: Duration,
    },
    /// The ticket is not valid yet.
    #[error(
        "the Kerberos ticket of {principal} becomes valid only in {}: the clock of this machine is wrong; set it, for \
         example by `timedatectl set-ntp true`",
        in_words(*.ahead)
    )]
    NotYetValid {
        /// The principal of the ticket.
        principal: String,
        /// How far ahead, by the clock of this machine.
        ahead: Duration,
    },
    /// The clock of this machine differs too much from that of the KDC.
    #[error(
        "the clock of this machine and that of the KDC of {realm} differ by more than Kerberos permits, which is 5 \
         minutes; set it, for example by `timedatectl set-ntp true`"
    )]
    ClockSkew {
        /// The realm.
        realm: String,
    },
    /// The server was given by its address.
    #[error(
        "Kerberos knows servers by their names; give the name of the server in place of {address}"
    )]
    Address {
        /// The address.
        address: IpAddr,
    },
    /// No KDC is known.
    #[error(
        "no KDC of {realm} is known: {files} names none, and the name `{name}` has no address; add `kdc = HOST` for \
         {realm} there"
    )]
    UnknownKdc {
        /// The realm.
        realm: String,
        /// The files that were read.
        files: String,
        /// The name that was looked up.
        name: String,
    },
    /// No KDC answers.
    #[error(
        "no KDC of {realm} answers on {tried}; check that it runs, and that firewalls pass TCP port 88"
    )]
    SilentKdc {
        /// The realm.
        realm: String,
        /// The addresses.
        tried: String,
    },
    /// The KDC does not know the server.
    #[error(
        "the KDC of {realm} does not know the server cifs/{server}; give the full name under which the server joined \
         the realm"
    )]
    UnknownServer {
        /// The realm.
        realm: String,
        /// The server.
        server: String,
    },
    /// The KDC refuses a ticket for the server for another reason.
    #[error("the KDC of {realm} gives no ticket for cifs/{server}: {why}")]
    Refused {
        /// The realm.
        realm: String,
        /// The server.
        server: String,
        /// The reason.
        why: String,
    },
}

/// The tickets of a user, in a credential cache.
#[derive(Clone, Debug)]
pub struct Tickets {
    cache: CCache,
    name: String,
    config: Config,
}

impl Tickets {
    /// Reads the tickets of this user: the cache that KRB5CCNAME names, or `default_ccache_name` of krb5.conf, or
    /// `/tmp/krb5cc_UID`.
    ///
    /// # Errors
    /// There is no cache, it is not a file, or its ticket is not valid now.
    pub fn load() -> Result<Self, KerberosError> {
        let config = Config::read();
        let name = config.cache_name();
        Self::read(&name, config, SystemTime::now())
    }

    fn read(name: &str, config: Config, now: SystemTime) -> Result<Self, KerberosError> {
        let path = cache_path(name)?;
        let none = |why: String| KerberosError::NoCache {
            cache: path.display().to_string(),
            why,
        };
        let bytes = fs::read(&path).map_err(|error| {
            none(match error.kind() {
                io::ErrorKind::NotFound => "does not exist".into(),
                _ => format!("cannot be read ({error})"),
            })
        })?;
        let cache = parse_ccache(&bytes).map_err(|_| none("is no credential cache".into()))?;
        let tickets = Self {
            name: path.display().to_string(),
            cache,
            config,
        };
        tickets.check(now)?;
        Ok(tickets)
    }

    /// Returns the principal of the tickets, as in `me@EXAMPLE.ORG`.
    pub fn principal(&self) -> String {
        let CcachePrincipal {
            realm, components, ..
        } = &self.cache.default_principal;
        format!("{}@{realm}", components.join("/"))
    }

    /// Checks that the ticket that admits to others is valid at `now`.
    fn check(&self, now: SystemTime) -> Result<(), KerberosError> {
        let realm = &self.cache.default_principal.realm;
        let ticket = self
            .cache
            .find_tgt(realm)
            .ok_or_else(|| KerberosError::NoTicket {
                cache: self.name.clone(),
                principal: self.principal(),
                realm: realm.clone(),
            })?;
        self.check_times(ticket, now)
    }

    fn check_times(&self, ticket: &CcacheCredential, now: SystemTime) -> Result<(), KerberosError> {
        let at = |seconds: u32| UNIX_EPOCH + Duration::from_secs(seconds.into());
        let principal = self.principal();
        if let Ok(ago) = now.duration_since(at(ticket.endtime)) {
            return Err(KerberosError::Expired { principal, ago });
        }
        // Some issuers leave the start out, which then is the time of the login.
        let start = at(ticket.starttime.max(ticket.authtime));
        match start.duration_since(now) {
            Ok(ahead) if ahead > CLOCK_SKEW => Err(KerberosError::NotYetValid { principal, ahead }),
            _ => Ok(()),
        }
    }

    /// Logs in to `server` over a connection that has negotiated.
    ///
    /// # Errors
    /// The KDC gives no ticket for the server, or the server refuses it.
    pub async fn log_in(
        &self,
        smb: &mut connection::Connection,
        server: &str,
    ) -> Result<Session, crate::Error> {
        if let Ok(address) = server.parse() {
            return Err(KerberosError::Address { address }.into());
        }
        let realm = self.cache.default_principal.realm.clone();
        let mut cache = self.cache.clone();
        // A ticket for the server that is no longer valid is fetched again.
        let now = SystemTime::now();
        cache
            .credentials
            .retain(|ticket| self.check_times(ticket, now).is_ok());
        let has_ticket = cache.find_service_ticket("cifs", server, &realm).is_some();
        let kdc = if has_ticket {
            String::new()
        } else {
            self.kdc(&realm).await?.to_string()
        };
        let credentials = KerberosCredentials {
            username: self.cache.default_principal.components.join("/"),
            password: String::new(),
            realm: realm.clone(),
            kdc_address: kdc,
        };
        let session = Session::setup_kerberos_from_ccache(smb, &credentials, server, &cache).await;
        session.map_err(|error| match error {
            smb2::Error::Auth { message } => refusal(&message, realm, server).into(),
            error => error.into(),
        })
    }

    /// Returns the address of a KDC that answers.
    async fn kdc(&self, realm: &str) -> Result<SocketAddr, KerberosError> {
        // Domain controllers have the name of their domain, too.
        let name = realm.to_ascii_lowercase();
        let mut hosts = self.config.kdcs(realm);
        if hosts.is_empty() {
            hosts.push(name.clone());
        }
        let mut tried = Vec::new();
        for host in &hosts {
            let host = with_port(host);
            for address in lookup_host(&*host).await.into_iter().flatten() {
                if let Ok(Ok(_)) = timeout(KDC_TIMEOUT, TcpStream::connect(address)).await {
                    return Ok(address);
                }
                tried.push(address.to_string());
            }
        }
        let realm = realm.to_owned();
        Err(if tried.is_empty() {
            KerberosError::UnknownKdc {
                realm,
                files: self.config.files(),
                name: hosts.join("`, `"),
            }
        } else {
            KerberosError::SilentKdc {
                realm,
                tried: tried.join(", "),
            }
        })
    }
}

/// Difference between clocks that Kerberos permits.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Returns the path of a cache of the kinds FILE and DIR.
fn cache_path(name: &str) -> Result<PathBuf, KerberosError> {
    let (kind, rest) = match name.split_once(':') {
        // A path that begins with a drive letter, or has no kind.
        Some((kind, _)) if kind.len() < 2 || kind.contains('/') => ("FILE", name),
        Some(parts) => parts,
        None => ("FILE", name),
    };
    match kind {
        "FILE" | "WRFILE" => Ok(rest.into()),
        // `DIR::FILE` names one of the folder's caches, and `DIR:FOLDER` the primary one.
        "DIR" => Ok(match rest.strip_prefix(':') {
            Some(file) => file.into(),
            None => primary_of(Path::new(rest)),
        }),
        kind => Err(KerberosError::Kind { kind: kind.into() }),
    }
}

/// Returns the primary cache of a folder of caches.
fn primary_of(folder: &Path) -> PathBuf {
    let name = fs::read_to_string(folder.join("primary"));
    folder.join(name.as_deref().map_or("tkt", str::trim))
}

/// Returns `HOST:PORT` of an entry `HOST` or `HOST:PORT` of krb5.conf.
fn with_port(host: &str) -> String {
    if let Ok(address) = host.parse::<IpAddr>() {
        return SocketAddr::new(address, KDC_PORT).to_string();
    }
    match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:{KDC_PORT}"),
    }
}

/// Translates the error of the KDC. The crate has its number (RFC 4120 7.5.9) only in its text.
fn refusal(message: &str, realm: String, server: &str) -> KerberosError {
    let number = message.split_once("KRB-ERROR code ").and_then(|(_, rest)| {
        rest.split(|c: char| !c.is_ascii_digit())
            .next()?
            .parse()
            .ok()
    });
    let server = server.to_owned();
    let why = match number {
        Some(7) => return KerberosError::UnknownServer { realm, server },
        Some(37) => return KerberosError::ClockSkew { realm },
        Some(14) => {
            "it has no encryption in common with this client; AES with SHA-1 and RC4 are tried"
                .into()
        }
        Some(32) => "the ticket has expired by its clock; run `kinit`".into(),
        Some(33) => {
            "the ticket is not valid yet by its clock; set the clock of this machine".into()
        }
        _ => message.to_owned(),
    };
    KerberosError::Refused { realm, server, why }
}

/// Returns a time with its largest unit.
fn in_words(time: Duration) -> impl fmt::Display {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, "s"),
        120..7200 => (seconds / 60, "minutes"),
        7200..172_800 => (seconds / 3600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

#[cfg(test)]
mod tests;
