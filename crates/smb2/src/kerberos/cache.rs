//! Credential caches in files, as MIT Kerberos writes them (versions 3 and 4 of its format).
//!
//! `parse_ccache` of the crate smb2 0.39 reserves memory for as many names as the file counts. This module counts only
//! what the file can hold.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
};

use smb2::auth::kerberos::ccache::{CCache, CcacheCredential, CcachePrincipal};

use super::error::KerberosError;

/// Maximum number of bytes of a cache: hundreds of tickets.
const MOST_BYTES: u64 = 1 << 20;
const VERSION_3: u16 = 0x0503;
const VERSION_4: u16 = 0x0504;

/// Returns the path of a cache of the kind FILE.
pub(super) fn path(name: &str) -> Result<PathBuf, KerberosError> {
    match name.split_once(':') {
        // A path that begins with a drive letter has no kind. One with another colon has, as for MIT Kerberos.
        Some((kind, _)) if kind.len() == 1 => Ok(name.into()),
        None => Ok(name.into()),
        Some(("FILE", path)) => Ok(path.into()),
        Some((kind, _)) => Err(KerberosError::Kind { kind: kind.into() }),
    }
}

/// Reads a cache.
pub(super) fn read(path: &Path) -> Result<CCache, KerberosError> {
    let bytes = bytes_of(path).map_err(|unread| unread.explain(path))?;
    parse(&bytes).ok_or_else(|| no_cache(path, "is no credential cache".into()))
}

fn no_cache(path: &Path, why: String) -> KerberosError {
    let cache = path.display().to_string();
    KerberosError::NoCache { cache, why }
}

/// Why the bytes of a file are not here.
enum Unread {
    Io(io::Error),
    Unfit(String),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Unread {
    fn explain(self, path: &Path) -> KerberosError {
        match self {
            Self::Io(error) if error.kind() == io::ErrorKind::NotFound => {
                no_cache(path, "does not exist".into())
            }
            Self::Io(error) => no_cache(path, format!("cannot be read ({error})")),
            Self::Unfit(why) => KerberosError::CacheFile {
                cache: path.display().to_string(),
                why,
            },
        }
    }
}

/// Reads a short regular file of this user. Everybody can create files in the folder of the default cache.
fn bytes_of(path: &Path) -> Result<Vec<u8>, Unread> {
    let file = open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(Unread::Unfit("it is no regular file".into()));
    }
    check_owner(&about)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Unread::Unfit("it has more than 1 MiB".into()));
    }
    Ok(bytes)
}

/// Opens a file, and does not wait for the other end of a FIFO.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).open(path)
}

#[cfg(unix)]
fn check_owner(about: &std::fs::Metadata) -> Result<(), Unread> {
    use std::os::unix::fs::MetadataExt;
    let (owner, user) = (about.uid(), rustix::process::geteuid().as_raw());
    if owner == user || owner == 0 {
        return Ok(());
    }
    let why = format!("it belongs to the user {owner}, and not to {user} or root");
    Err(Unread::Unfit(why))
}

/// Another system decides by its permissions who writes to the folder of a cache.
#[cfg(not(unix))]
#[allow(clippy::unnecessary_wraps, reason = "as on Unix")]
fn check_owner(_: &std::fs::Metadata) -> Result<(), Unread> {
    Ok(())
}

/// Parses a cache; `None` if it is none. A file that is cut off has the credentials before.
fn parse(bytes: &[u8]) -> Option<CCache> {
    let mut reader = Reader(bytes);
    let version = reader.u16()?;
    match version {
        VERSION_3 => {}
        VERSION_4 => {
            let header = reader.u16()?;
            reader.take(header.into())?;
        }
        _ => return None,
    }
    let default_principal = reader.principal()?;
    let mut credentials = Vec::new();
    while let Some(credential) = reader.credential(version) {
        credentials.push(credential);
    }
    Some(CCache {
        version,
        default_principal,
        credentials,
    })
}

/// The rest of a cache. Its numbers are big-endian.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?.try_into().ok()?;
        Some(u16::from_be_bytes(bytes))
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_be_bytes(bytes))
    }

    /// Reads bytes after their number.
    fn data(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn string(&mut self) -> Option<String> {
        String::from_utf8(self.data()?.to_vec()).ok()
    }

    fn principal(&mut self) -> Option<CcachePrincipal> {
        let name_type = self.u32()?;
        let count = self.u32()?;
        let realm = self.string()?;
        // Each has bytes of its own, so a count that is too large ends at the end of the file.
        let components = (0..count).map(|_| self.string()).collect::<Option<_>>()?;
        Some(CcachePrincipal {
            name_type,
            realm,
            components,
        })
    }

    /// Skips a list of addresses or of authorization data.
    fn skip_list(&mut self) -> Option<()> {
        let count = self.u32()?;
        for _ in 0..count {
            self.u16()?;
            self.data()?;
        }
        Some(())
    }

    fn credential(&mut self, version: u16) -> Option<CcacheCredential> {
        let (client, server) = (self.principal()?, self.principal()?);
        let key_etype = self.u16()?;
        if version == VERSION_3 {
            // It is there twice.
            self.u16()?;
        }
        let key_data = self.data()?.to_vec();
        let [authtime, starttime, endtime, renew_till] =
            [self.u32()?, self.u32()?, self.u32()?, self.u32()?];
        // Whether the key is that of another ticket, and the flags of the ticket.
        self.take(5)?;
        self.skip_list()?;
        self.skip_list()?;
        let ticket = self.data()?.to_vec();
        let _second_ticket = self.data()?;
        Some(CcacheCredential {
            client,
            server,
            key_etype,
            key_data,
            authtime,
            starttime,
            endtime,
            renew_till,
            ticket,
        })
    }
}

