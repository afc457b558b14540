//! What of krb5.conf a client of the credential cache needs: where the cache is, and the KDCs of a realm.

use std::{
    env,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use super::{
    error::KerberosError,
    profile::{Fault, Profile, Why},
};

/// Port of the KDC.
const KDC_PORT: u16 = 88;

/// Settings of krb5.conf.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    profile: Profile,
    /// The files of KRB5_CONFIG, and why they cannot be read, as they are shown.
    files: Vec<String>,
}

impl Config {
    /// Reads the files of KRB5_CONFIG, or `/etc/krb5.conf`. Files that do not exist or may not be read have no
    /// settings.
    ///
    /// # Errors
    /// A file is not well formed.
    pub(super) fn read() -> Result<Self, KerberosError> {
        let files = env::var_os("KRB5_CONFIG").unwrap_or_else(|| "/etc/krb5.conf".into());
        Self::of(env::split_paths(&files))
    }

    pub(super) fn of(files: impl Iterator<Item = PathBuf>) -> Result<Self, KerberosError> {
        let mut config = Self::default();
        for file in files {
            let shown = file.display();
            let shown = match config.profile.add(&file) {
                Ok(()) => shown.to_string(),
                Err(fault) if is_skipped(&fault, &file) => fault.to_string(),
                Err(fault) => {
                    let fault = fault.to_string();
                    return Err(KerberosError::Config { fault });
                }
            };
            config.files.push(shown);
        }
        Ok(config)
    }

    /// Returns the name of the credential cache.
    pub(super) fn cache_name(&self) -> Result<String, KerberosError> {
        self.cache_name_or(env::var_os("KRB5CCNAME").unwrap_or_default())
    }

    /// Returns the name of the credential cache where KRB5CCNAME is `name`.
    fn cache_name_or(&self, name: OsString) -> Result<String, KerberosError> {
        let name = name.into_string().map_err(|name| {
            let name = name.to_string_lossy().into_owned();
            KerberosError::CacheName { name }
        })?;
        if !name.is_empty() {
            return Ok(name);
        }
        let names = self.profile.values(&["libdefaults", "default_ccache_name"]);
        expanded(names.first().copied().unwrap_or("FILE:/tmp/krb5cc_%{uid}"))
    }

    /// Returns the KDCs of a realm.
    pub(super) fn kdcs(&self, realm: &str) -> Vec<Kdc<'_>> {
        let entries = self.profile.values(&["realms", realm, "kdc"]);
        entries.into_iter().map(Kdc::new).collect()
    }

    /// Returns the names of the files, for an error.
    pub(super) fn files(&self) -> String {
        self.files.join(", ")
    }
}

/// Returns whether MIT Kerberos goes on without a file that cannot be read for this reason.
fn is_skipped(fault: &Fault, file: &Path) -> bool {
    let Why::Unread(error) = &fault.why else {
        return false;
    };
    // A file that it includes has to be there.
    fault.file == file
        && matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        )
}

/// A KDC, as krb5.conf names it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kdc<'a> {
    /// The entry.
    pub(super) entry: &'a str,
    /// Host and port of the entry, if the entry names a host.
    pub(super) address: Option<(&'a str, u16)>,
}

impl<'a> Kdc<'a> {
    /// Reads an entry `HOST[:PORT]` or `[ADDRESS][:PORT]`. After the host, words are ignored.
    pub(super) fn new(entry: &'a str) -> Self {
        let (host, port) = match entry
            .strip_prefix('[')
            .and_then(|rest| rest.split_once(']'))
        {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => {
                let end = entry.find([' ', '\t', ':']).unwrap_or(entry.len());
                (&entry[..end], entry[end..].strip_prefix(':'))
            }
        };
        let is_host = !host.is_empty()
            && !host.contains('/')
            && !entry.chars().all(|character| character.is_ascii_digit());
        let port = port.map_or(Some(KDC_PORT), |port| port.trim_start().parse().ok());
        let address = port.filter(|_| is_host).map(|port| (host, port));
        Self { entry, address }
    }
}

