//! `cargo xtask api`: compares the public API of each library with its committed listing.

use std::{collections::BTreeSet, fmt::Write, fs};

use anyhow::{Context, Result};
use clap::Args;

use crate::workspace::{Workspace, read};

/// Compare the public API of each library with docs/api/PACKAGE.txt
///
/// A listing has one line for each public item, made from rustdoc's JSON. Items that every type has are left out:
/// blanket implementations, and Send, Sync and their like.
#[derive(Debug, Args)]
pub(crate) struct Api {
    /// Write the listings again
    #[arg(long)]
    bless: bool,
}

/// The libraries that others depend on.
const LIBRARIES: [&str; 5] = [
    "smbdirect",
    "smbdirect-rdma",
    "smbdirect-smb2",
    "smbdirect-tdi",
    "smbdirect-verbs",
];

impl Api {
    /// Returns whether every listing is as committed.
    pub(crate) fn run(&self) -> Result<bool> {
        let workspace = Workspace::load()?;
        let folder = workspace.workspace_root.join("docs/api");
        let mut same = true;
        for library in LIBRARIES {
            let json = workspace.rustdoc_json(library)?;
            if let Some(reason) = Workspace::other_format(&json)? {
                println!("{reason}");
                return Ok(true);
            }
            let path = folder.join(format!("{library}.txt"));
            let now = public_api::Builder::from_rustdoc_json(json)
                .omit_blanket_impls(true)
                .omit_auto_trait_impls(true)
                .build()
                .with_context(|| format!("public API of {library}"))?
                .to_string();
            if self.bless {
                fs::create_dir_all(&folder)?;
                fs::write(&path, now)?;
            } else if let Some(difference) = difference(&read(&path)?, &now) {
                print!("{library}:\n{difference}");
                same = false;
            }
        }
        if !same {
            println!("if this change is intended: cargo xtask api --bless");
        }
        Ok(same)
    }
}

/// The lines that only one of two listings has.
fn difference(before: &str, now: &str) -> Option<String> {
    let (before, now): (BTreeSet<_>, BTreeSet<_>) =
        (before.lines().collect(), now.lines().collect());
    let mut text = String::new();
    for line in before.difference(&now) {
        writeln!(text, "- {line}").expect("a String takes all");
    }
    for line in now.difference(&before) {
        writeln!(text, "+ {line}").expect("a String takes all");
    }
    (!text.is_empty()).then_some(text)
}
