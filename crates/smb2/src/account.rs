//! [`Account`]: the user who logs in.

use std::fmt;

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
