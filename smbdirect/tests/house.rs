//! The house rules that a compiler does not check: who may import whom, and where tokio lives.

use std::{fs, path::Path};

/// For a part of the source: the crate's modules it may name.
const IMPORTS: &[(&str, &[&str])] = &[
    ("wire/", &[]),
    ("rdma/work.rs", &[]),
    ("rdma/memory.rs", &[]),
    ("rdma/provider.rs", &[]),
    ("rdma/receive_queue.rs", &[]),
    ("rdma/adaptive_spin.rs", &[]),
    ("rdma/loopback", &["rdma", "pool"]),
    ("rdma/iwarp/", &["rdma", "pool"]),
    ("engine/connection/", &["engine", "rdma::work", "wire"]),
    ("engine/", &["pool", "rdma::work", "wire"]),
    ("tdi/status.rs", &[]),
    ("tdi/flags.rs", &[]),
    ("tdi/port.rs", &["rdma::work", "rdma::provider"]),
    ("tdi/device.rs", &["engine", "rdma::provider"]),
    ("tdi/transport.rs", &["rdma::provider"]),
    (
        "tdi/session.rs",
        &["engine", "connection", "driver", "rdma::work"],
    ),
    (
        "tdi/receives.rs",
        &["engine", "rdma::work", "inbox", "waiters"],
    ),
    ("tdi/sends.rs", &["waiters"]),
    ("tdi/objects/address.rs", &["tdi", "rdma::provider"]),
    ("tdi/objects/phase.rs", &["tdi", "rdma::provider"]),
    ("tdi/objects/requests.rs", &["tdi", "driver"]),
    (
        "tdi/objects/data.rs",
        &["tdi", "connection", "driver", "engine", "rdma::work"],
    ),
    (
        "tdi/objects/establish.rs",
        &[
            "tdi",
            "connection",
            "engine",
            "listener",
            "rdma::provider",
            "rdma::work",
        ],
    ),
    ("tdi/objects/", &["tdi", "rdma::work"]),
    ("tdi/", &["engine", "rdma::work"]),
    ("pool.rs", &[]),
    ("pool/", &[]),
    ("waiters.rs", &[]),
    ("inbox.rs", &["engine", "pool", "rdma::work"]),
    ("driver/", &["engine", "rdma", "inbox", "waiters", "wire"]),
    (
        "connection/",
        &["engine", "rdma", "inbox", "driver", "wire"],
    ),
    (
        "listener.rs",
        &["engine", "rdma", "connection", "driver", "wire"],
    ),
];

/// The files that may know a runtime.
const TOKIO: &[&str] = &[
    "connection/establish.rs",
    "driver/budget.rs",
    "driver/clock.rs",
    "driver/task.rs",
    "lib.rs",
    "listener.rs",
    "rdma/iwarp/mod.rs",
    "rdma/iwarp/tcp",
    "tdi/device.rs",
    "tdi/mod.rs",
    "tdi/objects/",
    "tdi/pending.rs",
    "tdi/port.rs",
    "tdi/session.rs",
];

fn sources() -> Vec<(String, String)> {
    fn walk(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            // A file of tests may import what a test needs.
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &root, &mut found);
    assert!(found.len() > 20);
    found
}

/// What a source imports from the crate, `rdma::work` before `rdma`.
fn imports(source: &str) -> Vec<String> {
    imports_after("crate::", source)
}

/// The paths that follow `root` in the code of a source.
fn imports_after(root: &str, source: &str) -> Vec<String> {
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

/// `a::{b, c::d}, e` up to its closing brace, as `a::b`, `a::c`, `e`, two levels deep.
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
            let faces = ["lib.rs", "rdma/mod.rs"];
            assert!(faces.contains(&name.as_str()), "{name} is not in the table");
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

/// The modules of `tdi`, bottom up: each imports only modules before it.
///
/// `objects` has the one circle of `tdi`, between its address, its client and its endpoint, because
/// the handlers of a client receive the other two.
const TDI_LAYERS: &[&str] = &[
    "sync",
    "status",
    "flags",
    "request",
    "state",
    "cause",
    "statistics",
    "chained",
    "receive",
    "tsdu",
    "inbound",
    "send",
    "send_queue",
    "outbound",
    "receives",
    "sends",
    "pending",
    "session",
    "port",
    "device",
    "objects",
    "transport",
    "adapters",
];

#[test]
fn tdi_modules_import_only_lower_layers() {
    for (name, source) in sources() {
        let Some(path) = name.strip_prefix("tdi/") else {
            continue;
        };
        let module = path.split('/').next().unwrap().trim_end_matches(".rs");
        if module == "mod" {
            continue;
        }
        let layer = |module: &str| TDI_LAYERS.iter().position(|known| *known == module);
        let own = layer(module).unwrap_or_else(|| panic!("tdi/{path} has no layer"));
        let inside = path.contains('/');
        let above = imports_after("super::", &source)
            .into_iter()
            .filter(|_| !inside);
        let from_crate = imports(&source)
            .into_iter()
            .filter_map(|import| Some(import.strip_prefix("tdi::")?.to_owned()));
        for import in above.chain(from_crate) {
            let imported = import.split("::").next().unwrap();
            let imported = layer(imported).unwrap_or_else(|| panic!("{import} has no layer"));
            assert!(imported < own, "tdi/{path} imports {import}");
        }
    }
}

/// `engine/credits.rs` is part of `engine`, and may import what is beside it.
fn part_of(name: &str) -> String {
    match name.rsplit_once('/') {
        Some((folder, _)) if folder != "rdma" => folder.replace('/', "::"),
        _ => name.trim_end_matches(".rs").replace('/', "::"),
    }
}

#[test]
fn tokio_stays_above_the_engine() {
    for (name, source) in sources() {
        let code = source
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        // What is there for those above need not know them.
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

#[test]
fn the_library_forbids_unsafe_code() {
    let (_, lib) = sources()
        .into_iter()
        .find(|(name, _)| name == "lib.rs")
        .unwrap();
    assert!(lib.contains("#![forbid(unsafe_code)]"));
}
