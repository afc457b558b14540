//! The parts of the book's pages that the tests read.

use std::path::{Component, Path, PathBuf};

/// A page of the book.
pub(super) struct Page {
    /// Its path in the repository.
    pub(super) path: String,
    pub(super) text: String,
    /// Programs without which its blocks cannot run.
    pub(super) needs: Vec<String>,
    pub(super) blocks: Vec<Block>,
}

/// A block of shell commands.
pub(super) struct Block {
    /// The line of its fence.
    pub(super) line: usize,
    pub(super) mark: Mark,
    pub(super) commands: String,
}

/// The words after the fence of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Run,
    /// Runs only if minutes do not matter.
    Long,
    Serve,
    /// A script of the repository runs it, where there is what it needs.
    RunBy(String),
    NotRun(String),
    /// A comment of the page.
    Hidden,
    None,
}

impl Page {
    pub(super) fn new(path: &str, text: String) -> Self {
        let (mut needs, mut blocks) = (Vec::new(), Vec::<Block>::new());
        let mut lines = (1..).zip(text.lines());
        while let Some((line, text)) = lines.next() {
            if let Some(rest) = comment(text, "needs") {
                needs.extend(rest.split(' ').map(str::to_owned));
            } else if let Some(command) = comment(text, "run") {
                blocks.push(Block {
                    line,
                    mark: Mark::Hidden,
                    commands: command.to_owned(),
                });
            } else if let Some(command) = comment(text, "serve") {
                blocks.push(Block {
                    line,
                    mark: Mark::Serve,
                    commands: command.to_owned(),
                });
            } else if let Some(info) = text.trim_start().strip_prefix("```") {
                let body = lines
                    .by_ref()
                    .map(|(_, text)| text)
                    .take_while(|text| text.trim() != "```")
                    .map(|text| text.to_owned() + "\n")
                    .collect();
                if let Some(mark) = mark(info) {
                    blocks.push(Block {
                        line,
                        mark,
                        commands: body,
                    });
                }
            }
        }
        Self {
            path: path.to_owned(),
            text,
            needs,
            blocks,
        }
    }

    /// Returns the identifiers of the headings, as links name them.
    pub(super) fn headings(&self) -> impl Iterator<Item = String> {
        let lines = self.text.lines().filter(|line| line.starts_with('#'));
        lines.map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-")
        })
    }

    /// Returns whether a block of the page runs here: in the long form of the test, those that take minutes.
    pub(super) fn runs(&self, long: bool) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|block| match block.mark {
            Mark::Run => true,
            Mark::Long => long,
            _ => false,
        })
    }

    /// Returns each `smbdirect` command line of the shell blocks and of the text: its line, its command, and
    /// its options.
    pub(super) fn command_lines(&self) -> Vec<(usize, Vec<String>)> {
        let in_blocks = self.blocks.iter().flat_map(|block| {
            let joined = block.commands.replace("\\\n", " ");
            let lines: Vec<_> = joined.lines().map(str::to_owned).collect();
            lines.into_iter().map(|text| (block.line, text))
        });
        let in_text = (1..).zip(self.text.lines()).flat_map(|(number, line)| {
            let code = line.split('`').skip(1).step_by(2);
            code.map(move |code| (number, code.to_owned()))
        });
        in_blocks
            .chain(in_text)
            .filter_map(|(line, text)| Some((line, command_and_options(&text)?)))
            .collect()
    }
}

/// Returns the text of a comment of one line.
fn comment<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    let rest = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    rest.strip_prefix(kind)?.strip_prefix(": ")
}

/// Returns the words after the fence of a shell block, and nothing for other blocks.
fn mark(info: &str) -> Option<Mark> {
    let rest = info
        .strip_prefix("sh")
        .or_else(|| info.strip_prefix("console"))?;
    Some(match rest.trim() {
        "run" => Mark::Run,
        "long" => Mark::Long,
        "serve" => Mark::Serve,
        other => {
            if let Some(reason) = other.strip_prefix("not run:") {
                Mark::NotRun(reason.trim().to_owned())
            } else if let Some(script) = other.strip_prefix("run by ") {
                Mark::RunBy(script.trim().to_owned())
            } else {
                Mark::None
            }
        }
    })
}

/// Returns the command and the options after `smbdirect`, up to the end of the simple command.
fn command_and_options(text: &str) -> Option<Vec<String>> {
    let mut words = text.split([' ', '\'', '"']).filter(|word| !word.is_empty());
    words.find(|word| *word == "smbdirect")?;
    let command = words.next()?;
    if !command.starts_with(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    let options = words
        .take_while(|word| !["|", ">", "<", "&", "&&", ";", "#", "--"].contains(word))
        .filter(|word| word.starts_with("--"))
        .map(|word| word.trim_end_matches([',', ';', ')', '.']).to_owned());
    Some([command.to_owned()].into_iter().chain(options).collect())
}

/// Returns the targets of the inline links of a text outside of code blocks.
pub(super) fn links(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    let lines = text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.flat_map(|line| {
        line.split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
    })
}

/// Resolves `.` and `..` in a path by its text alone.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}
