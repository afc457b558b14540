//! Rules about the source that the compiler does not check: which modules each file may import, which files
//! may use tokio, and that no files or folders import each other in a circle.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The modules of this crate that each file or folder may import. The first entry whose path is a prefix of
/// the file's name applies.
const IMPORTS: &[(&str, &[&str])] = &[
    ("wire/", &[]),
    (
        "engine/connection/",
        &["engine", "rdma::software", "rdma::work", "wire"],
    ),
    ("engine/timer.rs", &["deadline"]),
    ("engine/config.rs", &["deadline"]),
    ("engine/", &["rdma::software", "rdma::work", "wire"]),
    ("waiters.rs", &["rdma::software"]),
    ("inbox.rs", &["engine", "rdma::software", "rdma::work"]),
    ("frames.rs", &[]),
    ("metrics/", &["engine"]),
    (
        "driver/",
        &["engine", "metrics", "rdma", "inbox", "waiters", "wire"],
    ),
    (
        "connection/",
        &[
            "engine", "metrics", "rdma", "inbox", "deadline", "driver", "wire",
        ],
    ),
    (
        "incoming.rs",
        &[
            "engine",
            "metrics",
            "rdma",
            "connection",
            "deadline",
            "driver",
            "wire",
        ],
    ),
    ("listener.rs", &["engine", "rdma", "connection", "incoming"]),
    ("frame_stream.rs", &["connection", "engine", "frames"]),
    (
        "stream.rs",
        &["connection", "engine", "frames", "rdma::runtime"],
    ),
];

/// The files and folders that may use tokio.
const TOKIO: &[&str] = &[
    "connection/addresses.rs",
    "connection/establish.rs",
    "driver/clock.rs",
    "driver/crowd.rs",
    "driver/handover.rs",
    "driver/task.rs",
    "frame_stream.rs",
    "incoming.rs",
    "lib.rs",
    "listener.rs",
    "stream.rs",
];

fn sources() -> Vec<(String, String)> {
    let found = sources_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(found.len() > 20);
    found
}

/// Returns the names and the text of the source files under `root`, without tests.
fn sources_of(root: &Path) -> Vec<(String, String)> {
    fn walk(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            // Test files are exempt from the rules.
            let of_tests = ["tests", "tests.rs", "shuttled.rs"];
            if of_tests.iter().any(|name| path.ends_with(name)) {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .replace('\\', "/");
                let text = fs::read_to_string(&path).unwrap();
                let product = text
                    .split("#[cfg(test)]\nmod tests")
                    .next()
                    .unwrap()
                    .to_owned();
                found.push((name, product));
            }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found
}

/// Returns the paths that a source imports from this crate.
fn imports(source: &str) -> Vec<String> {
    let root = "crate::";
    let code: String = source
        .lines()
        .map(|line| line.split("//").next().unwrap().trim())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(root) {
        let rest = &code[at + root.len()..];
        if let Some(list) = rest.strip_prefix('{') {
            found.extend(top_level(list));
        } else {
            found.extend(
                top_level(rest.split(';').next().unwrap())
                    .into_iter()
                    .next(),
            );
        }
    }
    found
}

/// Splits a list of imports at its top-level commas, up to the closing brace of the list, and expands nested
/// braces: `a::{b, c::d}, e` becomes `a::b`, `a::c::d`, `e`.
fn top_level(list: &str) -> Vec<String> {
    let (mut depth, mut item, mut items) = (0_i32, String::new(), Vec::new());
    for character in list.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(std::mem::take(&mut item));
                continue;
            }
            _ => {}
        }
        item.push(character);
    }
    items.push(item);
    items
        .iter()
        .map(|item| item.trim())
        .filter(|item| !item.is_empty())
        .flat_map(|item| match item.split_once("::{") {
            Some((head, tail)) => top_level(tail)
                .into_iter()
                .map(|inner| format!("{head}::{inner}"))
                .collect(),
            None => vec![item.to_owned()],
        })
        .collect()
}

#[test]
fn the_table_of_imports_holds() {
    for (name, source) in sources() {
        let Some((_, allowed)) = IMPORTS.iter().find(|(part, _)| name.starts_with(part)) else {
            assert_eq!(name, "lib.rs", "not in the table");
            continue;
        };
        for import in imports(&source) {
            let own = part_of(&name);
            let inside = import.starts_with(&own);
            let permitted = allowed.iter().any(|module| {
                import
                    .split("::")
                    .collect::<Vec<_>>()
                    .starts_with(&module.split("::").collect::<Vec<_>>())
            });
            assert!(inside || permitted, "{name} imports {import}");
        }
    }
}

