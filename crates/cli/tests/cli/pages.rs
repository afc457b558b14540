//! The book: its commands run, and its links and options exist.
//!
//! Every shell block of a page says after ```` ```sh ```` how this test treats it:
//!
//! | fence | the block |
//! |---|---|
//! | `sh run` | runs to its end, and has to succeed |
//! | `sh long` | the same, but only with `SMBDIRECT_BOOK=long`, because it takes minutes |
//! | `sh serve` | starts, prints a line, and runs until the page ends |
//! | `sh run by SCRIPT` | runs in a script of the repository, which needs more than this test, such as a kernel |
//! | `sh not run: REASON` | does not run |
//!
//! `<!-- run: COMMAND -->` and `<!-- serve: COMMAND -->` are commands that readers do not see, such as one that
//! makes a file.
//! `<!-- needs: PROGRAM... -->` names programs, or `root`, without which the page is skipped.
//!
//! The blocks of a page run in order, in one folder, and in namespaces of their own for network, mounts and
//! processes. So every port is free, the names of the page lead to this machine, and a server ends with its
//! page. Every option of every `smbdirect` command line, whether it runs or not, has to be in `--help`.

mod markdown;
mod sandbox;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

use crate::support::run;

use self::markdown::{Block, Mark, Page};

/// The folder of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages of the book, by their paths in the repository. The book's source folder has the layout
/// of the repository, by symbolic links.
fn pages() -> Vec<Page> {
    let summary = fs::read_to_string(repository().join("book/src/SUMMARY.md")).unwrap();
    let pages: Vec<_> = markdown::links(&summary)
        .map(|path| {
            let text = fs::read_to_string(repository().join(path));
            let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
            Page::new(path, text)
        })
        .collect();
    assert!(pages.len() > 10, "the book has its pages");
    pages
}

#[test]
fn the_commands_of_the_book_run() {
    if !sandbox::is_available() {
        eprintln!("skipped: the commands of the book need namespaces (unshare, ip)");
        return;
    }
    let long = std::env::var_os("SMBDIRECT_BOOK").is_some_and(|form| form == "long");
    let mut commands = 0;
    for page in pages() {
        if !page.runs(long) {
            continue;
        }
        if let Some(missing) = page.needs.iter().find(|need| !sandbox::has(need)) {
            eprintln!("skipped: {} needs {missing}", page.path);
            continue;
        }
        commands += sandbox::run(&page, long);
    }
    assert!(commands > 3, "{commands}");
}

#[test]
fn each_shell_block_of_the_book_runs_or_says_why_not() {
    for page in pages() {
        for Block { line, mark, .. } in &page.blocks {
            let place = format!("{}:{line}", page.path);
            match mark {
                Mark::None => panic!("{place}: does not say how it runs"),
                Mark::NotRun(reason) => assert!(!reason.is_empty(), "{place}: no reason"),
                // The script names the page whose blocks it runs, with or without its suffix.
                Mark::RunBy(script) => {
                    let text = fs::read_to_string(repository().join(script));
                    let text = text.unwrap_or_else(|error| panic!("{place}: {script}: {error}"));
                    assert!(
                        text.contains(page.path.trim_end_matches(".md")),
                        "{place}: {script} does not name the page"
                    );
                }
                Mark::Run | Mark::Long | Mark::Serve | Mark::Hidden => {}
            }
        }
    }
}

#[test]
fn the_options_in_the_book_exist() {
    let mut help = HashMap::new();
    let mut checked = 0;
    for page in pages() {
        for (line, words) in page.command_lines() {
            let place = format!("{}:{line}", page.path);
            let command = words[0].clone();
            let help = help.entry(command).or_insert_with_key(|command| {
                let done = run(&[command, "--help"]);
                assert!(done.status.success(), "{place}: no command {command}");
                done.stdout
            });
            for option in &words[1..] {
                let name = option.split('=').next().unwrap();
                let exists = help
                    .split(|c: char| c.is_whitespace() || ",[]=`".contains(c))
                    .any(|word| word == name);
                assert!(exists, "{place}: smbdirect {} has no {name}", words[0]);
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

/// A link leads to a file, both in the repository and in the book, and to a heading that exists.
#[test]
fn the_links_of_the_book_lead_somewhere() {
    let pages = pages();
    for page in &pages {
        for target in markdown::links(&page.text) {
            if target.starts_with("http") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let linked = match file {
                "" => Some(page),
                _ => {
                    let path = Path::new(&page.path).parent().unwrap().join(file);
                    let path = markdown::normal(&path);
                    let linked = pages.iter().find(|page| Path::new(&page.path) == path);
                    let is_page = path.extension().is_some_and(|end| end == "md");
                    assert!(
                        linked.is_some() || !is_page,
                        "{} links to {target}, which is not in the book",
                        page.path
                    );
                    linked
                }
            };
            if !heading.is_empty() {
                let exists = linked.is_some_and(|page| page.headings().any(|id| id == heading));
                assert!(exists, "{} links to {target}: no such heading", page.path);
            }
            if file.is_empty() {
                continue;
            }
            for root in [repository(), repository().join("book/src")] {
                let folder = root.join(&page.path).parent().unwrap().to_owned();
                // Symbolic links would change the meaning of `..`.
                let path = markdown::normal(&folder.join(file));
                assert!(
                    path.exists(),
                    "{} links to {target}: {} does not exist",
                    page.path,
                    path.display()
                );
            }
        }
    }
}
