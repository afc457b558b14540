//! A place on a server: `//SERVER[:PORT]/SHARE[/PATH]`, `\\SERVER\SHARE\PATH`, or a URL,
//! `smb://[[DOMAIN;]USER@]SERVER[:PORT]/SHARE[/PATH]`.

use std::{ffi::OsStr, fmt};

use anyhow::Result;
use clap::{
    Arg, Command,
    builder::{TypedValueParser, ValueParserFactory},
    error::ErrorKind,
};
use smbdirect_transport::AddressError;

use crate::options::{Address, usage};

/// A file or directory of a share, or a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The user of a URL, as `--user` names one.
    user: Option<String>,
    pub(crate) address: Address,
    /// The name of the share; empty if the place is a server.
    pub(crate) share: String,
    /// The path in the share, its parts joined by `/`; empty for the root.
    pub(crate) path: String,
    /// The path ended with `/`, so it names a directory.
    pub(crate) is_directory: bool,
}

const FORM: &str = "a path on a server is //SERVER[:PORT]/SHARE/PATH";
const FORM_OF_URL: &str = "a URL is smb://[USER@]SERVER[:PORT]/SHARE/PATH";
const PASSWORD: &str = "a URL with a password is refused, because others see the command line; leave the password out, \
                        and type it, set SMBDIRECT_PASSWORD, or give --password-fd N";

/// What a command takes for a place. The errors do not show the text, which may have a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceParser {
    /// A place in a share.
    InShare,
    /// A place in a share, or a server, `//SERVER[:PORT]`.
    OrServer,
    /// A place in a share, or a server: `//SERVER[:PORT]` or `SERVER[:PORT]`.
    OrAddress,
}

impl ValueParserFactory for Place {
    type Parser = PlaceParser;

    fn value_parser() -> PlaceParser {
        PlaceParser::InShare
    }
}

