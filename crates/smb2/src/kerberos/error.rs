//! Why a login by Kerberos is not possible.

use std::{fmt, net::IpAddr, time::Duration};

use thiserror::Error;

/// The reason why a login by Kerberos is not possible. Each message has the cure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KerberosError {
    /// There is no credential cache.
    #[error("there is no Kerberos ticket: {cache} {why}; run `kinit USER@REALM`")]
    NoCache {
        /// The name of the cache.
        cache: String,
        /// The reason why it cannot be used.
        why: String,
    },
    /// KRB5CCNAME is not UTF-8.
    #[error("KRB5CCNAME=`{name}` is not UTF-8; give the credential cache another name")]
    CacheName {
        /// The name, with U+FFFD in place of what is not UTF-8.
        name: String,
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
    /// The cache is not a regular file of at most 1 MiB that belongs to this user or to root.
    #[error(
        "{cache} is not used as a credential cache: {why}; use a file of this user: \
         KRB5CCNAME=FILE:/tmp/krb5cc_smbdirect for `kinit` and for this program"
    )]
    CacheFile {
        /// The name of the file.
        cache: String,
        /// The reason why it is not used.
        why: String,
    },
    /// The key of the ticket is of another kind, or has another length than its kind.
    #[error(
        "the Kerberos ticket of {principal} has a key of {bytes} bytes and encryption type {etype}, but only AES with \
         SHA-1 (17, 18) and RC4 (23) can be used; set `permitted_enctypes = aes256-cts aes128-cts` in krb5.conf, and \
         run `kinit {principal}`"
    )]
    Key {
        /// The principal of the ticket.
        principal: String,
        /// The encryption type.
        etype: u16,
        /// Bytes of the key.
        bytes: usize,
    },
    /// The name of the principal has several parts, and the crate smb2 sends them as one.
    #[error(
        "the ticket is that of {principal}, but only principals of one part, without `/`, can log in; run \
         `kinit USER@{realm}`"
    )]
    Principal {
        /// The principal of the cache.
        principal: String,
        /// The realm of the principal.
        realm: String,
    },
    /// `default_ccache_name` of krb5.conf has a parameter without a value.
    #[error(
        "default_ccache_name = {name} has a parameter other than uid and USERID; set KRB5CCNAME \
         to the name of the credential cache"
    )]
    Parameter {
        /// The name of the cache.
        name: String,
    },
    /// The cache has no ticket for its realm, and none for the server.
    #[error(
        "{cache} has no ticket of {realm}, and none for cifs/{server}; run `kinit {principal}`"
    )]
    NoTicket {
        /// The name of the cache.
        cache: String,
        /// The principal of the cache.
        principal: String,
        /// The realm of the principal.
        realm: String,
        /// The server.
        server: String,
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
        /// Time since it expired, by the clock of this machine.
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
        /// Time until it becomes valid, by the clock of this machine.
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
    /// No name of a KDC has an address.
    #[error(
        "no KDC of {realm} has an address: {names}; check the names in {files}, and whether this machine finds others"
    )]
    KdcName {
        /// The realm.
        realm: String,
        /// The files that were read.
        files: String,
        /// The names, with the error of each.
        names: String,
    },
    /// No KDC answers.
    #[error(
        "no KDC of {realm} answers on {tried}; check that it runs, and that firewalls pass TCP port 88"
    )]
    SilentKdc {
        /// The realm.
        realm: String,
        /// The addresses, and what happened in place of an answer.
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