/// Returns the module whose contents a file may import freely: for `engine/credits.rs`, `engine`.
fn part_of(name: &str) -> String {
    match name.rsplit_once('/') {
        Some((folder, _)) => folder.replace('/', "::"),
        _ => name.trim_end_matches(".rs").replace('/', "::"),
    }
}

#[test]
fn tokio_stays_above_the_engine() {
    for (name, source) in sources() {
        let code = source
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        // A `cfg` that only names the feature `tokio` is not a use of the crate.
        let names = |line: &str| line.replace("feature = \"tokio\"", "").contains("tokio");
        let uses = code.into_iter().any(names);
        let may = TOKIO.iter().any(|part| name.starts_with(part));
        assert!(!uses || may, "{name} uses tokio");
    }
}

#[test]
fn faces_define_nothing() {
    for (name, source) in sources() {
        if !(name.ends_with("mod.rs") || name == "lib.rs") {
            continue;
        }
        for line in source.lines() {
            let line = line
                .trim_start_matches("pub ")
                .trim_start_matches("pub(crate) ");
            let defines = [
                "struct ", "enum ", "trait ", "fn ", "impl ", "const ", "type ",
            ]
            .iter()
            .any(|word| line.starts_with(word));
            assert!(!defines, "{name} defines something: {line}");
        }
    }
}

/// Returns the folders of all packages of the workspace, relative to it.
fn packages(workspace: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["", "crates", "crates/tdi", "interop"] {
        // The published package of the library is tested alone, without the other packages.
        let Ok(entries) = fs::read_dir(workspace.join(folder)) else {
            continue;
        };
        for entry in entries {
            let package = Path::new(folder).join(entry.unwrap().file_name());
            if workspace.join(&package).join("Cargo.toml").exists() {
                found.push(package.to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found
}

#[test]
fn no_files_or_folders_import_each_other_in_a_circle() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let packages = packages(&workspace);
    assert!(packages.is_empty() || packages.len() > 20, "{packages:?}");
    for package in packages {
        let sources = sources_of(&workspace.join(&package).join("src"));
        assert!(!sources.is_empty(), "{package}");
        let modules: BTreeMap<String, String> = sources
            .iter()
            .map(|(name, _)| (module_of(name), name.clone()))
            .collect();
        let graph: BTreeMap<String, BTreeSet<String>> = sources
            .iter()
            .map(|(name, source)| (name.clone(), imported_files(name, source, &modules)))
            .collect();
        assert_no_circle(&package, &graph);
        assert_no_circle(&package, &folders_of(&graph));
    }
}

fn assert_no_circle(package: &str, graph: &BTreeMap<String, BTreeSet<String>>) {
    for name in graph.keys() {
        if let Some(circle) = circle_through(name, graph) {
            panic!("{package}: {}", circle.join(" -> "));
        }
    }
}

/// Returns which folder or file at the top of a package imports which, from the imports of its files.
fn folders_of(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let folder = |name: &String| name.split('/').next().unwrap().to_owned();
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, imported) in graph {
        let own = folder(name);
        let others = imported.iter().map(folder).filter(|other| *other != own);
        folders.entry(own.clone()).or_default().extend(others);
    }
    folders
}

/// Returns the module path of a file: `engine::credits` for `engine/credits.rs`, and the empty string for
/// `lib.rs` and `main.rs`.
fn module_of(name: &str) -> String {
    let path = name.trim_end_matches(".rs");
    let path = path.trim_end_matches("mod").trim_end_matches('/');
    match path {
        "lib" | "main" => String::new(),
        path => path.replace('/', "::"),
    }
}

/// Returns the files from which a source imports something. Imports between a module and the modules inside
/// it are left out, because a module and its submodules form one unit.
fn imported_files(
    name: &str,
    source: &str,
    modules: &BTreeMap<String, String>,
) -> BTreeSet<String> {
    let own = module_of(name);
    let code: String = source
        .lines()
        .map(|line| line.split("//").next().unwrap().trim())
        .collect::<Vec<_>>()
        .join(" ");
    let mut found = BTreeSet::new();
    for path in paths(&code) {
        let Some(mut path) = absolute(&path, &own, modules) else {
            continue;
        };
        while !modules.contains_key(&path) {
            path = match path.rsplit_once("::") {
                Some((parent, _)) => parent.to_owned(),
                None => String::new(),
            };
            if path.is_empty() {
                break;
            }
        }
        let within = |inner: &str, outer: &str| {
            outer.is_empty() || inner == outer || inner.starts_with(&format!("{outer}::"))
        };
        if !within(&own, &path) && !within(&path, &own) {
            found.insert(modules[&path].clone());
        }
    }
    found
}

/// Returns the paths in code: those of `use` items, and those that begin with `crate`, `super` or `self`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].chars().next_back();
        if before.is_none_or(|character| !character.is_alphanumeric() && character != '_') {
            let tree = code[at + 4..].split(';').next().unwrap();
            leaves(tree.trim(), "", &mut found);
        }
    }
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let path = code[at..]
                .split(|character: char| !(character.is_alphanumeric() || "_:".contains(character)))
                .next()
                .unwrap();
            found.push(path.trim_end_matches(':').to_owned());
        }
    }
    found
}

