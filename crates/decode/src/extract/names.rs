//! Paths for files whose names come from a capture. A path is always relative, and stays within its folder on every
//! system.

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    path::PathBuf,
};

/// The paths that were given so far, in lower case, because some systems do not distinguish case.
#[derive(Debug, Default)]
pub(super) struct Names {
    files: HashSet<String>,
    folders: HashSet<String>,
}

/// Maximum number of bytes of a component: file systems allow 255.
const MAX_COMPONENT_BYTES: usize = 200;
/// Maximum number of components, so that a path stays below the limits of all systems.
const MAX_COMPONENTS: usize = 16;
/// Names of devices on Windows, with any extension.
const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];

impl Names {
    /// Returns a path for a file of a share that no other file has.
    pub(super) fn path(&mut self, share: &str, name: &str) -> PathBuf {
        let parts = || name.split(['\\', '/']).filter(|part| !part.is_empty());
        let mut components = vec![component(share)];
        let depth = parts().count();
        if depth > MAX_COMPONENTS {
            components.push(format!("~{:016x}", hash(name)));
        }
        let skipped = depth.saturating_sub(MAX_COMPONENTS);
        components.extend(parts().skip(skipped).map(component));
        if components.len() == 1 {
            components.push("_".into());
        }
        let mut path = String::new();
        let last = components.len() - 1;
        for (index, component) in components.iter().enumerate() {
            path = self.free(&path, component, index == last);
            let key = path.to_lowercase();
            if index == last {
                self.files.insert(key);
            } else {
                self.folders.insert(key);
            }
        }
        path.split('/').collect()
    }

    /// Returns the path of a component in a folder, with a number if it is taken.
    fn free(&self, folder: &str, component: &str, is_file: bool) -> String {
        let prefix = if folder.is_empty() {
            String::new()
        } else {
            format!("{folder}/")
        };
        let is_taken = |path: &str| {
            let key = path.to_lowercase();
            self.files.contains(&key) || (is_file && self.folders.contains(&key))
        };
        let plain = format!("{prefix}{component}");
        if !is_taken(&plain) {
            return plain;
        }
        let mut numbered = (2_u64..).map(|number| format!("{plain}~{number}"));
        numbered
            .find(|path| !is_taken(path))
            .expect("there are more numbers than files")
    }
}

/// Returns a name that is one component on every system.
fn component(name: &str) -> String {
    let mut safe: String = name
        .chars()
        .map(|char| if is_harmless(char) { char } else { '_' })
        .collect();
    if safe.len() > MAX_COMPONENT_BYTES {
        let mut end = MAX_COMPONENT_BYTES - 17;
        while !safe.is_char_boundary(end) {
            end -= 1;
        }
        safe.truncate(end);
        safe += &format!("~{:016x}", hash(name));
    }
    // Windows drops dots and spaces at the end, so `..`, `...` and `.. ` can mean the parent there.
    let trimmed = safe.trim_end_matches(['.', ' ']).len();
    let ending = "_".repeat(safe.chars().count() - safe[..trimmed].chars().count());
    safe.replace_range(trimmed.., &ending);
    let stem = safe.split('.').next().unwrap_or_default().trim_end();
    let stem = stem.to_lowercase();
    let is_port = ["com", "lpt"].iter().any(|port| {
        let number = stem.strip_prefix(port).map(|rest| rest.chars().count());
        number == Some(1)
    });
    if safe.is_empty() || is_port || DEVICES.contains(&stem.as_str()) {
        safe.insert(0, '_');
    }
    safe
}

/// Returns whether a character has no meaning in a path, and does not change how a terminal shows it.
const fn is_harmless(char: char) -> bool {
    !matches!(
        char,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '<' | '>' | ':' | '"' | '/' | '\\' | '|' | '?' | '*'
            | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use fastrand::Rng;

    use super::*;

    fn path(name: &str) -> String {
        let path = Names::default().path("share", name);
        path.to_string_lossy().replace('\\', "/")
    }

    #[test]
    fn a_plain_name_stays() {
        assert_eq!(path("folder\\file.txt"), "share/folder/file.txt");
        assert_eq!(path("Ünï ¢.bin"), "share/Ünï ¢.bin");
    }

    #[test]
    fn names_never_leave_the_folder() {
        for (name, expected) in [
            ("..\\..\\etc\\passwd", "share/__/__/etc/passwd"),
            ("../../etc/passwd", "share/__/__/etc/passwd"),
            ("\\\\host\\c$\\x", "share/host/c$/x"),
            ("/etc/passwd", "share/etc/passwd"),
            ("C:\\windows\\x", "share/C_/windows/x"),
            ("file.txt:stream:$DATA", "share/file.txt_stream_$DATA"),
            (".", "share/_"),
            ("... ", "share/____"),
            ("", "share/_"),
            ("NUL", "share/_NUL"),
            ("nul.txt", "share/_nul.txt"),
            ("COM1.log", "share/_COM1.log"),
            ("command", "share/command"),
            ("a\u{0}b\nc\u{202e}d", "share/a_b_c_d"),
        ] {
            assert_eq!(path(name), expected, "{name:?}");
        }
    }

    #[test]
    fn long_names_differ_still() {
        let long = "é".repeat(4000);
        let (one, other) = (path(&format!("{long}1")), path(&format!("{long}2")));
        assert_ne!(one, other);
        assert!(one.len() < 220 && other.len() < 220);
        let deep = "d\\".repeat(1000) + "file";
        assert!(path(&deep).len() < 100 && path(&deep).ends_with("/file"));
    }

    #[test]
    fn no_two_files_have_the_same_path() {
        let mut names = Names::default();
        let mut paths = HashSet::new();
        for name in [
            "a", "A", "a\\b", "a:b", "a_b", "A\\B\\c", "a\\b\\c", "x.", "x_", "a\\b",
        ] {
            let path = names.path("s", name);
            let key = path.to_string_lossy().to_lowercase();
            assert!(paths.insert(key), "{name}: {path:?}");
            for parent in path.ancestors().skip(1) {
                let parent = parent.to_string_lossy().to_lowercase();
                assert!(!paths.contains(&parent), "{name}: {path:?} is below a file");
            }
        }
    }

    #[test]
    fn random_names_are_plain_components() {
        let mut rng = Rng::with_seed(1);
        let pieces = [
            "..", ".", "\\", "/", ":", "nul", "a", " ", "\u{0}", "con", "é", "com1", "~2",
        ];
        let mut names = Names::default();
        for _ in 0..5000 {
            let name: String = (0..rng.usize(..8))
                .map(|_| pieces[rng.usize(..pieces.len())])
                .collect();
            let path = names.path("..", &name);
            let is_plain = |component: Component<'_>| matches!(component, Component::Normal(_));
            assert!(path.components().all(is_plain), "{name:?}: {path:?}");
        }
    }
}