/// Returns the name of a cache with the values of its parameters, such as `%{uid}`.
fn expanded(name: &str) -> Result<String, KerberosError> {
    let mut parts = name.split("%{");
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let unknown = || KerberosError::Parameter { name: name.into() };
        let (parameter, rest) = part.split_once('}').ok_or_else(unknown)?;
        match parameter {
            "uid" | "USERID" => expanded += &user_id().to_string(),
            "euid" => expanded += &effective_user_id().to_string(),
            "TEMP" => {
                let folder = env::var_os("TMPDIR").unwrap_or_else(|| "/tmp".into());
                expanded += &Path::new(&folder).to_string_lossy();
            }
            "null" => {}
            _ => return Err(unknown()),
        }
        expanded += rest;
    }
    Ok(expanded)
}

#[cfg(unix)]
fn user_id() -> u32 {
    rustix::process::getuid().as_raw()
}

#[cfg(unix)]
fn effective_user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// There is no user id, and no cache of that name.
#[cfg(not(unix))]
const fn user_id() -> u32 {
    0
}

#[cfg(not(unix))]
const fn effective_user_id() -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kdc_has_a_host_and_a_port() {
        for (entry, address) in [
            ("kdc", Some(("kdc", 88))),
            ("kdc:750", Some(("kdc", 750))),
            ("kdc # the first", Some(("kdc", 88))),
            ("10.0.0.1", Some(("10.0.0.1", 88))),
            ("[10.0.0.1]:88", Some(("10.0.0.1", 88))),
            ("[fd00::1]", Some(("fd00::1", 88))),
            ("[fd00::1]:750", Some(("fd00::1", 750))),
            // Without brackets, what follows the first colon is no port.
            ("fd00::1", None),
            ("kdc:750 # the first", None),
            ("kdc:65536", None),
            ("kdc:", None),
            ("750", None),
            ("", None),
            (":88", None),
            ("https://proxy/KdcProxy", None),
            ("/run/kdc.sock", None),
        ] {
            assert_eq!(Kdc::new(entry), Kdc { entry, address });
        }
    }

    #[test]
    fn parameters_of_a_name_have_values() {
        let (user, effective) = (user_id(), effective_user_id());
        for (name, value) in [
            (
                "FILE:/tmp/krb5cc_%{uid}",
                format!("FILE:/tmp/krb5cc_{user}"),
            ),
            (
                "FILE:/run/%{USERID}/%{euid}%{null}",
                format!("FILE:/run/{user}/{effective}"),
            ),
            ("/tmp/100%", "/tmp/100%".into()),
        ] {
            assert_eq!(expanded(name).unwrap(), value);
        }
        for name in [
            "FILE:/%{uid",
            "FILE:/%{}",
            "FILE:/%{username}",
            "FILE:/%{UID}",
        ] {
            let error = expanded(name).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_and_one_that_is_wrong_is_an_error() {
        let folder = env::temp_dir().join(format!("smbdirect-krb5-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, wrong) = (folder.join("conf"), folder.join("wrong"));
        fs::write(&file, b"# \xe9\n[realms]\nA.ORG = {\nkdc = a.org\n}\n").unwrap();
        let missing = folder.join("missing");
        let config = Config::of([missing, file.clone()].into_iter()).unwrap();
        assert_eq!(config.kdcs("A.ORG"), [Kdc::new("a.org")]);
        let files = config.files();
        assert!(
            files.contains("missing cannot be read: No such file"),
            "{files}"
        );
        assert!(files.ends_with("/conf"), "{files}");
        for (text, says) in [
            ("[realms]\nA.ORG\n", "wrong, line 2: "),
            ("include /no/such/file\n", "/no/such/file cannot be read: "),
        ] {
            fs::write(&wrong, text).unwrap();
            let error = Config::of([file.clone(), wrong.clone()].into_iter()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn the_cache_is_that_of_the_variable_or_no_other() {
        use std::os::unix::ffi::OsStringExt;
        let config = Config::default();
        let name = |bytes: &[u8]| config.cache_name_or(OsString::from_vec(bytes.to_vec()));
        assert_eq!(name(b"FILE:/x%{uid}").unwrap(), "FILE:/x%{uid}");
        assert!(name(b"").unwrap().starts_with("FILE:/tmp/krb5cc_"));
        let error = name(b"FILE:/\xff").unwrap_err().to_string();
        assert!(error.contains("is not UTF-8"), "{error}");
    }
}
