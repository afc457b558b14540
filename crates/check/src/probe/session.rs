//! Queries that need a session: the interfaces that the server offers, signing and encryption.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result};
use smb2::{
    client::{Session as Login, Tree, connection::Connection as Smb2},
    msg::ioctl::{IoctlRequest, IoctlResponse, SMB2_0_IOCTL_IS_FSCTL},
    pack::{ReadCursor, Unpack},
    types::{Command, FileId, status::NtStatus},
};
use smbdirect::Connection;
use smbdirect_smb2::Transport;
use tokio::time::timeout;

use crate::{
    facts::{Refusal, ServerInterface, Session},
    settings::Account,
};

/// FSCTL_QUERY_NETWORK_INTERFACE_INFO ([MS-SMB2] 2.2.31).
const QUERY_INTERFACES: u32 = 0x0014_01fc;
/// NETWORK_INTERFACE_INFO ([MS-SMB2] 2.2.32.5).
const INTERFACE_INFO_BYTES: usize = 152;
/// RDMA_CAPABLE.
const RDMA_CAPABLE: u32 = 0x0000_0002;
/// Most interfaces that are read; a server has a few.
const MAX_INTERFACES: usize = 256;
/// Longest time for the whole session.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The connection that a session uses.
pub(super) enum Over {
    Tcp(SocketAddr),
    SmbDirect(Connection),
}

/// Logs in and queries.
pub(super) async fn query(
    over: Over,
    host: &str,
    share: Option<&str>,
    account: &Account,
) -> Session {
    let mut session = Session {
        user: account.user.clone(),
        over: match over {
            Over::Tcp(_) => "TCP",
            Over::SmbDirect(_) => "SMB Direct",
        },
        ..Session::default()
    };
    let exchange = log_in(over, host, share, account, &mut session);
    session.login = match timeout(TIMEOUT, exchange).await {
        Ok(result) => result.err().map(|error| refusal(&error)),
        Err(_) => Some(Refusal {
            is_access_denied: false,
            text: format!("no answer within {} s", TIMEOUT.as_secs()),
        }),
    };
    session
}

async fn log_in(
    over: Over,
    host: &str,
    share: Option<&str>,
    account: &Account,
    session: &mut Session,
) -> Result<()> {
    let mut connection = match over {
        Over::Tcp(address) => Smb2::connect(&address.to_string(), TIMEOUT).await?,
        Over::SmbDirect(connection) => Transport::new(connection).smb2(host),
    };
    connection.negotiate().await.context("NEGOTIATE")?;
    let (domain, user) = match account.user.split_once(['\\', '/']) {
        Some((domain, user)) => (domain, user),
        None => ("", &*account.user),
    };
    let login = Login::setup(&mut connection, user, &account.password, domain).await?;
    session.is_encrypted = login.should_encrypt;
    session.interfaces = Some(
        interfaces(&mut connection)
            .await
            .map_err(|error| format!("{error:#}")),
    );
    if let Some(share) = share {
        let tree = Tree::connect(&mut connection, share).await;
        session.share = Some(match tree {
            Ok(tree) => Ok(tree.encrypt_data),
            Err(error) => Err(refusal(&error.into())),
        });
    }
    Ok(())
}

/// Returns the reason, without the words that every refusal of a server begins with.
fn refusal(error: &anyhow::Error) -> Refusal {
    let status = error.downcast_ref().and_then(smb2::Error::status);
    Refusal {
        is_access_denied: status == Some(NtStatus::ACCESS_DENIED),
        text: format!("{error:#}").replace("Protocol error: ", ""),
    }
}

/// Asks for the server's interfaces, as a client that uses several channels does.
async fn interfaces(connection: &mut Smb2) -> Result<Vec<ServerInterface>> {
    let tree = Tree::connect(connection, "IPC$").await.context("IPC$")?;
    let request = IoctlRequest {
        ctl_code: QUERY_INTERFACES,
        file_id: FileId::SENTINEL,
        max_input_response: 0,
        max_output_response: (MAX_INTERFACES * INTERFACE_INFO_BYTES) as u32,
        flags: SMB2_0_IOCTL_IS_FSCTL,
        input_data: Vec::new(),
    };
    let frame = connection
        .execute(Command::Ioctl, &request, Some(tree.tree_id))
        .await?;
    anyhow::ensure!(
        frame.header.status == NtStatus::SUCCESS,
        "{}",
        frame.header.status
    );
    let response = IoctlResponse::unpack(&mut ReadCursor::new(&frame.body))?;
    Ok(parse(&response.output_data))
}

/// Parses a list of NETWORK_INTERFACE_INFO. Entries of other address families are skipped.
fn parse(mut bytes: &[u8]) -> Vec<ServerInterface> {
    let mut interfaces = Vec::new();
    for _ in 0..MAX_INTERFACES {
        let Some(info) = bytes.get(..INTERFACE_INFO_BYTES) else {
            break;
        };
        let u32_at = |at: usize| u32::from_le_bytes(info[at..at + 4].try_into().expect("4 bytes"));
        let speed = u64::from_le_bytes(info[16..24].try_into().expect("8 bytes"));
        if let Some(address) = socket_address(&info[24..]) {
            interfaces.push(ServerInterface {
                address,
                is_rdma: u32_at(8) & RDMA_CAPABLE != 0,
                speed: Some(speed).filter(|&speed| speed > 0),
            });
        }
        let next = u32_at(0) as usize;
        match bytes.get(next..) {
            Some(rest) if next > 0 => bytes = rest,
            _ => break,
        }
    }
    interfaces
}

/// Parses a SOCKADDR_STORAGE: family, port, and the address.
fn socket_address(bytes: &[u8]) -> Option<IpAddr> {
    const INTER_NETWORK: u16 = 0x0002;
    const INTER_NETWORK_V6: u16 = 0x0017;
    match u16::from_le_bytes(*bytes.first_chunk()?) {
        INTER_NETWORK => Some(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()),
        INTER_NETWORK_V6 => Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(next: u32, capability: u32, address: &[u8]) -> Vec<u8> {
        let mut info = vec![0; INTERFACE_INFO_BYTES];
        info[..4].copy_from_slice(&next.to_le_bytes());
        info[8..12].copy_from_slice(&capability.to_le_bytes());
        info[16..24].copy_from_slice(&1_000_000_000_u64.to_le_bytes());
        info[24..24 + address.len()].copy_from_slice(address);
        info
    }

    #[test]
    fn interfaces_are_parsed_and_hostile_lists_end() {
        let v4 = [2, 0, 0, 0, 10, 77, 0, 2];
        let mut list = info(152, 3, &v4);
        list.extend(info(0, 1, &[0x17, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80]));
        let found = parse(&list);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].address, IpAddr::from([10, 77, 0, 2]));
        assert!(found[0].is_rdma && !found[1].is_rdma);
        assert_eq!(found[1].address.to_string(), "fe80::");
        // A list that points to itself, beyond its end, or to a truncated entry.
        assert_eq!(parse(&info(0, 2, &v4)).len(), 1);
        assert_eq!(parse(&info(u32::MAX, 2, &v4)).len(), 1);
        assert_eq!(parse(&info(8, 2, &v4)).len(), 1);
        assert!(parse(&info(0, 2, &v4)[..151]).is_empty());
        assert!(parse(&info(0, 2, &[9, 9])).is_empty());
        assert!(parse(&[]).is_empty());
    }
}
