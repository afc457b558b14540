//! Asks cargo for the folders of this workspace, and rustdoc for the public API of a library.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use rustdoc_types::FORMAT_VERSION;
use serde::Deserialize;

/// The folders of the workspace, as `cargo metadata` prints them.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    pub(crate) workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn load() -> Result<Self> {
        let output = Command::new(cargo())
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .output()?;
        ensure!(
            output.status.success(),
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Writes the public API of a library as JSON, with all features, and returns the file.
    pub(crate) fn rustdoc_json(&self, package: &str) -> Result<PathBuf> {
        let output = Command::new(cargo())
            .args(["rustdoc", "--quiet", "--lib", "--all-features"])
            .args(["--package", package, "--"])
            .args(["-Z", "unstable-options", "--output-format", "json"])
            .args(["--cap-lints", "allow"])
            .env("RUSTDOC", self.workspace_root.join("xtask/rustdoc-json"))
            .output()?;
        if !output.status.success() {
            bail!(
                "rustdoc of {package}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let name = format!("{}.json", package.replace('-', "_"));
        Ok(self.target_directory.join("doc").join(name))
    }

    /// Why the JSON in `path` is not read, if it has another format than this program knows. `SMBDIRECT_REQUIRE_TOOLS`
    /// makes that an error.
    pub(crate) fn other_format(path: &Path) -> Result<Option<String>> {
        let Format { format_version } = serde_json::from_str(&read(path)?)?;
        if format_version == FORMAT_VERSION {
            return Ok(None);
        }
        let reason = format!(
            "this compiler writes format {format_version} of rustdoc's JSON, and xtask reads format {FORMAT_VERSION}"
        );
        ensure!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{reason}; use the toolchain of rust-toolchain.toml, or another version of rustdoc-types in xtask"
        );
        Ok(Some(format!("skipped: {reason}")))
    }
}

/// The part of the JSON that every format has.
#[derive(Deserialize)]
struct Format {
    format_version: u32,
}

/// Reads a text file, and names it in the error.
pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
