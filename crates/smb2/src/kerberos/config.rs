//! What of krb5.conf a client of the credential cache needs: where the cache is, and the KDCs of a realm.
//!
//! Sections, groups in braces, values in quotes, `include` and `includedir` are read. Other lines are skipped, and a file
//! that MIT Kerberos refuses is used as far as it can be understood.

use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use super::error::KerberosError;

/// Port of the KDC.
const KDC_PORT: u16 = 88;
/// Deepest nesting of included files.
const MAX_DEPTH: usize = 10;

/// Settings of krb5.conf.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    /// Each value, after the names of the sections and groups around it and its own name. Values of earlier files come
    /// first.
    values: Vec<(Vec<String>, String)>,
    /// The files that were read, or why they were not, as they are shown.
    files: Vec<String>,
}

impl Config {
    /// Reads the files of KRB5_CONFIG, or `/etc/krb5.conf`.
    pub(super) fn read() -> Self {
        let files = env::var_os("KRB5_CONFIG").unwrap_or_else(|| "/etc/krb5.conf".into());
        Self::of(env::split_paths(&files))
    }

    pub(super) fn of(files: impl Iterator<Item = PathBuf>) -> Self {
        let mut config = Self::default();
        for file in files {
            config.add(&file, MAX_DEPTH);
        }
        config
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
        let mut names = self.values(&["libdefaults", "default_ccache_name"]);
        expanded(names.next().unwrap_or("FILE:/tmp/krb5cc_%{uid}"))
    }

    /// Returns the KDCs of a realm.
    pub(super) fn kdcs(&self, realm: &str) -> Vec<Kdc<'_>> {
        self.values(&["realms", realm, "kdc"])
            .map(Kdc::new)
            .collect()
    }

    /// Returns the names of the files, for an error.
    pub(super) fn files(&self) -> String {
        self.files.join(", ")
    }

    fn values(&self, names: &[&str]) -> impl Iterator<Item = &str> {
        let named = self
            .values
            .iter()
            .filter(move |(path, _)| path.iter().eq(names));
        named.map(|(_, value)| &**value)
    }

    /// Adds a file, or the files of a folder whose names end with `.conf`, or have only letters, digits, `-` and `_`.
    fn add(&mut self, path: &Path, depth: usize) {
        let shown = path.display();
        let read = match depth.checked_sub(1) {
            None => Err(io::Error::other("it includes itself, or too many others")),
            Some(depth) if path.is_dir() => self.add_folder(path, depth),
            Some(depth) => fs::read(path).map(|bytes| {
                self.files.push(shown.to_string());
                // MIT Kerberos does not ask for UTF-8.
                self.add_lines(&String::from_utf8_lossy(&bytes), depth);
            }),
        };
        if let Err(error) = read {
            self.files.push(format!("{shown} cannot be read: {error}"));
        }
    }

    fn add_folder(&mut self, folder: &Path, depth: usize) -> io::Result<()> {
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_plain =
                |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
            let is_read =
                !name.starts_with('.') && (name.ends_with(".conf") || name.chars().all(is_plain));
            if is_read && !entry.path().is_dir() {
                files.push(entry.path());
            }
        }
        files.sort();
        for file in files {
            self.add(&file, depth);
        }
        Ok(())
    }

    fn add_lines(&mut self, text: &str, depth: usize) {
        let mut sections: Vec<String> = Vec::new();
        // The name of a group whose brace is in the next line.
        let mut group = None;
        for line in text.lines() {
            if let Some(path) = included(line) {
                self.add(path, depth);
                continue;
            }
            let line = line.trim();
            let before = group.take();
            match line.split_at_checked(1) {
                None | Some(("#" | ";", _)) => {}
                Some(("[", rest)) => {
                    sections.clear();
                    sections.extend(rest.split_once(']').map(|(name, _)| name.to_owned()));
                }
                Some(("{", _)) => sections.extend(before),
                // The section stays.
                Some(("}", _)) => sections.truncate(sections.len().saturating_sub(1).max(1)),
                _ => {
                    let Some((name, value)) = line.split_once('=') else {
                        continue;
                    };
                    // A star marks what later files cannot change.
                    let name = name.trim_end().trim_end_matches('*').to_owned();
                    match value.trim() {
                        "" => group = Some(name),
                        "{" => sections.push(name),
                        value => {
                            let path = [&sections[..], &[name]].concat();
                            self.values.push((path, unquoted(value).to_owned()));
                        }
                    }
                }
            }
        }
    }
}

/// Returns the path of a line that includes a file or a folder.
fn included(line: &str) -> Option<&Path> {
    let (word, path) = line.split_once([' ', '\t'])?;
    matches!(word, "include" | "includedir").then(|| Path::new(path.trim()))
}

/// Returns the text between quotes, without what follows them.
fn unquoted(value: &str) -> &str {
    let quoted = value.strip_prefix('"');
    quoted.map_or(value, |quoted| quoted.split('"').next().unwrap_or_default())
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
    let user = user_id().to_string();
    let expanded = name.replace("%{uid}", &user).replace("%{USERID}", &user);
    if expanded.contains("%{") {
        return Err(KerberosError::Parameter { name: name.into() });
    }
    Ok(expanded)
}

