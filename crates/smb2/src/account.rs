//! The user who logs in.

use std::fmt;

use crate::kerberos::Tickets;

/// What to log in with.
#[derive(Clone, Debug)]
pub enum Login {
    /// By NTLM, or as a guest.
    Account(Account),
    /// By Kerberos.
    Tickets(Tickets),
}

impl Login {
    /// Returns the name of the user.
    pub fn user(&self) -> String {
        match self {
            Self::Account(account) => account.user.clone(),
            Self::Tickets(tickets) => tickets.principal(),
        }
    }

    /// Returns whether the caller wants a session of a guest or an anonymous one.
    pub(crate) fn wants_guest(&self) -> bool {
        match self {
            Self::Account(Account { user, .. }) => {
                user.is_empty() || user.eq_ignore_ascii_case("guest")
            }
            Self::Tickets(_) => false,
        }
    }
}

/// The account to log in with. Begin with `Account::default()`, which is anonymous, and set fields.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Account {
    /// The name of the user; empty for an anonymous session.
    pub user: String,
    /// The domain; empty for an account of the server.
    pub domain: String,
    /// The password.
    pub password: String,
}

/// Shows no password.
impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, domain, .. } = self;
        f.debug_struct("Account")
            .field("user", user)
            .field("domain", domain)
            .finish_non_exhaustive()
    }
}
