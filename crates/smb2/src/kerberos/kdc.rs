//! The connection to a KDC: TCP only.
//!
//! The crate smb2 sends a request by UDP, and tries TCP when three datagrams had no answer, which takes 33 s where a
//! firewall drops UDP. It has no setting for that, so it is given the address of a UDP socket of this process, and
//! its request goes to the KDC by TCP, which every KDC accepts (RFC 4120 7.2).

use std::{convert::Infallible, future::pending, io, net::Ipv4Addr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

/// Longest payload of a UDP datagram over IPv4.
const MAX_DATAGRAM_BYTES: usize = 65_507;

/// A socket that takes a request by UDP and passes it on by TCP.
pub(super) struct Relay {
    socket: UdpSocket,
    address: String,
}

impl Relay {
    pub(super) async fn bind() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?.to_string();
        Ok(Self { socket, address })
    }

    /// Returns the address to send the request to.
    pub(super) fn address(&self) -> String {
        self.address.clone()
    }

    /// Passes one request to the KDC and its answer back. Returns only if that fails.
    pub(super) async fn run(&self, kdc: &mut TcpStream) -> io::Error {
        match self.pass(kdc).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn pass(&self, kdc: &mut TcpStream) -> io::Result<Infallible> {
        let mut message = vec![0; MAX_DATAGRAM_BYTES];
        let (length, client) = self.socket.recv_from(&mut message).await?;
        // By TCP the length is before the message (RFC 4120 7.2.2).
        let mut request = (length as u32).to_be_bytes().to_vec();
        request.extend(&message[..length]);
        kdc.write_all(&request).await?;
        let length = kdc.read_u32().await? as usize;
        let Some(answer) = message.get_mut(..length) else {
            let why = format!("an answer of {length} bytes is too long");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        };
        kdc.read_exact(answer).await?;
        self.socket.send_to(answer, client).await?;
        pending().await
    }
}
