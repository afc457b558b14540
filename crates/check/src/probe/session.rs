//! Sessions: what a server shows only to them, which are its interfaces, signing and encryption.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use smb2::{
    msg::ioctl::{IoctlRequest, IoctlResponse, SMB2_0_IOCTL_IS_FSCTL},
    pack::{ReadCursor, Unpack},
    types::{Command, FileId, status::NtStatus},
};
use smbdirect::Connection;
use smbdirect_smb::network_interface::{MAX_LIST_BYTES, NetworkInterface};
use smbdirect_smb2::{Client, Error, Login};
use tokio::time::timeout;

use crate::facts::{ServerInterface, Session};

/// FSCTL_QUERY_NETWORK_INTERFACE_INFO ([MS-SMB2] 2.2.31).
const QUERY_INTERFACES: u32 = 0x0014_01fc;
/// Longest time for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The connection that a session uses.
pub(super) enum Over {
    Tcp(SocketAddr),
    SmbDirect(Connection),
}

impl Over {
    /// Logs in.
    pub(super) async fn log_in(&self, host: &str, login: &Login) -> Result<Client, Error> {
        match self {
            Self::Tcp(address) => Client::connect_tcp(*address, host, login, ANSWER_LIMIT).await,
            Self::SmbDirect(connection) => {
                Client::connect(connection.clone(), host, login, ANSWER_LIMIT).await
            }
        }
    }
}

/// Logs in and queries.
pub(super) async fn query(over: &Over, host: &str, share: Option<&str>, login: &Login) -> Session {
    let mut session = Session {
        user: login.user(),
        is_kerberos: matches!(login, Login::Tickets(_)),
        over: match over {
            Over::Tcp(_) => "TCP",
            Over::SmbDirect(_) => "SMB Direct",
        },
        ..Session::default()
    };
    let mut client = match over.log_in(host, login).await {
        Ok(client) => client,
        Err(error) => {
            session.login = Some(error.to_string());
            return session;
        }
    };
    session.is_encrypted = client.encrypts();
    let asked = timeout(ANSWER_LIMIT, interfaces(&mut client)).await;
    session.interfaces = Some(match asked {
        Ok(interfaces) => interfaces.map_err(|error| format!("{error:#}")),
        Err(_) => Err(format!("no answer within {} s", ANSWER_LIMIT.as_secs())),
    });
    if let Some(share) = share {
        let share = client.share(share).await;
        let encrypts = share.map(|share| share.tree().encrypt_data);
        session.share = Some(encrypts.map_err(|error| error.to_string()));
    }
    session
}

/// Asks for the server's interfaces, as a client that uses several channels does.
async fn interfaces(client: &mut Client) -> Result<Vec<ServerInterface>> {
    let ipc = client.share("IPC$").await.context("IPC$")?;
    let request = IoctlRequest {
        ctl_code: QUERY_INTERFACES,
        file_id: FileId::SENTINEL,
        max_input_response: 0,
        max_output_response: MAX_LIST_BYTES as u32,
        flags: SMB2_0_IOCTL_IS_FSCTL,
        input_data: Vec::new(),
    };
    let tree = Some(ipc.tree().tree_id);
    let smb2 = ipc.smb2();
    let frame = smb2.execute(Command::Ioctl, &request, tree).await?;
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
