//! Writes pages in the macros of man(7).

use super::{
    header::{Header, Item},
    line,
};

/// Returns the page about the whole library.
pub(super) fn overview(name: &str, header: &Header) -> String {
    let mut page = String::new();
    begin(
        &mut page,
        name,
        "SMB Direct ([MS-SMBD]) in user space",
        header,
    );
    synopsis(&mut page, "");
    line(&mut page, ".SH DESCRIPTION");
    let paragraphs = paragraphs(&header.introduction);
    // The first paragraph is the name, and the last one says how the file was made.
    let body = &paragraphs[1..paragraphs.len() - 1];
    for paragraph in body {
        match topic(paragraph) {
            Some((topic, rest)) => {
                line(&mut page, &format!(".SS {topic}"));
                line(&mut page, &roff(&rest));
            }
            None => write_paragraph(&mut page, paragraph),
        }
    }
    let constants = |prefix: &[&str]| {
        let mut text = String::new();
        for item in &header.items {
            if let Item::Constant {
                name,
                value,
                comment,
            } = item
                && prefix.iter().any(|prefix| name.starts_with(prefix))
            {
                line(
                    &mut text,
                    &format!(
                        ".TP\n.B {name}\n{} ({})",
                        roff(&comment.join(" ")),
                        number(value)
                    ),
                );
            }
        }
        text
    };
    line(&mut page, ".SH STATUS CODES");
    page += &constants(&["SMBDIRECT_OK", "SMBDIRECT_ERROR_"]);
    line(&mut page, ".SH CONSTANTS");
    page += &constants(&[
        "SMBDIRECT_ACCESS_",
        "SMBDIRECT_PROFILE_",
        "SMBDIRECT_ADDRESS_",
    ]);
    line(&mut page, ".SH HANDLES");
    for item in &header.items {
        if let Item::Handle { name, comment } = item {
            line(
                &mut page,
                &format!(".TP\n.B struct {name}\n{}", roff(&comment.join(" "))),
            );
        }
    }
    let names = header.items.iter().filter_map(|item| match item {
        Item::Function { name, .. }
        | Item::Structure { name, .. }
        | Item::Callback { name, .. } => Some(name.as_str()),
        _ => None,
    });
    see_also(&mut page, names);
    page
}

/// Returns the page of a function, a structure or the type of a callback.
pub(super) fn of_item(item: &Item, header: &Header) -> String {
    let (name, code, comment, fields) = match item {
        Item::Function {
            name,
            code,
            comment,
        }
        | Item::Callback {
            name,
            code,
            comment,
        } => (name, code, comment, &[][..]),
        Item::Structure {
            name,
            code,
            comment,
            fields,
        } => (name, code, comment, &fields[..]),
        Item::Constant { .. } | Item::Handle { .. } => return String::new(),
    };
    let mut page = String::new();
    let paragraphs = paragraphs(comment);
    begin(&mut page, name, &summary(&paragraphs[0].join(" ")), header);
    synopsis(&mut page, code);
    line(&mut page, ".SH DESCRIPTION");
    let is_result = |paragraph: &&Vec<String>| {
        let text = paragraph.join(" ");
        text.starts_with("Returns ") || text.starts_with("Stores ") && text.contains("eturns ")
    };
    let (results, texts): (Vec<_>, Vec<_>) = paragraphs.iter().skip(1).partition(is_result);
    write_paragraph(&mut page, &paragraphs[0]);
    for text in texts {
        write_paragraph(&mut page, text);
    }
    for field in fields {
        line(
            &mut page,
            &format!(
                ".TP\n.B {}\n{}",
                escaped(&field.code),
                roff(&field.comment.join(" "))
            ),
        );
    }
    if !results.is_empty() {
        line(&mut page, ".SH RETURN VALUE");
        for result in results {
            write_paragraph(&mut page, result);
        }
    }
    let named = comment.join(" ");
    let all = header.items.iter().filter_map(|item| match item {
        Item::Function { name, .. } => Some(name.as_str()),
        _ => None,
    });
    let named = all.filter(|other| *other != name && named.contains(&format!("{other}(")));
    see_also(&mut page, ["libsmbdirect"].into_iter().chain(named));
    page
}

