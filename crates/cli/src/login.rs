//! What commands log in with: an account and its password, or tickets of Kerberos.

use anyhow::Result;
use clap::Args;
use smbdirect_smb2::{Account, Login, Tickets};

use crate::{
    failure::{Kind, OfKind},
    options::usage,
    password::{Descriptor, password},
    smb::Place,
};

/// Options of commands that log in.
#[derive(Debug, Args)]
pub(crate) struct LoginOptions {
    /// Log in as this user, DOMAIN\USER for a domain [default: an anonymous session]. The password is
    /// asked for, unless SMBDIRECT_PASSWORD is set
    #[arg(short, long, value_name = "USER")]
    pub(crate) user: Option<String>,

    /// Read the password from this file descriptor
    #[arg(long, value_name = "N", conflicts_with = "kerberos")]
    password_fd: Option<Descriptor>,

    /// Log in by Kerberos, with the ticket of `kinit`
    ///
    /// The ticket is that of KRB5CCNAME, or of the default credential cache, which has to be a file. Give the
    /// name of the server, not its address
    #[arg(short, long, conflicts_with = "user")]
    pub(crate) kerberos: bool,
}

impl LoginOptions {
    /// Returns what to log in with at `place`; `None` without a user.
    ///
    /// # Errors
    /// The options contradict each other, or there is no password or no ticket.
    pub(crate) async fn login(&self, place: &Place) -> Result<Option<Login>> {
        let user = place.user(self.user.as_deref(), self.kerberos)?;
        if self.kerberos {
            let tickets = Tickets::load().of_kind(Kind::Login)?;
            return Ok(Some(Login::Tickets(tickets)));
        }
        let Some(user) = user else {
            return match self.password_fd {
                None => Ok(None),
                Some(_) => Err(usage("--password-fd needs --user")),
            };
        };
        let (domain, name) = user.split_once('\\').unwrap_or(("", user));
        if name.is_empty() {
            return Err(usage("the user has no name"));
        }
        let mut account = Account::default();
        account.user = name.into();
        account.domain = domain.into();
        account.password = password(user, self.password_fd.as_ref()).await?;
        Ok(Some(Login::Account(account)))
    }
}
