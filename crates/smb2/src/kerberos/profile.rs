//! Files in the format of krb5.conf, as MIT Kerberos 1.20 reads them ([krb5.conf]).
//!
//! A profile is a list of relations, each with the names of the sections around it. Sections of the same name are one,
//! also if they are in several places. A file that MIT Kerberos refuses is an error here, too.
//!
//! [krb5.conf]: https://web.mit.edu/kerberos/krb5-1.20/doc/admin/conf_files/krb5_conf.html

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// Deepest nesting of included files.
const MAX_DEPTH: usize = 10;

/// Several files. Values of earlier ones come first.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    files: Vec<Relations>,
}

/// The contents of a file, and of those that it includes.
#[derive(Clone, Debug, Default)]
struct Relations {
    /// Each value, after the names of the sections around it and its own name.
    values: Vec<(Vec<String>, String)>,
    /// Sections to which later files do not add.
    finals: Vec<Vec<String>>,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) file: PathBuf,
    pub(super) why: Why,
}

#[derive(Debug)]
pub(super) enum Why {
    /// The file cannot be read.
    Unread(io::Error),
    /// The file includes too many files, one in the other.
    TooDeep,
    /// The line with this number is wrong.
    Line(usize, &'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match &self.why {
            Why::Unread(error) => write!(f, "{file} cannot be read: {error}"),
            Why::TooDeep => write!(f, "{file} is included by itself, or too deeply"),
            Why::Line(number, why) => write!(f, "{file}, line {number}: {why}"),
        }
    }
}

impl Profile {
    /// Adds a file, or the files of a folder.
    pub(super) fn add(&mut self, path: &Path) -> Result<(), Fault> {
        let mut relations = Relations::default();
        if path.is_dir() {
            relations.read_folder(path, MAX_DEPTH)?;
        } else {
            relations.read_file(path, MAX_DEPTH)?;
        }
        self.files.push(relations);
        Ok(())
    }

    /// Returns the values of the relations with these names: the sections from the outermost on, and the relation.
    pub(super) fn values(&self, names: &[&str]) -> Vec<&str> {
        let sections = &names[..names.len() - 1];
        let is_final = |section: &Vec<String>| {
            section.len() <= sections.len() && section.iter().eq(&sections[..section.len()])
        };
        let mut values = Vec::new();
        for file in &self.files {
            let named = file.values.iter().filter(|(path, _)| path.iter().eq(names));
            values.extend(named.map(|(_, value)| &**value));
            if file.finals.iter().any(is_final) {
                break;
            }
        }
        values
    }
}

