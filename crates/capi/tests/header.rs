//! The committed header and symbol map are those of the source.
//!
//! `SMBDIRECT_BLESS=1 cargo test -p smbdirect-capi --test header` writes them.

use std::{collections::BTreeSet, env, fs, path::Path};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compares a committed file with what it has to contain, or writes it.
fn check(name: &str, expected: &str) {
    let path = folder().join(name);
    if env::var_os("SMBDIRECT_BLESS").is_some() {
        fs::write(path, expected).unwrap();
        return;
    }
    let committed = fs::read_to_string(path).unwrap();
    assert!(
        committed == expected,
        "{name} differs from the source: look at the change, then run \
         SMBDIRECT_BLESS=1 cargo test -p smbdirect-capi --test header"
    );
}

fn header() -> String {
    let mut config = cbindgen::Config::from_file(folder().join("cbindgen.toml")).unwrap();
    config.after_includes = Some(version());
    let bindings = cbindgen::Builder::new()
        .with_crate(folder())
        .with_config(config)
        .generate()
        .unwrap();
    let mut header = Vec::new();
    bindings.write(&mut header);
    in_parentheses(&String::from_utf8(header).unwrap())
}

/// Returns the macros of the version.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let number = version.split('-').next().unwrap_or(version);
    let parts = ["MAJOR", "MINOR", "PATCH"]
        .into_iter()
        .zip(number.split('.'));
    let mut text = format!(
        "\n/**\n * Version of this header; smbdirect_version() returns that of the library.\n */\n\
         #define SMBDIRECT_VERSION \"{version}\"\n"
    );
    for (name, value) in parts {
        text += &format!("#define SMBDIRECT_VERSION_{name} {value}\n");
    }
    text
}

/// Returns the header with each negative value of a macro in parentheses, so that `x MACRO` is no subtraction.
fn in_parentheses(header: &str) -> String {
    let lines = header.lines().map(|line| match line.rsplit_once(" -") {
        Some((macro_, value)) if line.starts_with("#define ") => format!("{macro_} (-{value})\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Returns the functions that a header declares.
fn functions(header: &str) -> BTreeSet<&str> {
    let code = header
        .lines()
        .filter(|line| !line.trim_start().starts_with(['*', '/']));
    let words = code.flat_map(|line| line.split_inclusive('('));
    words
        .filter_map(|word| word.strip_suffix('('))
        .filter_map(|word| word.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("smbdirect_") && !name.ends_with(')'))
        .collect()
}

#[test]
fn header_is_that_of_the_source() {
    check("include/smbdirect.h", &header());
}

#[test]
fn header_has_short_lines() {
    for line in header().lines() {
        assert!(line.len() < 120, "{line}");
    }
}

#[test]
fn symbol_map_has_every_function_of_the_header() {
    let header = header();
    let functions = functions(&header);
    assert!(functions.len() > 30, "{functions:?}");
    let symbols: String = functions
        .iter()
        .map(|name| format!("    {name};\n"))
        .collect();
    check(
        "smbdirect.map",
        &format!("SMBDIRECT_0 {{\n  global:\n{symbols}  local:\n    *;\n}};\n"),
    );
}
