//! Queries that need a session: the interfaces that the server offers, signing and encryption.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use smb2::{
    client::{Session as Login, Tree, connection::Connection as Smb2},
    msg::ioctl::{IoctlRequest, IoctlResponse, SMB2_0_IOCTL_IS_FSCTL},
    pack::{ReadCursor, Unpack},
    types::{Command, FileId, status::NtStatus},
};
use smbdirect::Connection;
use smbdirect_smb::network_interface::{MAX_LIST_BYTES, NetworkInterface};
use smbdirect_smb2::Transport;
use tokio::time::timeout;

use crate::{
    facts::{Refusal, ServerInterface, Session},
    settings::Account,
};

/// FSCTL_QUERY_NETWORK_INTERFACE_INFO ([MS-SMB2] 2.2.31).
const QUERY_INTERFACES: u32 = 0x0014_01fc;
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
        user: account.user(),
        is_kerberos: matches!(account, Account::Tickets(_)),
        over: match over {
            Over::Tcp(_) => "TCP",
            Over::SmbDirect(_) => "SMB Direct",
        },
        ..Session::default()
    };
    // The KDC has limits of its own.
    let ready = match account {
        Account::Tickets(tickets) => match tickets.for_server(host).await {
            Ok(tickets) => &Account::Tickets(tickets),
            Err(error) => {
                session.login = Some(refusal(&error.into()));
                return session;
            }
        },
        account => account,
    };
    let exchange = log_in(over, host, share, ready, &mut session);
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
    let login = match account {
        Account::Password { user, password } => {
            let (domain, name) = user.split_once(['\\', '/']).unwrap_or(("", user));
            Login::setup(&mut connection, name, password, domain).await?
        }
        Account::Tickets(tickets) => tickets.log_in(&mut connection, host).await?,
    };
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
    let status = match error.downcast_ref() {
        Some(error) => smb2::Error::status(error),
        None => error.downcast_ref().and_then(smbdirect_smb2::Error::status),
    };
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
        max_output_response: MAX_LIST_BYTES as u32,
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
    let interfaces = NetworkInterface::decode_all(&response.output_data).into_iter();
    let interfaces = interfaces.map(|interface| ServerInterface {
        address: interface.address,
        is_rdma: interface.is_rdma_capable(),
        speed: Some(interface.link_speed).filter(|&speed| speed > 0),
    });
    Ok(interfaces.collect())
}
