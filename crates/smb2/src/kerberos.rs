//! Logins by Kerberos, with the tickets that `kinit` leaves in a credential cache.
//!
//! The crate smb2 makes the messages of Kerberos. This module finds the cache and the KDC as MIT Kerberos does
//! ([`config`]), reads the cache ([`cache`]), fetches the ticket for a server ([`exchange`]), and says why a
//! login by tickets is not possible.

mod cache;
mod config;
mod error;
mod exchange;

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use smb2::{
    auth::{
        KerberosCredentials,
        kerberos::ccache::{CCache, CcacheCredential, CcachePrincipal},
    },
    client::{Session, connection},
};
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};

pub use self::error::KerberosError;
use self::{
    config::{Config, Kdc},
    exchange::NoTicket,
};

/// Longest time for a KDC to accept a TCP connection, after which the next one is tried.
const KDC_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time for a KDC to answer.
const KDC_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The service of SMB servers.
const SERVICE: &str = "cifs";

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
    /// There is no cache, it is not a file, or its principal has several parts.
    pub fn load() -> Result<Self, KerberosError> {
        let config = Config::read();
        let path = cache::path(&config.cache_name()?)?;
        Self::new(cache::read(&path)?, path.display().to_string(), config)
    }

    fn new(cache: CCache, name: String, config: Config) -> Result<Self, KerberosError> {
        let tickets = Self {
            cache,
            name,
            config,
        };
        let CcachePrincipal {
            realm, components, ..
        } = &tickets.cache.default_principal;
        if components.len() == 1 {
            return Ok(tickets);
        }
        Err(KerberosError::Principal {
            principal: tickets.principal(),
            realm: realm.clone(),
        })
    }

    /// Returns the principal of the tickets, as in `me@EXAMPLE.ORG`.
    pub fn principal(&self) -> String {
        let CcachePrincipal {
            realm, components, ..
        } = &self.cache.default_principal;
        format!("{}@{realm}", components.join("/"))
    }

    /// Returns the tickets with which to log in to `server`: its own, or else one that the KDC gives for the ticket of
    /// `kinit`.
    ///
    /// # Errors
    /// `server` is an address, no ticket can be used now, no KDC is found, it does not answer within 10 s, or it gives
    /// no ticket for the server.
    pub async fn for_server(&self, server: &str) -> Result<Self, KerberosError> {
        if let Ok(address) = server.parse() {
            return Err(KerberosError::Address { address });
        }
        let server = &in_realm(server);
        let realm = &self.cache.default_principal.realm;
        let now = SystemTime::now();
        let own = self.find(now, |name| is_name(name, SERVICE, server));
        let granting =
            |name: &CcachePrincipal| is_name(name, "krbtgt", realm) && name.realm == *realm;
        let mut ticket = match own {
            Some(Ok(ticket)) => ticket.clone(),
            unusable => {
                let granting = self.find(now, granting).or(unusable);
                let granting = granting.unwrap_or_else(|| Err(self.no_ticket(server)))?;
                self.fetch(granting, server).await?
            }
        };
        // The crate looks for it by this name. A server in another realm has another one.
        ticket.server.realm.clone_from(realm);
        ticket.server.components = vec![SERVICE.into(), server.clone()];
        let mut tickets = self.clone();
        tickets.cache.credentials = vec![ticket];
        Ok(tickets)
    }

    /// Returns the ticket of this user for a server that can be used longest, or why none can be used; `None` if there
    /// is none.
    fn find(
        &self,
        now: SystemTime,
        is_wanted: impl Fn(&CcachePrincipal) -> bool,
    ) -> Option<Result<&CcacheCredential, KerberosError>> {
        let user = &self.cache.default_principal;
        let is_users = |ticket: &&CcacheCredential| {
            ticket.client.realm == user.realm && ticket.client.components == user.components
        };
        let tickets = self.cache.credentials.iter().filter(is_users);
        let latest = tickets
            .filter(|ticket| is_wanted(&ticket.server))
            .max_by_key(|ticket| (self.check(ticket, now).is_ok(), ticket.endtime))?;
        Some(self.check(latest, now).map(|()| latest))
    }

    /// Checks that a ticket is valid at `now`, and that the crate smb2 has its kind of keys. A key of another length
    /// than its kind would end the process.
    fn check(&self, ticket: &CcacheCredential, now: SystemTime) -> Result<(), KerberosError> {
        let at = |seconds: u32| UNIX_EPOCH + Duration::from_secs(seconds.into());
        let principal = self.principal();
        let (etype, bytes) = (ticket.key_etype, ticket.key_data.len());
        if !matches!((etype, bytes), (17 | 23, 16) | (18, 32)) {
            return Err(KerberosError::Key {
                principal,
                etype,
                bytes,
            });
        }
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

    fn no_ticket(&self, server: &str) -> KerberosError {
        KerberosError::NoTicket {
            cache: self.name.clone(),
            principal: self.principal(),
            realm: self.cache.default_principal.realm.clone(),
            server: server.into(),
        }
    }

    /// Asks the KDCs for the ticket of a server, until one answers.
    async fn fetch(
        &self,
        granting: &CcacheCredential,
        server: &str,
    ) -> Result<CcacheCredential, KerberosError> {
        let realm = &self.cache.default_principal.realm;
        let request = exchange::Request::new(granting, server);
        // Domain controllers have the name of their domain, too.
        let name = realm.to_ascii_lowercase();
        let mut hosts = self.config.kdcs(realm);
        let is_configured = !hosts.is_empty();
        if !is_configured {
            hosts.push(Kdc::new(&name));
        }
        let (mut tried, mut unknown) = (Vec::new(), Vec::new());
        for Kdc { entry, address } in &hosts {
            let Some(address) = *address else {
                unknown.push(format!("`{entry}` is not HOST[:PORT]"));
                continue;
            };
            let addresses = match lookup_host(address).await {
                Ok(addresses) => addresses,
                Err(error) => {
                    unknown.push(format!("`{entry}` has no address ({error})"));
                    continue;
                }
            };
            for address in addresses {
                match ask(&request, address, KDC_ANSWER_TIMEOUT).await {
                    Ok(ticket) => return Ok(ticket),
                    Err(NoTicket::Refused(code, text)) => {
                        return Err(explain(code, &text, realm, server));
                    }
                    Err(NoTicket::Answer(why)) => tried.push(format!("{address} ({why})")),
                }
            }
        }
        let realm = realm.clone();
        if !tried.is_empty() {
            tried.extend(unknown);
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

    /// Logs in to `server` over a connection that has negotiated. It asks the KDC if these tickets are not those of
    /// [`for_server`](Self::for_server).
    ///
    /// # Errors
    /// There is no ticket for the server, or the server refuses it.
    pub(crate) async fn log_in(
        &self,
        smb: &mut connection::Connection,
        server: &str,
    ) -> Result<Session, crate::Error> {
        let tickets = self.for_server(server).await?;
        let CcachePrincipal {
            realm, components, ..
        } = &self.cache.default_principal;
        // The ticket is there, so no KDC is asked.
        let credentials = KerberosCredentials {
            username: components.concat(),
            password: String::new(),
            realm: realm.clone(),
            kdc_address: String::new(),
        };
        let server = in_realm(server);
        let session =
            Session::setup_kerberos_from_ccache(smb, &credentials, &server, &tickets.cache);
        session.await.map_err(Into::into)
    }
}

/// Difference between clocks that Kerberos permits.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Returns the name of a server as MIT Kerberos asks for it: in small letters, without the dot at the end of a full name
/// of DNS.
fn in_realm(server: &str) -> String {
    let server = server.strip_suffix('.').unwrap_or(server);
    server.to_ascii_lowercase()
}

/// Returns whether a principal is that of a service on a host, or of a realm.
fn is_name(principal: &CcachePrincipal, service: &str, host: &str) -> bool {
    matches!(&*principal.components, [first, second]
        if first.eq_ignore_ascii_case(service) && second.eq_ignore_ascii_case(host))
}

/// Asks the KDC at `address`.
async fn ask(
    request: &exchange::Request<'_>,
    address: SocketAddr,
    limit: Duration,
) -> Result<CcacheCredential, NoTicket> {
    let late =
        |limit: Duration| NoTicket::Answer(format!("no answer within {} s", limit.as_secs()));
    let connecting = timeout(KDC_TIMEOUT, TcpStream::connect(address)).await;
    let mut kdc = connecting.map_err(|_| late(KDC_TIMEOUT))??;
    let asked = timeout(limit, request.ask(&mut kdc)).await;
    asked.map_err(|_| late(limit))?
}

/// Says why there is no ticket, by the code of the KDC (RFC 4120 7.5.9).
fn explain(code: i32, text: &str, realm: &str, server: &str) -> KerberosError {
    let (realm, server) = (realm.to_owned(), server.to_owned());
    let why = match code {
        7 => return KerberosError::UnknownServer { realm, server },
        37 => return KerberosError::ClockSkew { realm },
        14 => "it has no encryption in common with this client; AES with SHA-1 and RC4 are tried"
            .into(),
        32 => "the ticket has expired by its clock; run `kinit`".into(),
        33 => "the ticket is not valid yet by its clock; set the clock of this machine".into(),
        _ => format!("error {code} of Kerberos {text}"),
    };
    KerberosError::Refused { realm, server, why }
}

#[cfg(test)]
mod tests;