impl Relations {
    fn read_file(&mut self, file: &Path, depth: usize) -> Result<(), Fault> {
        let fault = |why| Fault {
            file: file.into(),
            why,
        };
        let depth = depth.checked_sub(1).ok_or_else(|| fault(Why::TooDeep))?;
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            // A folder among the files of a folder has no settings.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Ok(()),
            Err(error) => return Err(fault(Why::Unread(error))),
        };
        // MIT Kerberos does not ask for UTF-8.
        let text = String::from_utf8_lossy(&bytes);
        let mut at = Place::default();
        for (index, line) in text.split_terminator('\n').enumerate() {
            let line = line.trim_end_matches('\r');
            if let Some(file) = directive(line, "include") {
                self.read_file(file, depth)?;
            } else if let Some(folder) = directive(line, "includedir") {
                self.read_folder(folder, depth)?;
            } else {
                let read = self.read_line(line, &mut at);
                read.map_err(|why| fault(Why::Line(index + 1, why)))?;
            }
        }
        Ok(())
    }

    /// Reads the files of a folder whose names end with `.conf`, or have only letters, digits, `-` and `_`.
    fn read_folder(&mut self, folder: &Path, depth: usize) -> Result<(), Fault> {
        let names = fs::read_dir(folder).and_then(|entries| {
            let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
            names.collect::<io::Result<Vec<_>>>()
        });
        let mut names = names.map_err(|error| Fault {
            file: folder.into(),
            why: Why::Unread(error),
        })?;
        names.sort();
        for name in names {
            let text = name.to_string_lossy();
            let is_plain =
                |character: char| character.is_ascii_alphanumeric() || "-_".contains(character);
            if !text.starts_with('.') && (text.ends_with(".conf") || text.chars().all(is_plain)) {
                self.read_file(&folder.join(&name), depth)?;
            }
        }
        Ok(())
    }

    fn read_line(&mut self, line: &str, at: &mut Place) -> Result<(), &'static str> {
        let text = line.trim_start_matches(is_space);
        if at.needs_brace {
            at.needs_brace = false;
            if text.starts_with('{') {
                return Ok(());
            }
            return Err("`{` is missing, after a name without a value");
        }
        if at.sections.is_empty() {
            // Text before the first section is ignored, but for modules, which are code.
            if directive(line, "module").is_some() {
                return Err("modules are not supported");
            }
            if !line.starts_with('[') {
                return Ok(());
            }
        }
        match text.chars().next() {
            None | Some('#' | ';') => Ok(()),
            Some('[') => self.begin_section(&text[1..], at),
            Some('}') => self.end_group(&text[1..], at),
            Some(_) => self.read_relation(text, at),
        }
    }

    fn begin_section(&mut self, text: &str, at: &mut Place) -> Result<(), &'static str> {
        if at.sections.len() > 1 {
            return Err("a section begins inside `{`");
        }
        let (name, rest) = text.split_once(']').ok_or("`]` is missing")?;
        at.sections = vec![name.to_owned()];
        let after = rest.strip_prefix('*');
        if after.is_some() {
            self.finals.push(at.sections.clone());
        }
        match after.unwrap_or(rest).trim_start_matches(is_space) {
            "" => Ok(()),
            _ => Err("there is text after `]`"),
        }
    }

    fn end_group(&mut self, text: &str, at: &mut Place) -> Result<(), &'static str> {
        if at.sections.len() < 2 {
            return Err("`}` ends nothing");
        }
        if text.starts_with('*') {
            self.finals.push(at.sections.clone());
        }
        at.sections.pop();
        Ok(())
    }

    fn read_relation(&mut self, text: &str, at: &mut Place) -> Result<(), &'static str> {
        let (name, value) = text.split_once('=').ok_or("`=` is missing")?;
        let name = name.trim_end_matches(is_space);
        if name.is_empty() || name.contains(is_space) {
            return Err("the name before `=` is not one word");
        }
        let (name, is_final) = match name.split_once('*') {
            Some((name, _)) => (name, true),
            None => (name, false),
        };
        let value = value.trim_matches(is_space);
        let mut path = at.sections.clone();
        path.push(name.to_owned());
        let is_group = value.strip_prefix('{').is_some_and(str::is_empty);
        if value.is_empty() || is_group {
            at.needs_brace = !is_group;
            if is_final {
                self.finals.push(path.clone());
            }
            at.sections = path;
            return Ok(());
        }
        let value = match value.strip_prefix('"') {
            Some(quoted) => unquoted(quoted),
            None => value.to_owned(),
        };
        self.values.push((path, value));
        Ok(())
    }
}

/// A place in a file: the sections around the next line, from the outermost on. The first is one in brackets, the
/// others are groups in braces.
#[derive(Default)]
struct Place {
    sections: Vec<String>,
    /// The next line begins with the `{` of the last section.
    needs_brace: bool,
}

/// Returns what follows a directive, which begins a line.
fn directive<'a>(line: &'a str, name: &str) -> Option<&'a Path> {
    let rest = line.strip_prefix(name)?;
    let value = rest.trim_start_matches(is_space);
    (value.len() < rest.len()).then(|| Path::new(value))
}

/// Returns the text up to the next `"`, with the characters that backslashes stand for.
fn unquoted(quoted: &str) -> String {
    let mut text = String::new();
    let mut rest = quoted.chars();
    while let Some(character) = rest.next().filter(|character| *character != '"') {
        text.push(match (character, rest.clone().next()) {
            ('\\', Some(escaped)) => {
                rest.next();
                match escaped {
                    'n' => '\n',
                    't' => '\t',
                    'b' => '\x08',
                    other => other,
                }
            }
            _ => character,
        });
    }
    text
}

