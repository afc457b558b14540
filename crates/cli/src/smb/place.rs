//! A place on a server: `//SERVER[:PORT]/SHARE[/PATH]`.

use std::{fmt, str::FromStr};

use smbdirect_transport::AddressError;

use crate::options::Address;

/// A file or directory of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: Address,
    pub(crate) share: String,
    /// The path in the share, its parts joined by `/`; empty for the root.
    pub(crate) path: String,
    /// The path ended with `/`, so it names a directory.
    pub(crate) is_directory: bool,
}

const FORM: &str = "a path on a server is //SERVER[:PORT]/SHARE/PATH";

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forward = if text.starts_with(r"\\") {
            text.replace('\\', "/")
        } else {
            text.to_owned()
        };
        let place = forward
            .strip_prefix("smb://")
            .or_else(|| forward.strip_prefix("//"))
            .ok_or(FORM)?;
        let (server, rest) = place.split_once('/').ok_or(FORM)?;
        let address: Address = server
            .parse()
            .map_err(|error: AddressError| error.to_string())?;
        if address.host.is_empty() || address.port == Some(0) {
            return Err(format!(
                "invalid server `{server}`; it needs a name, and a port above 0"
            ));
        }
        let (share, path) = rest.split_once('/').unwrap_or((rest, ""));
        if share.is_empty() {
            return Err(FORM.into());
        }
        let parts: Vec<_> = path
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        if parts.contains(&"..") {
            return Err("`..` is not allowed in a path on a server".into());
        }
        Ok(Self {
            address,
            share: share.into(),
            path: parts.join("/"),
            is_directory: parts.is_empty() || path.ends_with('/'),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            share,
            path,
            ..
        } = self;
        write!(f, "//{address}/{share}/{path}")
    }
}

impl Place {
    /// Returns a server without a share, `//SERVER[:PORT]`, as a place whose share has no name.
    pub(super) fn server_or_place(text: &str) -> Result<Self, String> {
        let server = text.trim_end_matches(['/', '\\']);
        let separators = server.matches(['/', '\\']).count();
        if separators > 2 || server.len() < 3 {
            return text.parse();
        }
        let place: Self = format!("{server}/IPC$").parse()?;
        Ok(Self {
            share: String::new(),
            ..place
        })
    }

    /// Returns the last part of the path; empty for the root.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns the path of the entry `name` in this directory.
    pub(crate) fn entry(&self, name: &str) -> Self {
        let path = if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.path)
        };
        Self {
            path,
            is_directory: false,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_all_their_forms() {
        for (text, host, port, share, path, is_directory) in [
            ("//server/share/a/b", "server", None, "share", "a/b", false),
            (
                "//server:4455/share",
                "server",
                Some(4455),
                "share",
                "",
                true,
            ),
            ("smb://server/share/", "server", None, "share", "", true),
            (r"\\server\share\a\b", "server", None, "share", "a/b", false),
            (
                "//[::1]:5445/s//a/./b/",
                "::1",
                Some(5445),
                "s",
                "a/b",
                true,
            ),
            (
                r"//server/share/a\b",
                "server",
                None,
                "share",
                r"a\b",
                false,
            ),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.address.host, host, "{text}");
            assert_eq!(place.address.port, port, "{text}");
            assert_eq!((&*place.share, &*place.path), (share, path), "{text}");
            assert_eq!(place.is_directory, is_directory, "{text}");
        }
        for text in [
            "",
            "server",
            "//server",
            "//server/",
            "///share",
            "//:445/share",
            "//server:0/share",
            "/server/share",
            "//server/share/../x",
            "//a b/share",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_server_is_a_place_for_ls() {
        for (text, host, port, share) in [
            ("//server", "server", None, ""),
            ("//server/", "server", None, ""),
            ("//server///", "server", None, ""),
            (r"\\server", "server", None, ""),
            (r"\\server\", "server", None, ""),
            ("smb://server:445/", "server", Some(445), ""),
            ("//[::1]:5445", "::1", Some(5445), ""),
            ("//server/share", "server", None, "share"),
            (r"\\server\share", "server", None, "share"),
        ] {
            let place = Place::server_or_place(text).expect(text);
            assert_eq!(place.address.host, host, "{text}");
            assert_eq!(place.address.port, port, "{text}");
            assert_eq!((&*place.share, &*place.path), (share, ""), "{text}");
        }
        for text in [
            "",
            "/",
            "//",
            "server",
            "server:445",
            "//:445",
            "//a b",
            "smb://",
            "smb:",
        ] {
            assert!(Place::server_or_place(text).is_err(), "{text}");
        }
    }

    #[test]
    fn entries() {
        let place: Place = "//server/share/a/b".parse().unwrap();
        assert_eq!(place.name(), "b");
        assert_eq!(place.entry("c").to_string(), "//server/share/a/b/c");
        let root: Place = "//server:1/share".parse().unwrap();
        assert_eq!(root.name(), "");
        assert_eq!(root.entry("c").path, "c");
    }
}