fn begin(page: &mut String, name: &str, summary: &str, header: &Header) {
    let version = &header.version;
    line(page, ".\\\" Made from smbdirect.h.");
    line(
        page,
        &format!(".TH {name} 3 \"\" \"smbdirect {version}\" \"Library Functions Manual\""),
    );
    line(page, &format!(".SH NAME\n{name} \\- {}", roff(summary)));
}

fn synopsis(page: &mut String, code: &str) {
    line(page, ".SH SYNOPSIS\n.nf\n.B #include <smbdirect.h>");
    if !code.is_empty() {
        line(page, "");
        for code in code.lines() {
            line(page, &escaped(code));
        }
    }
    line(
        page,
        "\nLink with \\fIpkg\\-config \\-\\-cflags \\-\\-libs smbdirect\\fR.\n.fi",
    );
}

fn see_also<'a>(page: &mut String, names: impl Iterator<Item = &'a str>) {
    line(page, ".SH SEE ALSO");
    let names: Vec<_> = names.map(|name| format!(".BR {name} (3)")).collect();
    line(page, &names.join(",\n"));
}

/// Returns the first sentence for the line of the name: without its full stop, and with a small first letter.
fn summary(text: &str) -> String {
    let end = text.find(". ").unwrap_or(text.len());
    let sentence = text[..end].trim_end_matches(['.', ':']);
    let second = sentence.chars().nth(1).is_some_and(char::is_uppercase);
    let mut sentence = sentence.to_owned();
    if let Some(first) = sentence.get_mut(..1).filter(|_| !second) {
        first.make_ascii_lowercase();
    }
    sentence
}

/// Returns the paragraphs of a comment.
fn paragraphs(comment: &[String]) -> Vec<Vec<String>> {
    comment
        .split(|line| line.is_empty())
        .filter(|paragraph| !paragraph.is_empty())
        .map(<[String]>::to_vec)
        .collect()
}

/// Returns the topic of a paragraph that begins with one, such as "Threads.", and its other text.
fn topic(paragraph: &[String]) -> Option<(String, String)> {
    let text = paragraph.join(" ");
    let (topic, rest) = text.split_once(". ")?;
    let is_topic = topic.split(' ').count() <= 3 && !paragraph[0].starts_with(' ');
    is_topic.then(|| (topic.to_owned(), rest.to_owned()))
}

/// Writes a paragraph, as code if it is indented.
fn write_paragraph(page: &mut String, paragraph: &[String]) {
    if paragraph.iter().all(|line| line.starts_with("    ")) {
        line(page, ".PP\n.EX");
        for code in paragraph {
            line(page, &escaped(code));
        }
        line(page, ".EE");
    } else {
        line(page, &format!(".PP\n{}", roff(&paragraph.join(" "))));
    }
}

/// Returns code as roff prints it unchanged.
fn escaped(code: &str) -> String {
    let code = code.replace('\\', "\\e").replace('-', "\\-");
    if code.starts_with(['.', '\'']) {
        format!("\\&{code}")
    } else {
        code
    }
}

/// Returns a number with a minus sign that is no hyphen.
fn number(value: &str) -> String {
    value.replace('-', "\\-")
}

/// Returns text in roff: names in backticks are italic, functions bold with their section.
fn roff(text: &str) -> String {
    let mut out = String::new();
    for (at, part) in text.split('`').enumerate() {
        let part = part.replace('\\', "\\e");
        if at % 2 == 1 {
            out += &format!("\\fI{}\\fR", part.replace('-', "\\-"));
            continue;
        }
        let words = part.split(' ').map(|word| match word.split_once("()") {
            Some((name, rest)) => {
                let start = name.find("smbdirect_").unwrap_or(0);
                let (before, name) = name.split_at(start);
                let section = if name.starts_with("smbdirect_") {
                    "(3)"
                } else {
                    "()"
                };
                format!("{before}\\fB{name}\\fR{section}{rest}")
            }
            None if word.starts_with("-") => word.replacen('-', "\\-", 1),
            None => word.to_owned(),
        });
        out += &words.collect::<Vec<_>>().join(" ");
    }
    let out = out.trim_start().to_owned();
    if out.starts_with(['.', '\'']) {
        format!("\\&{out}")
    } else {
        out
    }
}
