//! An echo service on the TDI interface, for readers who know TdiBuildSend:
//!
//! ```sh
//! cargo run -p smbdirect-tdi --example tdi_echo                          # both ends
//! cargo run -p smbdirect-tdi --example tdi_echo -- listen 127.0.0.1:5445
//! cargo run -p smbdirect-tdi --example tdi_echo -- connect 127.0.0.1:5445
//! ```
//!
//! | TdiBuildSend | here |
//! |---|---|
//! | `Irp`, `DevObj` | not needed: the call submits the request |
//! | `FileObj` | the endpoint that `send` is called on |
//! | `CompRoutine`, `Contxt` | the future: await it, or drop it, which equals a NULL routine |
//! | `MdlAddr`, `SendLen` | the buffer with its length; a chain of buffers is one `Message` |
//! | `InFlags` | the flags |

use std::{
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::BytesMut;
use smbdirect::rdma::iwarp::{Iwarp, IwarpConfig};
use smbdirect_tdi::{
    Address, ChainedTsdu, Client, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState, Offer,
    ReceiveFlags, SendFlags, Share, Status, Transport, TransportSettings,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
}

pub(crate) async fn run(arguments: &[&str]) -> Result<(), Box<dyn Error>> {
    // The transport device.
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let transport = Transport::new(provider, TransportSettings::default())?;
    match *arguments {
        [] => {
            let service = serve(&transport, "127.0.0.1:0".parse()?).await?;
            ask(&transport, service.local_addr()).await?;
        }
        ["listen", address] => {
            let _service = serve(&transport, address.parse()?).await?;
            std::future::pending::<()>().await;
        }
        ["connect", address] => ask(&transport, address.parse()?).await?,
        _ => return Err("give nothing, `listen ADDRESS:PORT` or `connect ADDRESS:PORT`".into()),
    }
    Ok(())
}

/// The handlers of the listening address, as TDI_SET_EVENT_HANDLER sets them, here all at once. The
/// list keeps the endpoints open: an endpoint closes when its last handle is dropped.
#[derive(Default)]
struct Echo(Mutex<Vec<Endpoint>>);

impl Client for Echo {
    /// ClientEventConnect. Returning an endpoint accepts the peer.
    fn connect(&self, address: &Address, _offer: &Offer) -> ConnectAnswer {
        let mut endpoints = self
            .0
            .lock()
            .expect("no thread panics while it holds the lock");
        // Reuses an endpoint whose connection has ended.
        let mut known = endpoints.iter();
        if let Some(idle) = known.find(|known| known.state() == EndpointState::Associated) {
            return ConnectAnswer::Accept(idle.clone());
        }
        let endpoint = address.open_endpoint(());
        endpoints.push(endpoint.clone());
        ConnectAnswer::Accept(endpoint)
    }

    /// Asks for whole TSDUs. Without it, TSDUs are indicated in pieces, to `receive`.
    fn takes_chained(&self) -> bool {
        true
    }

    /// ClientEventChainedReceive. Sends the TSDU back without copying its bytes.
    fn chained_receive(&self, endpoint: &Endpoint, tsdu: ChainedTsdu) -> Result<(), ChainedTsdu> {
        // A handler may submit requests, but must not wait for them.
        drop(endpoint.send(tsdu.into_message(), SendFlags::empty()));
        Ok(())
    }
}

pub(crate) async fn serve(transport: &Transport, address: SocketAddr) -> Result<Address, Status> {
    let address = transport.open_address(address, Share::Exclusive).await?;
    address.set_client(Some(Arc::new(Echo::default())));
    println!("listening on {}", address.local_addr());
    Ok(address)
}

async fn ask(transport: &Transport, service: SocketAddr) -> Result<(), Status> {
    // Without handlers on its address, an endpoint receives only by receive requests.
    let local = transport.open_any_address();
    let endpoint = local.open_endpoint(());
    endpoint.connect(service, None).await?;
    println!("TSDUs of up to {} bytes", endpoint.max_tsdu()?);

    // The call submits the send: TSDUs leave in the order of calls, not of awaits.
    let plain = endpoint.send("a TSDU", SendFlags::empty());
    // The completion returns the buffer and the number of bytes that were taken from it.
    let plain = plain.await;
    assert_eq!((plain.status, plain.information), (Status::SUCCESS, 6));
    assert_eq!(receive(&endpoint).await?, "a TSDU");

    // Sends with PARTIAL and the next send without it form one TSDU.
    endpoint.send("in ", SendFlags::PARTIAL).await.result()?;
    endpoint.send("par", SendFlags::PARTIAL).await.result()?;
    endpoint.send("ts", SendFlags::empty()).await.result()?;
    assert_eq!(receive(&endpoint).await?, "in parts");

    // An expedited send overtakes normal sends that wait. Dropping the future equals a NULL
    // CompRoutine: the send takes place all the same.
    drop(endpoint.send("urgent", SendFlags::EXPEDITED));
    assert_eq!(receive(&endpoint).await?, "urgent");

    // NO_RESPONSE_EXPECTED is a hint. The TSDU is the same with and without it.
    let flags = SendFlags::NO_RESPONSE_EXPECTED;
    endpoint.send("no hurry", flags).await.result()?;
    assert_eq!(receive(&endpoint).await?, "no hurry");

    // `try_send` is a send with NON_BLOCKING. It returns the number of bytes taken, or
    // STATUS_DEVICE_NOT_READY if there is no room; `send_possible` waits for room.
    let mut rest = "now or never";
    while !rest.is_empty() {
        match endpoint.try_send(rest, SendFlags::empty()) {
            Ok(taken) => rest = &rest[taken..],
            Err(Status::DEVICE_NOT_READY) => drop(endpoint.send_possible().await?),
            Err(status) => return Err(status),
        }
    }
    assert_eq!(receive(&endpoint).await?, "now or never");

    // SMB Direct has no empty TSDU, as the service flag NO_ZERO_LENGTH says.
    let empty = endpoint.send("", SendFlags::empty()).await;
    assert_eq!(empty.status, Status::INVALID_PARAMETER);

    // It cannot suppress the peer's event of the disconnect either, which this flag is for.
    let farewell = endpoint.send("bye", SendFlags::AND_DISCONNECT).await;
    assert_eq!(farewell.status, Status::NOT_SUPPORTED);

    endpoint.disconnect(DisconnectFlags::RELEASE, None).await?;
    println!("all came back");
    Ok(())
}

/// TdiBuildReceive. Fills a buffer up to the end of a TSDU.
async fn receive(endpoint: &Endpoint) -> Result<String, Status> {
    let buffer = BytesMut::zeroed(100);
    let received = endpoint.receive(buffer, ReceiveFlags::empty()).await;
    let data = received.into_data()?;
    println!("{data:?}");
    Ok(String::from_utf8_lossy(&data).into_owned())
}
