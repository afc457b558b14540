//! What of krb5.conf a client of the credential cache needs: where the cache is, and the KDCs of a realm.

use std::{collections::HashMap, env, ffi::OsString, fs, io, path::Path};

use super::error::KerberosError;

/// Deepest nesting of included files.
const MAX_DEPTH: usize = 10;

/// Settings of krb5.conf.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    default_cache: Option<String>,
    kdcs: HashMap<String, Vec<String>>,
    /// The files of KRB5_CONFIG, and those that cannot be read, as they are shown.
    files: Vec<String>,
}

impl Config {
    /// Reads the files of KRB5_CONFIG, or `/etc/krb5.conf`. Files that do not exist have no settings.
    pub(super) fn read() -> Self {
        let files = env::var_os("KRB5_CONFIG").unwrap_or_else(|| "/etc/krb5.conf".into());
        let mut config = Self::default();
        for file in env::split_paths(&files) {
            if config.read_file(&file, MAX_DEPTH) {
                config.files.push(file.display().to_string());
            }
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
        let name = self.default_cache.as_deref();
        let name = name.unwrap_or("FILE:/tmp/krb5cc_%{uid}");
        let user = user_id().to_string();
        Ok(name.replace("%{uid}", &user).replace("%{euid}", &user))
    }

    /// Returns the KDCs of a realm, as `HOST` or `HOST:PORT`.
    pub(super) fn kdcs(&self, realm: &str) -> Vec<String> {
        self.kdcs.get(realm).cloned().unwrap_or_default()
    }

    /// Returns the names of the files, for an error.
    pub(super) fn files(&self) -> String {
        self.files.join(", ")
    }

    /// Reads a file; false if it cannot be read. MIT Kerberos does not ask for UTF-8.
    fn read_file(&mut self, file: &Path, depth: usize) -> bool {
        match fs::read(file) {
            Ok(bytes) => self.parse(&String::from_utf8_lossy(&bytes), depth),
            Err(error) => {
                let file = file.display();
                let shown = match error.kind() {
                    io::ErrorKind::NotFound => format!("{file} (does not exist)"),
                    _ => format!("{file} (cannot be read: {error})"),
                };
                self.files.push(shown);
                return false;
            }
        }
        true
    }

    pub(super) fn parse(&mut self, text: &str, depth: usize) {
        let mut section = String::new();
        // The names of the groups in braces around a line, outermost first.
        let mut groups: Vec<String> = Vec::new();
        // A name whose `{` is on the next line.
        let mut pending = None;
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with(['#', ';']) {
                continue;
            }
            let first = line.split_whitespace().next().unwrap_or_default();
            match first {
                "include" if depth > 0 => {
                    self.read_file(Path::new(line[first.len()..].trim()), depth - 1);
                }
                "includedir" if depth > 0 => {
                    self.read_folder(Path::new(line[first.len()..].trim()), depth - 1);
                }
                _ => {}
            }
            if let Some(name) = line.strip_prefix('[') {
                section = name.split(']').next().unwrap_or_default().to_owned();
                groups.clear();
                continue;
            }
            if line.starts_with('}') {
                groups.pop();
                continue;
            }
            if line.starts_with('{') {
                groups.extend(pending.take());
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            if value.starts_with('{') {
                groups.push(key.to_owned());
                continue;
            }
            pending = value.is_empty().then(|| key.to_owned());
            match (&*section, key, &*groups) {
                ("libdefaults", "default_ccache_name", []) => {
                    self.default_cache.get_or_insert_with(|| value.to_owned());
                }
                ("realms", "kdc", [realm]) if !value.is_empty() => {
                    let kdcs = self.kdcs.entry(realm.clone()).or_default();
                    kdcs.push(without_scheme(value).to_owned());
                }
                _ => {}
            }
        }
    }

    /// Reads the files of a folder whose names MIT Kerberos accepts: letters, digits, dashes and underscores, or
    /// the suffix `.conf`.
    fn read_folder(&mut self, folder: &Path, depth: usize) {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.path()).collect();
        names.sort();
        for path in names {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            let is_hidden = name.starts_with('.');
            if !is_hidden && (name.ends_with(".conf") || name.chars().all(is_plain)) {
                self.read_file(&path, depth);
            }
        }
    }
}

