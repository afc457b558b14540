//! An SMB server that others wrote, which keeps to the letter of [MS-SMB2]: it serves a folder as the share `share` to the
//! user `lab` with the password `lab`, and to guests as `public`.
//!
//! ```text
//!   smbdirect-strict-server ADDRESS FOLDER
//! ```
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use smb_server::{Access, LocalFsBackend, Share, SmbServer};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, folder] = &arguments[..] else {
        anyhow::bail!("give ADDRESS and FOLDER");
    };
    let folder = || LocalFsBackend::new(folder).context("the folder cannot be served");
    let server = SmbServer::builder()
        .listen(address.parse()?)
        .user("lab", "lab")
        .share(Share::new("share", folder()?).user("lab", Access::ReadWrite))
        .share(Share::new("public", folder()?).public())
        .build()?;
    server.bind().await?;
    println!("listening on {address}");
    server.serve().await?;
    Ok(())
}
