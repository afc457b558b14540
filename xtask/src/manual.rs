//! The manual pages of libsmbdirect, section 3, from the comments of its header.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

mod header;
mod page;

use header::{Header, Item};

/// Write the manual pages of libsmbdirect from its header
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// Folder for the pages, NAME.3
    folder: PathBuf,

    /// The header
    #[arg(long, default_value = "crates/capi/include/smbdirect.h")]
    header: PathBuf,
}

impl Manual {
    pub(crate) fn run(&self) -> Result<bool> {
        let text = fs::read_to_string(&self.header)
            .with_context(|| format!("cannot read {}", self.header.display()))?;
        let header = Header::parse(&text)?;
        fs::create_dir_all(&self.folder)?;
        let pages = pages(&header);
        ensure!(pages.len() > 40, "only {} pages", pages.len());
        for (name, page) in &pages {
            fs::write(self.folder.join(format!("{name}.3")), page)?;
        }
        println!("{} pages in {}", pages.len(), self.folder.display());
        Ok(true)
    }
}

/// Returns the pages with their names: the overview, and one for each function, structure and type of a callback.
fn pages(header: &Header) -> Vec<(String, String)> {
    let mut pages = vec![(
        "libsmbdirect".to_owned(),
        page::overview("libsmbdirect", header),
    )];
    for item in &header.items {
        if let Item::Function { name, .. }
        | Item::Structure { name, .. }
        | Item::Callback { name, .. } = item
        {
            pages.push((name.clone(), page::of_item(item, header)));
        }
    }
    pages
}

/// Appends a line to a page.
fn line(page: &mut String, text: &str) {
    writeln!(page, "{text}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed() -> Header {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../crates/capi/include/smbdirect.h"
        );
        Header::parse(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn each_symbol_of_the_library_has_a_page() {
        let pages = pages(&committed());
        let map = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/capi/smbdirect.map");
        let map = fs::read_to_string(map).unwrap();
        let symbols = map.lines().filter_map(|line| {
            let name = line.trim().strip_suffix(';')?;
            name.starts_with("smbdirect_").then_some(name)
        });
        for symbol in symbols {
            assert!(pages.iter().any(|(name, _)| name == symbol), "{symbol}");
        }
        for name in [
            "smbdirect_settings",
            "smbdirect_error",
            "smbdirect_callback",
        ] {
            assert!(pages.iter().any(|(page, _)| page == name), "{name}");
        }
    }

    #[test]
    fn a_page_has_the_prototype_the_text_and_the_result() {
        let header = committed();
        let pages = pages(&header);
        let (_, page) = pages
            .iter()
            .find(|(name, _)| name == "smbdirect_connect")
            .unwrap();
        for part in [
            ".TH smbdirect_connect 3 \"\" \"smbdirect 0.1.0\"",
            "smbdirect_connect \\- connects to a peer and negotiates, within \\fItimeout_ms\\fR milliseconds",
            "#include <smbdirect.h>",
            "int32_t smbdirect_connect(struct smbdirect_runtime *runtime,",
            ".SH DESCRIPTION",
            ".SH RETURN VALUE",
            "SMBDIRECT_ERROR_INVALID, _UNSUPPORTED",
            ".BR libsmbdirect (3)",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }

    #[test]
    fn the_overview_has_the_rules_and_the_status_codes() {
        let page = page::overview("libsmbdirect", &committed());
        for part in [
            ".SS Threads",
            ".B SMBDIRECT_ERROR_WOULD_BLOCK",
            "    struct smbdirect_connection *connection;",
            "\\fBsmbdirect_get_fd\\fR(3)",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
    }
}