/// Appends the full path of each leaf of an import tree to `found`. `before` is the path that precedes the
/// tree.
fn leaves(tree: &str, before: &str, found: &mut Vec<String>) {
    match tree.split_once('{') {
        Some((head, _)) if head.contains(',') => {}
        Some((head, rest)) => {
            let inner = &rest[..rest.rfind('}').unwrap_or(rest.len())];
            let (mut depth, mut start) = (0, 0);
            for (at, character) in inner.char_indices() {
                match character {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        leaves(inner[start..at].trim(), &format!("{before}{head}"), found);
                        start = at + 1;
                    }
                    _ => {}
                }
            }
            leaves(inner[start..].trim(), &format!("{before}{head}"), found);
        }
        None if !tree.is_empty() => {
            let path = tree.split(" as ").next().unwrap().trim();
            found.push(format!("{before}{path}"));
        }
        None => {}
    }
}

/// Converts a path in the module `own` to a path from the root of the package. Returns `None` for a path
/// into another package.
fn absolute(path: &str, own: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut segments = path.split("::").peekable();
    let mut base: Vec<&str> = own.split("::").filter(|part| !part.is_empty()).collect();
    match *segments.peek()? {
        "crate" => {
            segments.next();
            base.clear();
        }
        "self" => drop(segments.next()),
        "super" => {}
        first => {
            let child = [base.join("::"), first.to_owned()].join("::");
            modules.get(child.trim_start_matches("::"))?;
        }
    }
    while segments.next_if_eq(&"super").is_some() {
        base.pop();
    }
    base.extend(segments);
    Some(base.join("::"))
}

/// Returns a chain of imports from a file back to itself, if there is one.
fn circle_through(start: &str, graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut ways = vec![vec![start.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop() {
        for next in &graph[way.last().unwrap()] {
            let longer: Vec<String> = way.iter().chain([next]).cloned().collect();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push(longer);
            }
        }
    }
    None
}

/// The folders of packages that call C, or are called by it. Each of their unsafe blocks states its invariant.
/// `c` is the one inside `crates/tdi`.
const PACKAGES_WITH_UNSAFE: &[&str] = &["c", "capi", "preload", "verbs"];

/// The only files of `fuzz/src` that may call C: the fuzz targets of the C interfaces. The attribute of `tdi_calls.rs`
/// is also that of the files in its folder.
const FUZZERS_WITH_UNSAFE: [&str; 2] = ["capi_calls.rs", "tdi_calls.rs"];

#[test]
fn all_other_packages_forbid_unsafe_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut checked = 0;
    let folders = ["", "crates", "crates/tdi"].map(|folder| root.join(folder));
    let packages = folders.map(|folder| fs::read_dir(folder).unwrap());
    for entry in packages.into_iter().flatten() {
        let package = entry.unwrap();
        let name = package.file_name().into_string().unwrap();
        if PACKAGES_WITH_UNSAFE.contains(&name.as_str()) {
            continue;
        }
        for file in ["src/lib.rs", "src/main.rs"] {
            if let Ok(text) = fs::read_to_string(package.path().join(file)) {
                // A lint that is denied, not forbidden, can be allowed for one module.
                let level = if name == "fuzz" { "deny" } else { "forbid" };
                let attribute = format!("#![{level}(unsafe_code)]");
                assert!(text.contains(&attribute), "{name}/{file}");
                checked += 1;
            }
        }
    }
    assert!(checked > 0);
    for (name, text) in sources_of(&root.join("fuzz/src")) {
        let allows = text.contains("allow(unsafe_code)");
        assert_eq!(
            allows,
            FUZZERS_WITH_UNSAFE.contains(&name.as_str()),
            "{name}"
        );
    }
}