#[cfg(unix)]
fn user_id() -> u32 {
    rustix::process::getuid().as_raw()
}

/// There is no user id, and no cache of that name.
#[cfg(not(unix))]
const fn user_id() -> u32 {
    0
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    /// Files in a folder of their own.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let folder = env::temp_dir().join(format!("smbdirect-krb5-{}-{name}", process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let text = text.replace("FOLDER", self.0.to_str().unwrap());
            let file = self.0.join(name);
            fs::write(&file, text).unwrap();
            file
        }

        /// Returns the KDCs of the realm R in files with these texts.
        fn kdcs(&self, texts: &[&str]) -> Vec<String> {
            let files = texts.iter().enumerate();
            let files = files.map(|(index, text)| self.write(&format!("file {index}"), text));
            let config = Config::of(files);
            let values = config.values(&["realms", "R", "kdc"]);
            values.map(str::to_owned).collect()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The expected values are those of `profile_get_values` of MIT Kerberos 1.20.1.
    #[test]
    fn relations_of_a_realm_are_those_of_mit_kerberos() {
        let files = Files::new("relations");
        for (lines, expected) in [
            ("kdc = a", &["a"][..]),
            ("kdc\t=\ta b\t ", &["a b"]),
            ("kdc = \"a b\" c", &["a b"]),
            ("kdc = \"\"", &[""]),
            ("kdc = a \"b\"", &["a \"b\""]),
            ("kdc = a # first", &["a # first"]),
            ("kdc* = a\nkdc = b", &["a", "b"]),
            ("; kdc = no\n  # kdc = no\nkdc=a", &["a"]),
            ("kdc = {x\nkdc = b", &["{x", "b"]),
            ("kdc = { \nkdc = no\n}x\nkdc = b", &["b"]),
            ("x =\n  {\nkdc = no\n}\nkdc = b", &["b"]),
            ("kdc = a }", &["a }"]),
            ("kdc = a\r", &["a"]),
            ("}\nR = {\nkdc = a\n}\nr = {\nkdc = no", &["a"]),
            (
                "kdc = a\n}\n[other]\nR = {\nkdc = no\n}\n[realms]\nR = {\nkdc = b",
                &["a", "b"],
            ),
        ] {
            let text = format!("text\n[realms]\nR = {{\n{lines}\n}}\n");
            assert_eq!(files.kdcs(&[&text]), expected, "{lines}");
        }
        // The last line ends with the file.
        assert_eq!(files.kdcs(&["[realms]\nR = {\nkdc = a\nx =\n"]), ["a"]);
        assert!(files.kdcs(&["R = {\nkdc = a\n}\n"]).is_empty());
    }

    /// MIT Kerberos refuses these files.
    #[test]
    fn lines_that_are_not_understood_are_skipped() {
        let files = Files::new("errors");
        for lines in [
            "R\n",
            "= a\n",
            "R =\n\n",
            "}\n",
            "}\n}\n",
            "module /x:y\n",
            "include FOLDER/missing\n",
            "includedir FOLDER/missing\n",
            "include FOLDER/file 0\n",
        ] {
            let text = format!("[realms]\n{lines}R = {{\nkdc = a\n}}\n");
            let kdcs = files.kdcs(&[&text]);
            assert_eq!(kdcs.first().map(String::as_str), Some("a"), "{lines}");
        }
        assert!(files.kdcs(&["[realms\nR = {\nkdc = a\n}\n"]).is_empty());
    }

    #[test]
    fn files_are_included_by_their_names() {
        let files = Files::new("include");
        let conf = |kdc: &str| format!("[realms]\nR = {{\nkdc = {kdc}\n}}\n");
        fs::create_dir_all(files.0.join("folder/folder")).unwrap();
        for (name, kdc) in [
            ("b.conf", "b"),
            ("a_-1", "a"),
            (".c.conf", "no"),
            ("d.rpmsave", "no"),
            ("e~", "no"),
        ] {
            files.write(&format!("folder/{name}"), &conf(kdc));
        }
        let own = conf("own\nincludedir FOLDER/folder\nkdc = last");
        assert_eq!(files.kdcs(&[&own]), ["own", "a", "b", "last"]);
        let own = format!("include \t FOLDER/folder/b.conf\n{}", conf("own"));
        assert_eq!(files.kdcs(&[&own]), ["b", "own"]);
        let config = Config::of([files.0.join("folder")].into_iter());
        assert_eq!(config.kdcs("R"), [Kdc::new("a"), Kdc::new("b")]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let files = Files::new("missing");
        let file = files.write("conf", "# x\n[realms]\nA.ORG = {\nkdc = a.org\n}\n");
        let config = Config::of([files.0.join("missing"), file].into_iter());
        assert_eq!(config.kdcs("A.ORG"), [Kdc::new("a.org")]);
        let shown = config.files();
        assert!(
            shown.contains("missing cannot be read: No such file"),
            "{shown}"
        );
        assert!(shown.ends_with("/conf"), "{shown}");
    }

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
        let user = user_id();
        for (name, value) in [
            (
                "FILE:/tmp/krb5cc_%{uid}",
                format!("FILE:/tmp/krb5cc_{user}"),
            ),
            ("FILE:/run/%{USERID}/x", format!("FILE:/run/{user}/x")),
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
