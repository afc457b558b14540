//! The read depths that both ends announce, in the header of MPA or in the private data.

use std::sync::Arc;

use bytes::BytesMut;
use smbdirect::{
    Access, Config, ConnectError, ConnectFault, Connection, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        work::ProviderErrorKind,
    },
};
use smbdirect_test::within;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::bytes;

/// Without the depths in the answer's private data the client would have 16 reads outstanding, and
/// the server would end the connection over the second.
//= SMBD-6-02 test
//= SMBD-6-03 test
#[tokio::test]
async fn mpa_revision_1_client_keeps_to_the_read_depth_it_received() {
    let mut iwarp_config = IwarpConfig::default();
    iwarp_config.ird = 1;
    let shallow = Iwarp::new(iwarp_config);
    let mut iwarp = IwarpConfig::default();
    iwarp.revision = 1;
    let of_revision_1 = Iwarp::new(iwarp);
    let address = "127.0.0.1:0";
    let config = Config::default();
    let mut listener = Listener::bind(&shallow, address, config.clone())
        .await
        .unwrap();
    let address = listener.local_addr();
    let (client, server) = tokio::join!(
        Connection::connect(&of_revision_1, address, config),
        listener.accept()
    );
    let (client, server) = (client.unwrap(), server.unwrap());
    let data = bytes(1000);
    let source = server
        .register(BytesMut::from(&data[..]), Access::REMOTE_READ)
        .unwrap();
    let readings: Vec<_> = (0..8)
        .map(|_| client.read(&[source.descriptor()], 0, BytesMut::zeroed(1000)))
        .collect();
    for reading in readings {
        assert_eq!(within(reading).await.unwrap(), data);
    }
}

/// A peer of MPA revision 1 can learn the read depths of this end from the private data only.
//= EST-15 test
//= SMBD-6-02 test
//= SMBD-6-03 test
//= SMBD-6-04 test
#[tokio::test]
async fn mpa_revision_1_peer_receives_the_read_depths() {
    const ACCEPTED: u8 = 0x40;
    const REFUSED: u8 = 0x60;
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0";
    let listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    for (private_data, flags, answer) in [
        (
            &[0, 0, 0, 16, 0, 0, 0, 15][..],
            ACCEPTED,
            &[0, 0, 0, 16, 0, 0, 0, 15][..],
        ),
        (
            &[0, 0, 0, 99, 0, 0, 0, 99],
            ACCEPTED,
            &[0, 0, 0, 32, 0, 0, 0, 32],
        ),
        (&[], ACCEPTED, &[]),
        (&[0, 0, 0, 0, 0, 0, 0, 16], REFUSED, &[]),
        (&[0, 0, 0, 16, 0, 0, 0, 0], REFUSED, &[]),
    ] {
        let mut peer = tokio::net::TcpStream::connect(listener.local_addr())
            .await
            .unwrap();
        let mut request = b"MPA ID Req Frame\x40\x01\x00".to_vec();
        request.push(private_data.len() as u8);
        request.extend_from_slice(private_data);
        peer.write_all(&request).await.unwrap();
        let mut reply = vec![0; 20 + answer.len()];
        within(peer.read_exact(&mut reply)).await.unwrap();
        assert_eq!(&reply[..16], b"MPA ID Rep Frame");
        assert_eq!(&reply[16..19], [flags, 1, 0], "{private_data:?}");
        assert_eq!(usize::from(reply[19]), answer.len());
        assert_eq!(&reply[20..], answer);
    }
}

/// A peer refuses the connection over a depth of 0.
//= EST-15 test
//= SMBD-6-01 test
#[tokio::test]
async fn read_depth_of_zero_is_announced_as_one() {
    let mut iwarp = IwarpConfig::default();
    iwarp.ird = 0;
    iwarp.ord = 0;
    let provider = Arc::new(Iwarp::new(iwarp));
    let address = "127.0.0.1:0";
    let listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    let mut peer = tokio::net::TcpStream::connect(listener.local_addr())
        .await
        .unwrap();
    let request = b"MPA ID Req Frame\x40\x01\x00\x08\x00\x00\x00\x10\x00\x00\x00\x10";
    peer.write_all(request).await.unwrap();
    let mut reply = [0; 28];
    within(peer.read_exact(&mut reply)).await.unwrap();
    assert_eq!(reply[20..], [0, 0, 0, 1, 0, 0, 0, 1]);
}

/// MPA revision 2 carries the read depths in its header, and the private data is ignored.
//= SMBD-6-02 test
#[tokio::test]
async fn mpa_revision_2_peer_receives_no_read_depths_in_private_data() {
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let address = "127.0.0.1:0";
    let listener = Listener::bind(&*provider, address, Config::default())
        .await
        .unwrap();
    for private_data in [[0; 8], [0, 0, 0, 16, 0, 0, 0, 16]] {
        let mut peer = tokio::net::TcpStream::connect(listener.local_addr())
            .await
            .unwrap();
        let mut request = b"MPA ID Req Frame\x50\x02\x00\x0c\x00\x10\x00\x10".to_vec();
        request.extend_from_slice(&private_data);
        peer.write_all(&request).await.unwrap();
        let mut reply = vec![0; 24];
        within(peer.read_exact(&mut reply)).await.unwrap();
        assert_eq!(&reply[..20], b"MPA ID Rep Frame\x50\x02\x00\x04");
        assert_eq!(&reply[20..], [0, 16, 0, 16]);
    }
}

//= SMBD-6-01 test
//= SMBD-6-04 test
#[tokio::test]
async fn reply_with_read_depth_zero_fails_the_connect() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut iwarp = IwarpConfig::default();
    iwarp.revision = 1;
    let provider = Iwarp::new(iwarp);
    let connecting = Connection::connect(&provider, address, Config::default());
    let answering = async {
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut request = [0; 28];
        peer.read_exact(&mut request).await.unwrap();
        assert_eq!(request[20..], [0, 0, 0, 32, 0, 0, 0, 32]);
        let reply = b"MPA ID Rep Frame\x40\x01\x00\x08\x00\x00\x00\x10\x00\x00\x00\x00";
        peer.write_all(reply).await.unwrap();
        peer
    };
    let (connected, _peer) = within(async { tokio::join!(connecting, answering) }).await;
    let Err(ConnectError {
        fault: ConnectFault::Provider(error),
        ..
    }) = connected
    else {
        panic!("{connected:?}");
    };
    assert_eq!(error.kind, ProviderErrorKind::Protocol);
}
