//! Reads the header that cbindgen has made: each declaration follows its comment.

use anyhow::{Result, ensure};

/// The header.
#[derive(Debug, Default)]
pub(super) struct Header {
    /// The version of the library.
    pub(super) version: String,
    /// The lines of the comment at the beginning.
    pub(super) introduction: Vec<String>,
    /// The declarations in their order.
    pub(super) items: Vec<Item>,
}

/// A declaration with the lines of its comment.
#[derive(Debug)]
pub(super) enum Item {
    Constant {
        name: String,
        value: String,
        comment: Vec<String>,
    },
    Handle {
        name: String,
        comment: Vec<String>,
    },
    Structure {
        name: String,
        code: String,
        comment: Vec<String>,
        fields: Vec<Field>,
    },
    Callback {
        name: String,
        code: String,
        comment: Vec<String>,
    },
    Function {
        name: String,
        code: String,
        comment: Vec<String>,
    },
}

/// A field of a structure.
#[derive(Debug)]
pub(super) struct Field {
    /// Its declaration, such as `size_t size`.
    pub(super) code: String,
    pub(super) comment: Vec<String>,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// It has no version or no introduction, so it is another header.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut header = Self::default();
        let mut lines = text.lines();
        let mut comment = Vec::new();
        while let Some(line) = lines.next() {
            if line.starts_with("/* ") {
                header.introduction = comment_of(line, &mut lines);
            } else if line == "/**" {
                comment = comment_of("", &mut lines);
            } else if let Some(rest) = line.strip_prefix("#define SMBDIRECT_VERSION \"") {
                header.version = rest.trim_end_matches('"').to_owned();
            } else if comment.is_empty() || line.is_empty() {
                comment.clear();
            } else {
                let comment = std::mem::take(&mut comment);
                header.items.extend(item(line, &mut lines, comment));
            }
        }
        ensure!(
            !header.version.is_empty() && !header.introduction.is_empty(),
            "this is not the header of libsmbdirect"
        );
        Ok(header)
    }
}

/// Returns the lines of a comment up to its end, without their stars.
fn comment_of<'a>(first: &str, lines: &mut impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut comment = Vec::new();
    let mut line = first.trim_start_matches("/*").trim();
    loop {
        if !line.is_empty() || !comment.is_empty() {
            comment.push(
                line.strip_suffix("*/")
                    .unwrap_or(line)
                    .trim_end()
                    .to_owned(),
            );
        }
        if line.ends_with("*/") {
            comment.pop_if(|last| last.is_empty());
            return comment;
        }
        let Some(next) = lines.next() else {
            return comment;
        };
        let next = next.trim_start().trim_start_matches('*');
        // "*/" alone has lost its star.
        line = if next == "/" {
            "*/"
        } else {
            next.strip_prefix(' ').unwrap_or(next)
        };
    }
}

/// Returns the declaration that begins with a line.
fn item<'a>(
    first: &str,
    lines: &mut impl Iterator<Item = &'a str>,
    comment: Vec<String>,
) -> Option<Item> {
    if let Some(rest) = first.strip_prefix("#define ") {
        let (name, value) = rest.split_once(' ')?;
        return Some(Item::Constant {
            name: name.to_owned(),
            value: value.trim_matches(['(', ')']).to_owned(),
            comment,
        });
    }
    if let Some(name) = first.strip_prefix("typedef struct ") {
        let Some(name) = name.strip_suffix(" {") else {
            let name = name.split(' ').next()?.to_owned();
            return Some(Item::Handle { name, comment });
        };
        let (code, fields) = fields(name, lines);
        return Some(Item::Structure {
            name: name.to_owned(),
            code,
            comment,
            fields,
        });
    }
    let mut code = first.to_owned();
    while !code.ends_with(';') {
        code.push('\n');
        code += lines.next()?;
    }
    if first.starts_with("typedef ") {
        let name = first.split_once("(*")?.1.split_once(')')?.0.to_owned();
        return Some(Item::Callback {
            name,
            code,
            comment,
        });
    }
    let name = first
        .split_once('(')?
        .0
        .rsplit([' ', '*'])
        .next()?
        .to_owned();
    Some(Item::Function {
        name,
        code,
        comment,
    })
}

/// Returns the code of a structure without its comments, and its fields.
fn fields<'a>(name: &str, lines: &mut impl Iterator<Item = &'a str>) -> (String, Vec<Field>) {
    let mut code = format!("struct {name} {{\n");
    let (mut fields, mut comment) = (Vec::new(), Vec::new());
    while let Some(line) = lines.next() {
        if line.starts_with('}') {
            break;
        }
        if line.trim() == "/**" {
            comment = comment_of("", lines);
            continue;
        }
        code += line;
        code.push('\n');
        fields.push(Field {
            code: line.trim().trim_end_matches(';').to_owned(),
            comment: std::mem::take(&mut comment),
        });
    }
    (code + "};", fields)
}
