//! What of krb5.conf a client of the credential cache needs: where the cache is, and the KDCs of a realm.

use std::{
    collections::HashMap,
    env, fs,
    path::{Path, PathBuf},
};

/// Deepest nesting of included files.
const MAX_DEPTH: usize = 10;

/// Settings of krb5.conf.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    default_cache: Option<String>,
    kdcs: HashMap<String, Vec<String>>,
    files: Vec<PathBuf>,
}

impl Config {
    /// Reads the files of KRB5_CONFIG, or `/etc/krb5.conf`. Files that do not exist have no settings.
    pub(super) fn read() -> Self {
        let files = env::var_os("KRB5_CONFIG").unwrap_or_else(|| "/etc/krb5.conf".into());
        let mut config = Self::default();
        for file in env::split_paths(&files) {
            config.read_file(&file, MAX_DEPTH);
            config.files.push(file);
        }
        config
    }

    /// Returns the name of the credential cache.
    pub(super) fn cache_name(&self) -> String {
        if let Ok(name) = env::var("KRB5CCNAME")
            && !name.is_empty()
        {
            return name;
        }
        let name = self.default_cache.as_deref();
        let name = name.unwrap_or("FILE:/tmp/krb5cc_%{uid}");
        let user = user_id().to_string();
        name.replace("%{uid}", &user).replace("%{euid}", &user)
    }

    /// Returns the KDCs of a realm, as `HOST` or `HOST:PORT`.
    pub(super) fn kdcs(&self, realm: &str) -> Vec<String> {
        self.kdcs.get(realm).cloned().unwrap_or_default()
    }

    /// Returns the names of the files, for an error.
    pub(super) fn files(&self) -> String {
        let names: Vec<_> = self
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect();
        names.join(", ")
    }

    fn read_file(&mut self, file: &Path, depth: usize) {
        let Ok(text) = fs::read_to_string(file) else {
            return;
        };
        self.parse(&text, depth);
    }

    fn parse(&mut self, text: &str, depth: usize) {
        let mut section = String::new();
        let mut realm: Option<String> = None;
        for line in text.lines() {
            let line = line.trim();
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
                realm = None;
                continue;
            }
            if line.starts_with('}') {
                realm = None;
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let (key, value) = (key.trim(), value.trim());
            match (&*section, key, &realm) {
                _ if key.starts_with(['#', ';']) => {}
                ("libdefaults", "default_ccache_name", _) => {
                    self.default_cache.get_or_insert_with(|| value.to_owned());
                }
                ("realms", "kdc", Some(realm)) => {
                    let kdcs = self.kdcs.entry(realm.clone()).or_default();
                    kdcs.push(without_scheme(value).to_owned());
                }
                ("realms", name, None) if value.starts_with('{') => realm = Some(name.to_owned()),
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
        assert_eq!(
            config.default_cache.as_deref(),
            Some("FILE:/run/krb5cc_%{uid}")
        );
        fs::remove_dir_all(folder).unwrap();
    }
}