/// Removes a transport from an entry, as in `tcp/HOST`.
fn without_scheme(kdc: &str) -> &str {
    kdc.split_once('/').map_or(kdc, |(_, host)| host)
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
    use super::*;

    #[test]
    fn caches_and_kdcs_are_read() {
        let folder = env::temp_dir().join(format!("smbdirect-krb5-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let more = "[realms]\n OTHER.ORG = {\n kdc = tcp/kdc.other.org:8888\n }\n";
        fs::write(folder.join("other.conf"), more).unwrap();
        fs::write(
            folder.join("ignored.rpmsave"),
            "[realms]\n X = {\n kdc = x\n }\n",
        )
        .unwrap();
        let text = format!(
            "includedir {}\n[libdefaults]\n  default_ccache_name = FILE:/run/krb5cc_%{{uid}}\n# kdc = no\n\
             [realms]\nEXAMPLE.ORG = {{\n\tkdc = a.example.org\n\tkdc=b.example.org:750\n  # kdc = c\n\
             admin_server = a.example.org\n}}\n[domain_realm]\n.example.org = EXAMPLE.ORG\n",
            folder.display()
        );
        let mut config = Config::default();
        config.parse(&text, MAX_DEPTH);
        assert_eq!(
            config.kdcs("EXAMPLE.ORG"),
            ["a.example.org", "b.example.org:750"]
        );
        assert_eq!(config.kdcs("OTHER.ORG"), ["kdc.other.org:8888"]);
        assert_eq!(config.kdcs("X"), [""; 0]);
        assert_eq!(config.files(), "");
        assert_eq!(
            config.default_cache.as_deref(),
            Some("FILE:/run/krb5cc_%{uid}")
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn groups_in_braces_end_where_they_end() {
        let text = "[realms]\nA.ORG = {\n auth_to_local_names = {\n  # }\n  kdc = no\n }\n kdc = a.org\n v4 =\n {\n \
                    kdc = no\n }\n kdc = b.org\n}\nkdc = no\nB.ORG =\n{\nkdc = c.org\n}\n";
        let mut config = Config::default();
        config.parse(text, MAX_DEPTH);
        assert_eq!(config.kdcs("A.ORG"), ["a.org", "b.org"]);
        assert_eq!(config.kdcs("B.ORG"), ["c.org"]);
    }

    #[test]
    fn a_file_that_is_not_utf8_has_settings_and_one_that_cannot_be_read_is_named() {
        let file = env::temp_dir().join(format!("smbdirect-krb5-latin-{}", std::process::id()));
        fs::write(&file, b"# \xe9\n[realms]\nA.ORG = {\nkdc = a.org\n}\n").unwrap();
        let mut config = Config::default();
        assert!(config.read_file(&file, MAX_DEPTH));
        assert_eq!(config.kdcs("A.ORG"), ["a.org"]);
        fs::remove_file(&file).unwrap();
        assert!(!config.read_file(&file, MAX_DEPTH));
        assert!(!config.read_file(&env::temp_dir(), MAX_DEPTH));
        let files = config.files();
        assert!(files.contains("(does not exist), "), "{files}");
        assert!(files.contains(" (cannot be read: "), "{files}");
    }

    #[cfg(unix)]
    #[test]
    fn the_cache_is_that_of_the_variable_or_no_other() {
        use std::os::unix::ffi::OsStringExt;
        let config = Config::default();
        let name = |bytes: &[u8]| config.cache_name_or(OsString::from_vec(bytes.to_vec()));
        assert_eq!(name(b"FILE:/x").unwrap(), "FILE:/x");
        assert!(name(b"").unwrap().starts_with("FILE:/tmp/krb5cc_"));
        let error = name(b"FILE:/\xff").unwrap_err().to_string();
        assert!(error.contains("is not UTF-8"), "{error}");
    }
}
