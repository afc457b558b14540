//! `cargo xtask counts`: how large the public face of the library is, and how much code each package has.

mod face;
mod source;

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;

use crate::workspace::Workspace;
use face::Face;
use source::Source;

/// Count public types, fields and examples of smbdirect, and lines of code of each package
#[derive(Debug, Args)]
pub(crate) struct Counts {}

impl Counts {
    /// Prints the counts.
    pub(crate) fn run(&self) -> Result<bool> {
        let workspace = Workspace::load()?;
        print_face(&workspace)?;
        println!();
        print_source(&workspace)?;
        Ok(true)
    }
}

fn print_face(workspace: &Workspace) -> Result<()> {
    let mut crates = Vec::new();
    for package in ["smbdirect", "smbdirect-rdma"] {
        let json = workspace.rustdoc_json(package)?;
        if let Some(reason) = Workspace::other_format(&json)? {
            println!("{reason}");
            return Ok(());
        }
        crates.push(Workspace::read_json(&json)?);
    }
    let Face {
        types,
        traits,
        fields,
        literals,
        methods,
        examples,
    } = Face::of(&crates);
    println!("Public API of smbdirect, with what it re-exports by name from smbdirect-rdma");
    println!("{:<58}{types:>8}", "structs, enums and type aliases");
    println!("{:<58}{traits:>8}", "traits");
    println!("{:<58}{fields:>8}", "fields of structs");
    println!(
        "{:<58}{literals:>8}",
        "structs a user can write as a literal"
    );
    println!("{:<58}{methods:>8}", "functions and methods");
    println!(
        "{:<58}{examples:>8}",
        "functions and methods with an example"
    );
    Ok(())
}

fn print_source(workspace: &Workspace) -> Result<()> {
    let mut product = Source::default();
    let mut internal = Source::default();
    println!("Lines of Rust without tests, benches, examples, blank lines and comments");
    for package in &workspace.packages {
        let mut source = Source::default();
        let mut seen = BTreeSet::new();
        for target in &package.targets {
            if is_product(&target.kind) {
                source.add_tree(&target.src_path, &mut seen)?;
            }
        }
        let mark = if package.is_internal() {
            "  (not published)"
        } else {
            ""
        };
        println!("{:<58}{:>8}{mark}", package.name, source.lines);
        if package.is_internal() {
            &mut internal
        } else {
            &mut product
        }
        .merge(source);
    }
    println!("{:<58}{:>8}", "all published packages", product.lines);
    println!(
        "{:<58}{:>8}",
        "all packages",
        product.lines + internal.lines
    );
    println!();
    println!("Longest of the published packages, without tests, with comments");
    let root = &workspace.workspace_root;
    for (kind, longest) in [
        ("file", &product.longest_file),
        ("function", &product.longest_function),
    ] {
        let name = longest
            .name
            .strip_prefix(&format!("{}/", root.display()))
            .unwrap_or(&longest.name);
        println!("{:<58}{:>8}", format!("{kind}: {name}"), longest.lines);
    }
    Ok(())
}

/// Whether users get a target of these kinds: neither a test, a bench nor an example.
fn is_product(kinds: &[String]) -> bool {
    !kinds
        .iter()
        .any(|kind| matches!(kind.as_str(), "test" | "bench" | "example"))
}