/// The shortest Ticket: tkt-vno, realm, sname and enc-part, of the right types.
#[cfg(test)]
pub(super) const TICKET: [u8; 44] = [
    0x61, 42, 0x30, 40, 0xa0, 3, 2, 1, 5, 0xa1, 3, 0x1b, 1, b'R', 0xa2, 14, 0x30, 12, 0xa0, 3, 2,
    1, 1, 0xa1, 5, 0x30, 3, 0x1b, 1, b's', 0xa3, 12, 0x30, 10, 0xa0, 3, 2, 1, 18, 0xa2, 3, 4, 1, 0,
];

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn data(bytes: &[u8]) -> Vec<u8> {
        [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
    }

    fn principal(components: &[&str]) -> Vec<u8> {
        let count = (components.len() as u32).to_be_bytes();
        let mut bytes = [&[0, 0, 0, 1], &count, &*data(b"EXAMPLE.ORG")].concat();
        for component in components {
            bytes.extend(data(component.as_bytes()));
        }
        bytes
    }

    fn credential(version: u16, etype: u8, key: &[u8]) -> Vec<u8> {
        let client = principal(&["me"]);
        let server = principal(&["krbtgt", "EXAMPLE.ORG"]);
        let etypes = [0, etype].repeat(if version == VERSION_3 { 2 } else { 1 });
        let times = [0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4];
        let one = [&[0, 0, 0, 1, 0, 2][..], &data(&[127, 0, 0, 1])].concat();
        let none = [0; 4];
        [
            &client,
            &server,
            &etypes,
            &*data(key),
            &times,
            &[0; 5],
            &one,
            &none,
            &data(&TICKET),
            &data(b""),
        ]
        .concat()
    }

    fn cache(version: u16, credentials: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = version.to_be_bytes().to_vec();
        if version == VERSION_4 {
            bytes.extend([0, 12, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        bytes.extend(principal(&["me"]));
        bytes.extend(credentials.concat());
        bytes
    }

    #[test]
    fn caches_of_both_versions_are_read() {
        for version in [VERSION_3, VERSION_4] {
            let credential = credential(version, 18, &[7; 32]);
            let bytes = cache(version, &[credential.clone(), credential.clone()]);
            let read = parse(&bytes).unwrap();
            assert_eq!(read.default_principal.components, ["me"]);
            let [first, second] = &*read.credentials else {
                panic!("{read:?}");
            };
            assert_eq!((first.key_etype, &first.ticket), (18, &second.ticket));
            assert_eq!(second.server.components, ["krbtgt", "EXAMPLE.ORG"]);
            assert_eq!((second.authtime, second.renew_till), (1, 4));
            assert_eq!(
                (&*second.key_data, &*second.ticket),
                (&[7; 32][..], &TICKET[..])
            );
            let head = bytes.len() - 2 * credential.len();
            for length in 0..bytes.len() {
                let read = parse(&bytes[..length]).map(|cache| cache.credentials.len());
                let whole = length.checked_sub(head).map(|rest| rest / credential.len());
                assert_eq!(read, whole, "{length}");
            }
        }
        assert!(parse(&[5, 2, 0, 0]).is_none());
    }

    /// Each number in the file that is too large is an end of the file, and no memory.
    #[test]
    fn counts_in_a_file_reserve_no_memory() {
        let bytes = cache(VERSION_4, &[credential(VERSION_4, 18, &[7; 32])]);
        for at in 0..bytes.len() - 4 {
            let mut lying = bytes.clone();
            lying[at..at + 4].fill(0xff);
            let _ = parse(&lying);
        }
        let names = [&[5, 4, 0, 0, 0, 0, 0, 1][..], &[0xff; 4], &data(b"R")].concat();
        assert!(parse(&names).is_none());
    }

    #[test]
    fn caches_are_files() {
        for (name, expected) in [
            ("/tmp/krb5cc_7", "/tmp/krb5cc_7"),
            ("FILE:/tmp/krb5cc_7", "/tmp/krb5cc_7"),
        ] {
            assert_eq!(path(name).unwrap(), Path::new(expected), "{name}");
        }
        for name in ["KEYRING:persistent:7", "KCM:", "MEMORY:x", "DIR:/x"] {
            let error = path(name).unwrap_err().to_string();
            let kind = name.split(':').next().unwrap();
            assert!(error.contains(&format!("of the kind {kind} ")), "{error}");
        }
        let missing = read(Path::new("/no/such/cache")).unwrap_err().to_string();
        let says = "/no/such/cache does not exist; run `kinit";
        assert!(missing.contains(says), "{missing}");
    }

    #[cfg(unix)]
    #[test]
    fn a_cache_is_a_short_regular_file_of_this_user() {
        let folder = std::env::temp_dir().join(format!("smbdirect-cache-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let fails = |path: &Path, says: &str| {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains(says), "{}: {error}", path.display());
        };
        fails(Path::new("/dev/null"), "it is no regular file");
        fails(&folder, "it is no regular file");
        let fifo = folder.join("tkt");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        fails(&fifo, "it is no regular file");
        let long = folder.join("long");
        fs::write(&long, vec![0; MOST_BYTES as usize + 1]).unwrap();
        fails(&long, "it has more than 1 MiB");
        fs::write(&long, b"text").unwrap();
        fails(&long, "is no credential cache");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&long, Some(4711), None).unwrap();
            fails(&long, "it belongs to the user 4711");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
