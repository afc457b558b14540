//! Where figures are served and asked for: an address, or on Unix the path of a socket.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::options::Address;

/// An address, or the path of a Unix socket, which has a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Address(Address),
    Path(PathBuf),
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return if cfg!(unix) {
                Ok(Self::Path(text.into()))
            } else {
                Err("sockets with a path are for Unix; give HOST[:PORT]".into())
            };
        }
        let address: Address = text.parse().map_err(|error| format!("{error}"))?;
        Ok(Self::Address(address))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}
