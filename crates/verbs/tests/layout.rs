//! Compares every offset, size and constant that the package uses with the C headers.
//!
//! Without a C compiler or without the headers the test prints the reason and skips, unless
//! `SMBDIRECT_REQUIRE_TOOLS` is set.

use std::{
    env, fs,
    process::{Command, Output},
};

use smbdirect_verbs::ffi::layout;

/// The headers that declare everything the package uses.
const HEADERS: [&str; 2] = ["infiniband/verbs.h", "rdma/rdma_cma.h"];

/// Compiles a C program to `layout` in `folder`.
fn compile(folder: &std::path::Path, program: &str) -> std::io::Result<Output> {
    let source = folder.join("layout.c");
    fs::write(&source, program)?;
    let mut cc = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()));
    cc.arg(&source).arg("-o").arg(folder.join("layout"));
    cc.output()
}

#[test]
fn layout_matches_the_c_headers() {
    let folder = tempfile::tempdir().unwrap();
    let includes: String = HEADERS.map(|name| format!("#include <{name}>\n")).concat();
    let missing = match compile(
        folder.path(),
        &format!("{includes}int main(void) {{ return 0; }}"),
    ) {
        Err(error) => Some(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => Some(format!(
            "the headers {HEADERS:?} are not installed; Debian has them in libibverbs-dev and librdmacm-dev"
        )),
        Ok(_) => None,
    };
    if let Some(missing) = missing {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{missing}"
        );
        println!("skipped: {missing}");
        return;
    }
    let facts = layout::facts();
    let prints: String = facts
        .iter()
        .map(|fact| format!("    printf(\"%zu\\n\", (size_t)({}));\n", fact.c))
        .collect();
    let program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <sys/socket.h>\n{includes}\
         int main(void) {{\n{prints}    return 0;\n}}\n"
    );
    let output = compile(folder.path(), &program).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = Command::new(folder.path().join("layout")).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let values: Vec<usize> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), facts.len());
    assert!(facts.len() > 100, "the list of facts is incomplete");
    let wrong: Vec<_> = facts
        .iter()
        .zip(values)
        .filter(|(fact, value)| fact.value != *value)
        .map(|(fact, value)| format!("{} is {value} in C, {} here", fact.c, fact.value))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