impl TypedValueParser for PlaceParser {
    type Value = Place;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Place, clap::Error> {
        let parsed = match value.to_str() {
            Some(text) => self.read(text),
            None => Err("it is not UTF-8".into()),
        };
        parsed.map_err(|why| {
            let argument = argument.map(ToString::to_string).unwrap_or_default();
            let message = format!("invalid value for '{argument}': {why}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

impl PlaceParser {
    pub(super) fn read(self, text: &str) -> Result<Place, String> {
        const SCHEME: &str = "smb://";
        let url = text.split_at_checked(SCHEME.len());
        let url = url.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
        let (user, server, rest) = match url {
            Some((_, rest)) => in_url(rest)?,
            None => {
                let forward = match text.strip_prefix(r"\\") {
                    Some(rest) => rest.replace('\\', "/"),
                    None => match text.strip_prefix("//") {
                        Some(rest) => rest.to_owned(),
                        None if self == Self::OrAddress && !text.contains('/') => text.to_owned(),
                        None => return Err(FORM.into()),
                    },
                };
                let (server, rest) = forward.split_once('/').unwrap_or((&forward, ""));
                let parts = rest.split('/').map(str::to_owned).collect();
                (None, server.to_owned(), parts)
            }
        };
        if server.is_empty() {
            return Err(if url.is_some() { FORM_OF_URL } else { FORM }.into());
        }
        let address: Result<Address, AddressError> = server.parse();
        let address = address.map_err(|error| match url {
            // A part of a password may be in place of the port.
            Some(_) => FORM_OF_URL.to_owned(),
            None => error.to_string(),
        })?;
        if address.host.is_empty() || address.port == Some(0) {
            return Err("a server needs a name, and a port above 0".into());
        }
        self.place(user, address, rest)
    }

    /// Returns the place of a server that these parts name: the share, and the path in it.
    fn place(
        self,
        user: Option<String>,
        address: Address,
        parts: Vec<String>,
    ) -> Result<Place, String> {
        let mut parts = parts.into_iter();
        let share = parts.next().unwrap_or_default();
        let mut parts: Vec<_> = parts.collect();
        let is_directory = parts.last().is_none_or(String::is_empty);
        parts.retain(|part| !part.is_empty() && part != ".");
        if share.is_empty() && (self == Self::InShare || !parts.is_empty()) {
            return Err(FORM.into());
        }
        if parts.iter().any(|part| part == "..") {
            return Err("`..` is not allowed in a path on a server".into());
        }
        Ok(Place {
            user,
            address,
            share,
            path: parts.join("/"),
            is_directory: is_directory || parts.is_empty(),
        })
    }
}

/// Takes a URL without its scheme apart (RFC 3986): the user, the server, and the parts of the path.
fn in_url(url: &str) -> Result<(Option<String>, String, Vec<String>), String> {
    let (authority, path) = url.split_once('/').unwrap_or((url, ""));
    let (user, server) = match authority.rsplit_once('@') {
        Some((user, _)) if user.contains(':') => return Err(PASSWORD.into()),
        Some((user, server)) => (Some(user_in(user)?), server),
        None => (None, authority),
    };
    if url.contains(['?', '#']) {
        return Err(
            "a URL of a file has no `?` and no `#`; write %3F and %23 for those of a name".into(),
        );
    }
    let part = |part: &str| match decoded(part)? {
        name if name.contains(['/', '\0']) => Err("`/` cannot be in a name".to_owned()),
        name => Ok(name),
    };
    let parts: Result<_, _> = path.split('/').map(part).collect();
    Ok((user, decoded(server)?, parts?))
}

/// Returns the user of a URL as `--user` names it: `DOMAIN\USER` for `DOMAIN;USER`.
fn user_in(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("the URL has no user before `@`".into());
    }
    match text.split_once(';') {
        Some((domain, user)) => Ok(format!(r"{}\{}", decoded(domain)?, decoded(user)?)),
        None => decoded(text),
    }
}

/// Returns the text of a part of a URL, in which `%` and two hexadecimal digits stand for a byte.
fn decoded(part: &str) -> Result<String, String> {
    let mut pieces = part.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let digits = piece
            .get(..2)
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("`%` in a URL needs two hexadecimal digits; write %25 for a `%`")?);
        bytes.extend(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| "the URL is not UTF-8".into())
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
    /// Returns the user who logs in: that of `--user`, or that of the URL.
    ///
    /// # Errors
    /// Both name one, or the login is by Kerberos.
    pub(crate) fn user<'a>(
        &'a self,
        option: Option<&'a str>,
        kerberos: bool,
    ) -> Result<Option<&'a str>> {
        match (&self.user, option) {
            (Some(_), Some(_)) => Err(usage(
                "the URL has a user, so --user cannot be used with it",
            )),
            (Some(_), None) if kerberos => Err(usage(
                "the URL has a user, so --kerberos cannot be used with it",
            )),
            (user, option) => Ok(option.or(user.as_deref())),
        }
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

    fn place(text: &str) -> Place {
        PlaceParser::InShare.read(text).expect(text)
    }

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
            // Only URLs have escapes.
            (
                "//server/share/a%20b?#",
                "server",
                None,
                "share",
                "a%20b?#",
                false,
            ),
            (
                "//server/share/end ",
                "server",
                None,
                "share",
                "end ",
                false,
            ),
            (
                "//server/share/dir./f",
                "server",
                None,
                "share",
                "dir./f",
                false,
            ),
        ] {
            let place = place(text);
            assert_eq!(place.address.host, host, "{text}");
            assert_eq!(place.address.port, port, "{text}");
            assert_eq!((&*place.share, &*place.path), (share, path), "{text}");
            assert_eq!(place.is_directory, is_directory, "{text}");
            assert_eq!(place.user, None);
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
            "smb:/server/share",
            "http://server/share",
        ] {
            assert!(PlaceParser::InShare.read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_url_has_escapes_and_a_user() {
        for (text, user, host, port, share, path) in [
            (
                "smb://server/data%20store/a%2Bb%25/%C3%BC+",
                None,
                "server",
                None,
                "data store",
                "a+b%/\u{fc}+",
            ),
            (
                "SMB://me@server:4455/s/%5C",
                Some("me"),
                "server",
                Some(4455),
                "s",
                r"\",
            ),
            (
                "smb://DOM;me%40x@[::1]:445/s",
                Some(r"DOM\me@x"),
                "::1",
                Some(445),
                "s",
                "",
            ),
            (
                "smb://server/s/what%3F%23",
                None,
                "server",
                None,
                "s",
                "what?#",
            ),
            (
                "smb://server/s/end%20/dir%2e",
                None,
                "server",
                None,
                "s",
                "end /dir.",
            ),
        ] {
            let place = place(text);
            assert_eq!(place.user.as_deref(), user, "{text}");
            assert_eq!(
                (&*place.address.host, place.address.port),
                (host, port),
                "{text}"
            );
            assert_eq!((&*place.share, &*place.path), (share, path), "{text}");
        }
        for (text, says) in [
            ("smb://server/s/100%", "two hexadecimal digits"),
            ("smb://server/s/%2", "two hexadecimal digits"),
            ("smb://server/s/%+1", "two hexadecimal digits"),
            ("smb://server/s/%\u{fc}", "two hexadecimal digits"),
            ("smb://server/s/%ff", "not UTF-8"),
            ("smb://server/s/a%2Fb", "`/` cannot be in a name"),
            ("smb://server/s/%2e%2E/x", "`..` is not allowed"),
            ("smb://server/s/what?", "%3F"),
            ("smb://server/s#1", "%23"),
            ("smb://@server/s", "no user"),
            ("smb://server", FORM),
            ("smb://me:se/cret@server/s", FORM_OF_URL),
        ] {
            let error = PlaceParser::InShare.read(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_shown() {
        for text in [
            "smb://me:secret@server/s",
            "smb://DOM;me:secret@server:445/s/f",
            "smb://me:sec@ret@server/s",
            "smb://me:secret?@server/s",
            "smb://:secret@server/s",
            "smb://me:secret@/s",
        ] {
            for parser in [
                PlaceParser::InShare,
                PlaceParser::OrServer,
                PlaceParser::OrAddress,
            ] {
                assert_eq!(parser.read(text).unwrap_err(), PASSWORD, "{text}");
            }
        }
    }

    #[test]
    fn a_user_is_named_once() {
        let (with, without) = (place("smb://me@server/s"), place("//server/s"));
        assert_eq!(with.user(None, false).unwrap(), Some("me"));
        assert_eq!(without.user(Some("you"), false).unwrap(), Some("you"));
        assert_eq!(without.user(None, true).unwrap(), None);
        assert!(with.user(Some("me"), false).is_err());
        assert!(with.user(None, true).is_err());
    }

    #[test]
    fn a_server_is_a_place_for_some_commands() {
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
            for parser in [PlaceParser::OrServer, PlaceParser::OrAddress] {
                let place = parser.read(text).expect(text);
                assert_eq!(place.address.host, host, "{text}");
                assert_eq!(place.address.port, port, "{text}");
                assert_eq!((&*place.share, &*place.path), (share, ""), "{text}");
            }
        }
        for text in [
            "",
            "/",
            "//",
            "//:445",
            "//a b",
            "smb://",
            "smb:",
            "server/share",
            "///share",
        ] {
            assert!(PlaceParser::OrServer.read(text).is_err(), "{text}");
            assert!(PlaceParser::OrAddress.read(text).is_err(), "{text}");
        }
        for (text, host, port) in [
            ("server", "server", None),
            ("::1", "::1", None),
            ("server:445", "server", Some(445)),
        ] {
            assert!(PlaceParser::OrServer.read(text).is_err(), "{text}");
            let place = PlaceParser::OrAddress.read(text).expect(text);
            assert_eq!((&*place.address.host, place.address.port), (host, port));
        }
    }

    #[test]
    fn entries() {
        let place = place("//server/share/a/b");
        assert_eq!(place.name(), "b");
        assert_eq!(place.entry("c").to_string(), "//server/share/a/b/c");
        let root = self::place("//server:1/share");
        assert_eq!(root.name(), "");
        assert_eq!(root.entry("c").path, "c");
    }
}