/// Returns whether C calls a character a space.
const fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t'..='\r')
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    /// Files in a folder of their own.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let folder =
                env::temp_dir().join(format!("smbdirect-profile-{}-{name}", process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let text = text.replace("FOLDER", self.0.to_str().unwrap());
            let file = self.0.join(name);
            fs::write(&file, text).unwrap();
            file
        }

        /// Returns the KDCs of the realm R in files with these texts, or the error.
        fn kdcs(&self, texts: &[&str]) -> Result<Vec<String>, String> {
            let mut profile = Profile::default();
            for (index, text) in texts.iter().enumerate() {
                let file = self.write(&format!("file {index}"), text);
                profile.add(&file).map_err(|fault| fault.to_string())?;
            }
            let values = profile.values(&["realms", "R", "kdc"]);
            Ok(values.into_iter().map(str::to_owned).collect())
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
            (r#"kdc = "a\tb\"c\\\x"#, &["a\tb\"c\\x"]),
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
            assert_eq!(files.kdcs(&[&text]).unwrap(), expected, "{lines}");
        }
        // The last line ends with the file.
        let cut = ["[realms]\nR = {\nkdc = a\nx =\n"];
        assert_eq!(files.kdcs(&cut).unwrap(), ["a"]);
        assert!(files.kdcs(&["R = {\nkdc = a\n}\n"]).unwrap().is_empty());
        assert!(
            files
                .kdcs(&["\u{feff}[realms]\nR = {\nkdc = a\n}\n"])
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_file_that_mit_kerberos_refuses_is_an_error_with_its_line() {
        let files = Files::new("errors");
        for (text, says) in [
            ("[realms]\nR\n", "line 2: `=` is missing"),
            ("[realms]\nR S = a\n", "line 2: the name before `=`"),
            ("[realms]\n= a\n", "line 2: the name before `=`"),
            ("[realms]\nR =\n\n{\n", "line 3: `{` is missing"),
            ("[realms]\nR = {\n[x]\n", "line 3: a section begins inside"),
            ("[realms]\n}\n", "line 2: `}` ends nothing"),
            ("[realms\n", "line 1: `]` is missing"),
            ("[realms]x\n", "line 1: there is text"),
            (
                "module /x:y\n[realms]\n",
                "line 1: modules are not supported",
            ),
            (
                "include FOLDER/missing\n",
                "missing cannot be read: No such file",
            ),
            (
                "[realms]\nincludedir FOLDER/missing\n",
                "missing cannot be read: No such file",
            ),
            ("include FOLDER/file 0\n", "is included by itself"),
        ] {
            let error = files.kdcs(&[text]).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_final_section_ignores_later_files() {
        let files = Files::new("final");
        let later = "[realms]\nR = {\nkdc = b\n}\n";
        for (first, expected) in [
            ("[realms]\nR = {\nkdc = a\n}\n", &["a", "b"][..]),
            ("[realms]\nR = {\nkdc* = a\n}\n", &["a", "b"]),
            ("[realms]*\nR = {\nkdc = a\n}\n", &["a"]),
            (
                "[realms]\nR* = {\nkdc = a\n}\nR = {\nkdc = c\n}\n",
                &["a", "c"],
            ),
            ("[realms]\nR = {\nkdc = a\n}*\n", &["a"]),
            ("[realms]*\nQ = {\nkdc = a\n}\n", &[]),
            ("[realms]\nQ* = {\nkdc = a\n}\n", &["b"]),
        ] {
            assert_eq!(files.kdcs(&[first, later]).unwrap(), expected, "{first}");
        }
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
        assert_eq!(files.kdcs(&[&own]).unwrap(), ["own", "a", "b", "last"]);
        let own = format!(
            "include \t FOLDER/folder/b.conf\n includedir ignored\n{}",
            conf("own")
        );
        assert_eq!(files.kdcs(&[&own]).unwrap(), ["b", "own"]);
        let mut profile = Profile::default();
        profile.add(&files.0.join("folder")).unwrap();
        assert_eq!(profile.values(&["realms", "R", "kdc"]), ["a", "b"]);
    }
}
