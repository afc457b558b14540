//! Logins by Kerberos, with the tickets that `kinit` leaves in a credential cache.
//!
//! The crate smb2 makes the messages of Kerberos. This module finds the cache and the KDC as MIT Kerberos does
//! ([`config`]), reads the cache ([`cache`]), fetches the ticket for a server ([`service`]) over TCP ([`kdc`]), and says
//! why a login by tickets is not possible.

mod cache;
mod config;
mod error;
mod kdc;
mod service;

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use smb2::{
    auth::{
        KerberosAuthenticator, KerberosCredentials,
        kerberos::ccache::{CCache, CcacheCredential, CcachePrincipal},
    },
    client::{Session, connection},
};
use tokio::{
    net::{TcpStream, lookup_host},
    time::{sleep, timeout},
};

use self::config::Config;
pub use self::error::KerberosError;

/// Longest time for a KDC to accept a TCP connection, after which the next one is tried.
const KDC_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time for a KDC to answer.
const KDC_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Port of the KDC.
const KDC_PORT: u16 = 88;

/// The tickets of a user, in a credential cache.
#[derive(Clone, Debug)]
pub struct Tickets {
    /// Only tickets that the crate smb2 can use.
    cache: CCache,
    /// Kind and length of the key of the ticket that admits to others, if that is not in `cache`.
    unusable_key: Option<(u16, usize)>,
    name: String,
    config: Config,
}

impl Tickets {
    /// Reads the tickets of this user: the cache that KRB5CCNAME names, or `default_ccache_name` of krb5.conf, or
    /// `/tmp/krb5cc_UID`.
    ///
    /// # Errors
    /// There is no cache, it is not a file, its ticket is not valid now, or its principal has several parts.
    pub fn load() -> Result<Self, KerberosError> {
        let config = Config::read();
        let name = config.cache_name()?;
        Self::read(&name, config, SystemTime::now())
    }

