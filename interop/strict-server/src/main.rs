//! An SMB server that others wrote, which keeps to the letter of [MS-SMB2]: it serves each folder as a share of its name to
//! the user `root` with the password `lab`, and the first one to guests as `public`.
//!
//! ```text
//!   smbdirect-strict-server ADDRESS FOLDER...
//! ```
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use smb_server::{Access, LocalFsBackend, Share, SmbServer};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, first, ..] = &arguments[..] else {
        anyhow::bail!("give ADDRESS and FOLDER");
    };
    let served = |folder: &str| {
        LocalFsBackend::new(folder).with_context(|| format!("{folder} cannot be served"))
    };
    let mut server = SmbServer::builder()
        .listen(address.parse()?)
        .user("root", "lab")
        .share(Share::new("public", served(first)?).public());
    for folder in &arguments[1..] {
        let name = folder.rsplit('/').next().unwrap_or(folder);
        server = server.share(Share::new(name, served(folder)?).user("root", Access::ReadWrite));
    }
    let server = server.build()?;
    server.bind().await?;
    println!("listening on {address}");
    server.serve().await?;
    Ok(())
}
