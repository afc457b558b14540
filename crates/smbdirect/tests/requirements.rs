//! Requirements are traced both ways: each row of `specs/*.toml` that has to be met is named at the
//! line that decides it and above the tests that prove it, or in the exceptions with a reason.
//!
//! `cargo test -p smbdirect --test requirements -- --nocapture` prints the compliance table. With
//! `SMBDIRECT_BLESS=1` the test writes `docs/compliance.md` instead of comparing it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    requirement: Vec<Requirement>,
}

/// One row; `specs/README.md` has the meaning of each field.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    id: String,
    section: String,
    level: Level,
    revision: Option<Revision>,
    text: String,
    #[serde(default)]
    sentences: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
enum Level {
    #[serde(rename = "MUST")]
    Must,
    #[serde(rename = "MUST NOT")]
    MustNot,
    #[serde(rename = "SHOULD")]
    Should,
    #[serde(rename = "SHOULD NOT")]
    ShouldNot,
    #[serde(rename = "MAY")]
    May,
    #[serde(rename = "implementation")]
    Implementation,
    Windows,
    #[serde(rename = "WPTS")]
    Wpts,
    #[serde(rename = "interop")]
    Interop,
    #[serde(rename = "informative")]
    Informative,
}

impl Level {
    const fn name(self) -> &'static str {
        match self {
            Self::Must => "MUST",
            Self::MustNot => "MUST NOT",
            Self::Should => "SHOULD",
            Self::ShouldNot => "SHOULD NOT",
            Self::May => "MAY",
            Self::Implementation => "implementation",
            Self::Windows => "Windows",
            Self::Wpts => "WPTS",
            Self::Interop => "interop",
            Self::Informative => "informative",
        }
    }

    const fn is_must(self) -> bool {
        matches!(self, Self::Must | Self::MustNot)
    }

    /// Whether a row needs code and test, or an exception.
    const fn has_to_be_met(self) -> bool {
        !matches!(
            self,
            Self::Should | Self::ShouldNot | Self::May | Self::Informative
        )
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
enum Revision {
    Current,
    V2014,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exceptions {
    exception: Vec<Exception>,
    slip: Vec<Slip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    id: String,
    reason: String,
    /// Tests, as `file::name`.
    #[serde(default)]
    proof: Vec<String>,
}

/// A name or a reference that the text gets wrong.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Slip {
    section: String,
    says: String,
    means: String,
    reason: String,
}

/// The files that name an id, relative to the repository's root.
#[derive(Default)]
struct Cited {
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
    /// Files of `proofs/` with an obligation that covers it.
    proofs: BTreeSet<String>,
}

/// The specification's rows, the exceptions and the code's marks, which the tests check against each other.
struct Specs {
    requirements: Vec<Requirement>,
    exceptions: BTreeMap<String, Exception>,
    slips: Vec<Slip>,
    citations: BTreeMap<String, Cited>,
}

const PARTS: [&str; 2] = ["crates", "fuzz"];
const PROOFS: [&str; 4] = [
    "proofs/compiled.py",
    "proofs/liveness.py",
    "proofs/safety.py",
    "proofs/segments.py",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn parse<T: DeserializeOwned>(name: &str) -> T {
    let path = root().join("specs").join(name);
    let text = fs::read_to_string(path).unwrap();
    toml::from_str(&text).unwrap_or_else(|error| panic!("specs/{name}: {error}"))
}

impl Specs {
    fn read() -> Self {
        let mut requirements = parse::<Table>("ms-smbd.toml").requirement;
        requirements.extend(parse::<Table>("iwarp.toml").requirement);
        requirements.extend(parse::<Table>("roce.toml").requirement);
        requirements.extend(parse::<Table>("tdi.toml").requirement);
        let Exceptions { exception, slip } = parse("exceptions.toml");
        let mut exceptions = BTreeMap::new();
        for exception in exception {
            let id = exception.id.clone();
            let before = exceptions.insert(id.clone(), exception);
            assert!(before.is_none(), "{id} is excepted twice");
        }
        let mut citations = BTreeMap::new();
        for part in PARTS {
            cite_all(&root().join(part), part, &mut citations);
        }
        for name in PROOFS {
            // The published package does not contain the proofs.
            let source = fs::read_to_string(root().join(name)).unwrap_or_default();
            for id in source.lines().filter_map(|line| line.strip_prefix("#= ")) {
                let cited: &mut Cited = citations.entry(id.to_owned()).or_default();
                cited.proofs.insert(name.to_owned());
            }
        }
        Self {
            requirements,
            exceptions,
            slips: slip,
            citations,
        }
    }

    fn cited(&self, requirement: &Requirement) -> &Cited {
        const NOWHERE: &Cited = &Cited {
            code: BTreeSet::new(),
            tests: BTreeSet::new(),
            proofs: BTreeSet::new(),
        };
        self.citations.get(&requirement.id).unwrap_or(NOWHERE)
    }
}

/// Collects the ids of all sources below `directory`, whose name from the root is `name`.
fn cite_all(directory: &Path, name: &str, citations: &mut BTreeMap<String, Cited>) {
    // The published package does not contain the fuzz targets.
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = format!("{name}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() && !path.ends_with("target") {
            cite_all(&path, &name, citations);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            cite(&fs::read_to_string(&path).unwrap(), &name, citations);
        }
    }
}

fn cite(source: &str, name: &str, citations: &mut BTreeMap<String, Cited>) {
    let is_test = |file| name.ends_with(file);
    let mut in_tests = !name.contains("/src/")
        || name.starts_with("crates/provider-suite/")
        || name.starts_with("crates/test/")
        || name.contains("/tests/")
        || ["/tests.rs", "/model.rs"].iter().any(is_test);
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    for (at, line) in lines.iter().enumerate() {
        in_tests |= *line == "#[cfg(test)]";
        let Some(id) = line.strip_prefix("//= ") else {
            continue;
        };
        if let Some(id) = id.strip_suffix(" test") {
            assert!(
                stands_above_a_function_or_row(&lines[at + 1..]),
                "{name}: {id} test"
            );
            let cited = citations.entry(id.to_owned()).or_default();
            cited.tests.insert(name.to_owned());
        } else {
            assert!(!in_tests, "{name}: {id} is decided in a test");
            let cited = citations.entry(id.to_owned()).or_default();
            cited.code.insert(name.to_owned());
        }
    }
}

/// Returns whether the next line, apart from comments and attributes, begins a function or a row of
/// a table.
fn stands_above_a_function_or_row(lines: &[&str]) -> bool {
    let mut lines = lines.iter();
    lines
        .find(|line| !line.starts_with("//") && !line.starts_with("#["))
        .is_some_and(|line| line.contains("fn ") || line.starts_with(['(', '[', '&']))
}

/// Fails with all complaints, if there are any.
fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn every_requirement_is_decided_and_proven() {
    let specs = Specs::read();
    let mut complaints = Vec::new();
    let mut known = BTreeSet::new();
    for requirement in &specs.requirements {
        let Requirement {
            id, level, text, ..
        } = requirement;
        if !known.insert(id) {
            complaints.push(format!("{id} is in the tables twice"));
        }
        if !text.ends_with('.') {
            complaints.push(format!("{id} has no sentence for a text: {text:?}"));
        }
        let cited = specs.cited(requirement);
        let missing = match (cited.code.is_empty(), cited.tests.is_empty()) {
            (false, false) => continue,
            (true, true) if !level.has_to_be_met() => continue,
            (true, true) => "stands neither at a line nor at a test",
            (true, false) => "stands at no line",
            (false, true) => "stands at no test",
        };
        if !specs.exceptions.contains_key(id) {
            complaints.push(format!("{id} ({}) {missing}: {text}", level.name()));
        }
    }
    for (id, Cited { code, tests, .. }) in &specs.citations {
        if !known.contains(id) {
            complaints.push(format!("{id} is in no table: {code:?} {tests:?}"));
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_exception_has_a_reason_and_its_proofs() {
    let specs = Specs::read();
    let mut complaints = Vec::new();
    for Exception { id, reason, proof } in specs.exceptions.values() {
        let row = specs.requirements.iter().find(|row| row.id == *id);
        if row.is_none() {
            complaints.push(format!("{id} is excepted and in no table"));
        }
        if reason.trim().is_empty() {
            complaints.push(format!("{id} is excepted without a reason"));
        }
        // Every deviation from the text needs a proof.
        if proof.is_empty() && row.is_some_and(|row| !specs.cited(row).code.is_empty()) {
            let figure = row.is_some_and(|row| !row.level.has_to_be_met());
            if !figure {
                complaints.push(format!("{id} is departed from without a proof"));
            }
        }
        for proof in proof {
            if !is_a_test(proof) {
                complaints.push(format!("{id}: there is no test {proof}"));
            }
        }
    }
    for Slip { says, reason, .. } in &specs.slips {
        if reason.trim().is_empty() {
            complaints.push(format!("the slip {says:?} has no reason"));
        }
    }
    assert_none(&complaints);
}

/// Whether `file::name` is there, with its attribute.
fn is_a_test(proof: &str) -> bool {
    let Some((file, name)) = proof.split_once("::") else {
        return false;
    };
    let Ok(source) = fs::read_to_string(root().join(file)) else {
        return false;
    };
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    let found = lines.iter().position(|line| {
        line.trim_start_matches("async ").starts_with(&function) && !line.starts_with("//")
    });
    found.is_some_and(|at| {
        let above = lines[..at].iter().rev();
        above
            .take_while(|line| line.starts_with("//") || line.starts_with("#["))
            .any(|line| *line == "#[test]" || line.starts_with("#[tokio::test"))
    })
}

/// The pages whose sentences the rows name, and the titles behind which the sentences begin.
const PAGES: [(&str, &str); 5] = [
    ("000", "Sending Upper Layer Messages"),
    ("001", "Sending Upper Layer Messages"),
    ("002", "Sending a Data Transfer Message"),
    ("003", "TdiBuildSend"),
    ("004", "Receiving a Data Transfer Message"),
];

#[test]
fn every_sentence_of_the_pages_has_a_row() {
    let Ok(pages) = fs::read_dir(root().join("../shared/seeds")) else {
        println!("skipped: the pages are not next to the repository");
        return;
    };
    let paths: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
    let mut sentences = BTreeSet::new();
    for (page, title) in PAGES {
        let name = |path: &&PathBuf| {
            path.file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .starts_with(page)
        };
        let path = paths.iter().find(name).unwrap();
        let count = count_sentences(&fs::read_to_string(path).unwrap(), title);
        assert!(count > 10, "page {page} has {count} sentences");
        sentences.extend((1..=count).map(|number| format!("{page}.{number}")));
    }
    let specs = Specs::read();
    let rows = specs.requirements.iter();
    let named: BTreeSet<_> = rows.flat_map(|row| row.sentences.iter().cloned()).collect();
    let unnamed: Vec<_> = sentences.difference(&named).collect();
    let unwritten: Vec<_> = named.difference(&sentences).collect();
    assert!(unnamed.is_empty(), "no row comes from {unnamed:?}");
    assert!(unwritten.is_empty(), "there is no sentence {unwritten:?}");
    println!("{} sentences, each with a row", sentences.len());
}

/// Sentences and list items between the title and the foot of a page.
fn count_sentences(page: &str, title: &str) -> usize {
    let body = page
        .lines()
        .skip_while(|line| !line.ends_with(title))
        .skip(1);
    let is_foot = |line: &&str| line.starts_with("Show:") || line.starts_with('\u{a9}');
    body.map(str::trim)
        .take_while(|line| !is_foot(line))
        .flat_map(|line| line.trim_start_matches('\u{2022}').split(". "))
        .filter(|sentence| !sentence.trim().is_empty())
        .count()
}

#[test]
fn the_compliance_table_is_current() {
    let specs = Specs::read();
    println!("{}", summary(&specs));
    let path = root().join("docs/compliance.md");
    let document = compliance(&specs);
    if std::env::var_os("SMBDIRECT_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, document).unwrap();
        return;
    }
    let kept = fs::read_to_string(path).unwrap_or_default();
    let differs = kept
        .lines()
        .zip(document.lines())
        .find(|(kept, made)| kept != made);
    assert!(
        kept == document,
        "docs/compliance.md is not current, SMBDIRECT_BLESS=1 writes it anew: {differs:?}"
    );
}

/// Rows counted.
#[derive(Default)]
struct Count {
    rows: usize,
    must: usize,
    code: usize,
    tests: usize,
    excepted: usize,
}

impl Count {
    fn of<'a>(specs: &Specs, rows: impl Iterator<Item = &'a Requirement>) -> Self {
        let mut count = Self::default();
        for row in rows {
            let cited = specs.cited(row);
            count.rows += 1;
            count.must += usize::from(row.level.is_must());
            count.code += usize::from(!cited.code.is_empty());
            count.tests += usize::from(!cited.tests.is_empty());
            count.excepted += usize::from(specs.exceptions.contains_key(&row.id));
        }
        count
    }

    fn line(&self, name: &str) -> String {
        let Self {
            rows,
            must,
            code,
            tests,
            excepted,
        } = self;
        format!("| {name:<8} | {rows:>4} | {must:>4} | {code:>4} | {tests:>4} | {excepted:>8} |\n")
    }
}

/// The sections, in the order of the tables.
fn sections(specs: &Specs) -> Vec<&str> {
    let mut sections = Vec::new();
    for row in &specs.requirements {
        if !sections.contains(&row.section.as_str()) {
            sections.push(&row.section);
        }
    }
    sections
}

fn rows<'a>(specs: &'a Specs, section: &str) -> impl Iterator<Item = &'a Requirement> {
    let rows = specs.requirements.iter();
    rows.filter(move |row| row.section == section)
}

/// The table by section.
fn summary(specs: &Specs) -> String {
    let mut table = "| section  | rows | MUST | code | test | excepted |\n\
                     |----------|-----:|-----:|-----:|-----:|---------:|\n"
        .to_owned();
    for section in sections(specs) {
        table += &Count::of(specs, rows(specs, section)).line(section);
    }
    let all = Count::of(specs, specs.requirements.iter());
    table += &all.line("all");
    let whole = |row: &&Requirement| {
        let cited = specs.cited(row);
        row.level.is_must() && !cited.code.is_empty() && !cited.tests.is_empty()
    };
    let met = specs.requirements.iter().filter(whole).count();
    let without: Vec<_> = specs
        .requirements
        .iter()
        .filter(|row| row.level.is_must() && !whole(row))
        .map(|row| row.id.as_str())
        .collect();
    let rest = match without[..] {
        [] => String::new(),
        _ => format!(" Excepted without: {}.", without.join(", ")),
    };
    writeln!(
        table,
        "\nOf {} rows with MUST or MUST NOT, {met} have both code and test.{rest}",
        all.must
    )
    .unwrap();
    table
}

const HEAD: &str = "\
# Compliance

The requirements in [`specs`](../specs/README.md), the code that decides each, and the tests that prove it.
`SMBDIRECT_BLESS=1 cargo test -p smbdirect --test requirements` writes this file; without the
variable the test checks it.

A mandatory row has code and a test, or is an exception with a reason. Rows with SHOULD, SHOULD NOT,
MAY and `informative` need neither.

";

const WORDINGS: &str = "
## The two wordings

Sections 3.1.5.1 and 3.1.5.8 were published in two wordings. `Revision::Current` selects today's and
`Revision::V2014` that of 2014; commands have `--revision`. A peer can see this difference:

* With `V2014`, an end with an empty send queue immediately answers every message that carries
  payload or requests a response, even if it has no credits to grant.
* With `Current`, it answers only if it has credits to grant or the message requests a response.

All other behaviour is the same on the wire. Header and grant are written when a message leaves, so
it makes no difference whether the grant was added while the message waited or as it leaves.
";

const TDI: &str = "
## What SMB Direct cannot give TDI

* **The parts of a TSDU leave together.** Each segment of a message states how many bytes follow it
  (RemainingDataLength), so the first segment cannot leave before the length of the whole TSDU is known. Sends with
  PARTIAL are therefore kept until the send that completes their TSDU.
* **Indications do not follow the parts of the sender.** The receiver sees segments and the length of the whole TSDU,
  and nothing on the wire says where a part ended. ENTIRE_MESSAGE still marks the end of the TSDU.
* **The receiver has no expedited class.** The wire has one kind of message. EXPEDITED lets a TSDU overtake normal
  ones that wait at the sender, and the peer receives it as a normal TSDU. A receive for expedited data alone
  completes with NOT_SUPPORTED.
* **There is no empty TSDU.** A Data Transfer message without data carries credits and keepalives, and is not
  delivered. A send without data can only end an open TSDU.
* **There is no half-close, and no user data with connect and disconnect.** A controlled disconnect sends what was
  submitted, and then ends both directions.
";

/// The document.
fn compliance(specs: &Specs) -> String {
    let mut out = HEAD.to_owned();
    out += &summary(specs);
    out += WORDINGS;
    out += TDI;
    out += "\n## Errors in the text\n\n";
    for slip in &specs.slips {
        let Slip {
            section,
            says,
            means,
            reason,
        } = slip;
        writeln!(out, "* {section} says: {says}. It means: {means}. {reason}").unwrap();
    }
    out += "\n## Exceptions\n\n";
    for Exception { id, reason, proof } in specs.exceptions.values() {
        let proofs = match proof[..] {
            [] => String::new(),
            _ => format!(" Proof: {}.", quoted(proof)),
        };
        writeln!(out, "* **{id}** {reason}{proofs}").unwrap();
    }
    for section in sections(specs) {
        writeln!(out, "\n## {section}\n").unwrap();
        for row in rows(specs, section) {
            out += &line(specs, row);
        }
    }
    out
}

/// One requirement.
fn line(specs: &Specs, row: &Requirement) -> String {
    let Requirement {
        id, level, text, ..
    } = row;
    let revision = match row.revision {
        Some(revision) => format!(", {revision:?}"),
        None => String::new(),
    };
    let Cited {
        code,
        tests,
        proofs,
    } = specs.cited(row);
    let mut places = Vec::new();
    if !code.is_empty() {
        places.push(format!("code: {}", quoted(code)));
    }
    if !tests.is_empty() {
        places.push(format!("test: {}", quoted(tests)));
    }
    if !proofs.is_empty() {
        places.push(format!("proved without bounds: {}", quoted(proofs)));
    }
    if specs.exceptions.contains_key(id) {
        places.push("excepted".to_owned());
    }
    let name = level.name();
    format!(
        "* **{id}** ({name}{revision}) {text} {}\n",
        places.join("; ")
    )
}

fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