    fn read(name: &str, config: Config, now: SystemTime) -> Result<Self, KerberosError> {
        let path = cache::path(name)?;
        let mut cache = cache::read(&path)?;
        let granting = cache.find_tgt(&cache.default_principal.realm);
        let granting = granting.filter(|ticket| !cache::key_fits(ticket));
        let unusable_key = granting.map(|ticket| (ticket.key_etype, ticket.key_data.len()));
        cache.credentials.retain(cache::is_usable);
        let tickets = Self {
            name: path.display().to_string(),
            cache,
            unusable_key,
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
        let CcachePrincipal {
            realm, components, ..
        } = &self.cache.default_principal;
        let principal = self.principal();
        if components.len() != 1 {
            let realm = realm.clone();
            return Err(KerberosError::Principal { principal, realm });
        }
        match (self.cache.find_tgt(realm), self.unusable_key) {
            (Some(ticket), _) => self.check_times(ticket, now),
            (None, Some((etype, bytes))) => Err(KerberosError::Key {
                principal,
                etype,
                bytes,
            }),
            (None, None) => Err(KerberosError::NoTicket {
                cache: self.name.clone(),
                principal,
                realm: realm.clone(),
            }),
        }
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

    /// Returns the tickets that are valid at `now`.
    fn valid(&self, now: SystemTime) -> CCache {
        let mut cache = self.cache.clone();
        cache
            .credentials
            .retain(|ticket| self.check_times(ticket, now).is_ok());
        cache
    }

    /// Returns these tickets with one for `server`, which the KDC gives unless it is there already.
    ///
    /// # Errors
    /// `server` is an address, no KDC is found, it does not answer within 10 s, or it gives no ticket for the server.
    pub async fn for_server(&self, server: &str) -> Result<Self, KerberosError> {
        if let Ok(address) = server.parse() {
            return Err(KerberosError::Address { address });
        }
        let realm = &self.cache.default_principal.realm;
        // A ticket for the server that is no longer valid is fetched again.
        let now = SystemTime::now();
        let mut cache = self.valid(now);
        if cache.find_service_ticket("cifs", server, realm).is_none() {
            let kdc = self.kdc(realm).await?;
            let ticket = self.fetch(&cache, server, kdc, KDC_ANSWER_TIMEOUT).await?;
            cache.credentials.push(ticket);
        }
        let mut tickets = self.clone();
        tickets.cache = cache;
        Ok(tickets)
    }

    /// Asks a KDC for a ticket over a connection to it.
    async fn fetch(
        &self,
        cache: &CCache,
        server: &str,
        (address, mut stream): (SocketAddr, TcpStream),
        limit: Duration,
    ) -> Result<CcacheCredential, KerberosError> {
        let realm = self.cache.default_principal.realm.clone();
        let silent = |why: String| {
            let realm = realm.clone();
            KerberosError::Exchange {
                realm,
                address,
                why,
            }
        };
        let relay = kdc::Relay::bind().await;
        let relay = relay.map_err(|error| silent(error.to_string()))?;
        let mut exchange = KerberosAuthenticator::new(self.credentials(relay.address()));
        let answer = tokio::select! {
            answer = exchange.authenticate_from_ccache(cache, server) => answer,
            error = relay.run(&mut stream) => return Err(silent(error.to_string())),
            () = sleep(limit) => {
                return Err(silent(format!("no answer within {} s", limit.as_secs())));
            }
        };
        answer.map_err(|error| match error {
            smb2::Error::Io(_) | smb2::Error::Timeout | smb2::Error::Disconnected => {
                silent(error.to_string())
            }
            smb2::Error::Auth { message } => refusal(&message, realm.clone(), server),
            error => refusal(&error.to_string(), realm.clone(), server),
        })?;
        let granting = cache.find_tgt(&realm);
        let ticket = granting.and_then(|granting| service::ticket(&exchange, granting, server));
        ticket.ok_or_else(|| silent("its answer has no ticket".into()))
    }

    fn credentials(&self, kdc_address: String) -> KerberosCredentials {
        let CcachePrincipal {
            realm, components, ..
        } = &self.cache.default_principal;
        KerberosCredentials {
            username: components.concat(),
            password: String::new(),
            realm: realm.clone(),
            kdc_address,
        }
    }

    /// Logs in to `server` over a connection that has negotiated. It asks the KDC if these tickets are not those of
    /// [`for_server`](Self::for_server).
    ///
    /// # Errors
    /// There is no ticket for the server, or the server refuses it.
    pub async fn log_in(
        &self,
        smb: &mut connection::Connection,
        server: &str,
    ) -> Result<Session, crate::Error> {
        let tickets = self.for_server(server).await?;
        // The ticket is there, so no KDC is asked.
        let credentials = self.credentials(String::new());
        let session =
            Session::setup_kerberos_from_ccache(smb, &credentials, server, &tickets.cache);
        session.await.map_err(Into::into)
    }

    /// Returns a connection to the first KDC that accepts one, and its address.
    async fn kdc(&self, realm: &str) -> Result<(SocketAddr, TcpStream), KerberosError> {
        // Domain controllers have the name of their domain, too.
        let name = realm.to_ascii_lowercase();
        let mut hosts = self.config.kdcs(realm);
        let is_configured = !hosts.is_empty();
        if !is_configured {
            hosts.push(name.clone());
        }
        let (mut tried, mut unknown) = (Vec::new(), Vec::new());
        for host in &hosts {
            match lookup_host(&*with_port(host)).await {
                Err(error) => unknown.push(format!("`{host}` ({error})")),
                Ok(addresses) => {
                    for address in addresses {
                        let connecting = timeout(KDC_TIMEOUT, TcpStream::connect(address));
                        if let Ok(Ok(stream)) = connecting.await {
                            return Ok((address, stream));
                        }
                        tried.push(address.to_string());
                    }
                }
            }
        }
        let realm = realm.to_owned();
        if !tried.is_empty() {
            tried.extend(
                unknown
                    .iter()
                    .map(|host| format!("{host}, which has no address")),
            );
            let tried = tried.join(", ");
            return Err(KerberosError::SilentKdc { realm, tried });
        }
        let files = self.config.files();
        Err(if is_configured {
            let names = unknown.join(", ");
            KerberosError::KdcName {
                realm,
                files,
                names,
            }
        } else {
            KerberosError::UnknownKdc { realm, files, name }
        })
    }
}

/// Difference between clocks that Kerberos permits.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

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

#[cfg(test)]
mod tests;
