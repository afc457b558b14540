//! An echo service on the TDI interface, for whoever knows TdiBuildSend:
//!
//! ```sh
//! cargo run -p smbdirect --example tdi_echo                          # both ends
//! cargo run -p smbdirect --example tdi_echo -- listen 127.0.0.1:5445
//! cargo run -p smbdirect --example tdi_echo -- connect 127.0.0.1:5445
//! ```
//!
//! | TdiBuildSend | here |
//! |---|---|
//! | `Irp`, `DevObj` | nothing: the call submits the request |
//! | `FileObj` | the endpoint that `send` is called on |
//! | `CompRoutine`, `Contxt` | the future: await it, or drop it, which is a routine of NULL |
//! | `MdlAddr`, `SendLen` | the buffer, which knows its length; several in a row are one `Message` |
//! | `InFlags` | the flags |

use std::{
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::BytesMut;
use smbdirect::{
    rdma::iwarp::{Iwarp, IwarpConfig},
    tdi::{
        Address, ChainedTsdu, Client, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState,
        Offer, ReceiveFlags, SendFlags, Share, Status, Transport, TransportSettings,
    },
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
            ask(&transport, service.local_address()).await?;
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

/// The handlers of the listening address: TDI_SET_EVENT_HANDLER, once for all events. An endpoint
/// lives as long as somebody has a handle of it.
#[derive(Default)]
struct Echo(Mutex<Vec<Endpoint>>);

impl Client for Echo {
    /// ClientEventConnect: an endpoint for the peer is the answer "accept it".
    fn connect(&self, address: &Address, _offer: &Offer) -> ConnectAnswer {
        let mut endpoints = self.0.lock().expect("no panic under it");
        // One whose connection is over is used again.
        let mut known = endpoints.iter();
        if let Some(idle) = known.find(|known| known.state() == EndpointState::Associated) {
            return ConnectAnswer::Accept(idle.clone());
        }
        let endpoint = address.open_endpoint(());
        endpoints.push(endpoint.clone());
        ConnectAnswer::Accept(endpoint)
    }

    /// Without this, TSDUs are indicated in pieces, to `receive`.
    fn takes_chained(&self) -> bool {
        true
    }

    /// ClientEventChainedReceive: a whole TSDU. Its bytes are sent back without being copied.
    fn chained_receive(&self, endpoint: &Endpoint, tsdu: ChainedTsdu) -> Result<(), ChainedTsdu> {
        // A handler may submit requests, and waits for none.
        drop(endpoint.send(tsdu.into_message(), SendFlags::empty()));
        Ok(())
    }
}

async fn serve(transport: &Transport, address: SocketAddr) -> Result<Address, Status> {
    let address = transport.open_address(address, Share::Exclusive).await?;
    address.set_client(Some(Arc::new(Echo::default())));
    println!("listening on {}", address.local_address());
    Ok(address)
}

async fn ask(transport: &Transport, service: SocketAddr) -> Result<(), Status> {
    // Without handlers on its address an endpoint receives by requests alone.
    let local = transport.open_any_address();
    let endpoint = local.open_endpoint(());
    endpoint.connect(service, None).await?;
    println!("TSDUs of up to {} bytes", endpoint.max_tsdu()?);

    // Submitted by the call, and awaited later: the order of calls is the order of TSDUs.
    let plain = endpoint.send("a TSDU", SendFlags::empty());
    // The completion gives the buffer back, and says how many bytes of it were taken.
    let plain = plain.await;
    assert_eq!((plain.status, plain.information), (Status::SUCCESS, 6));
    assert_eq!(receive(&endpoint).await?, "a TSDU");

    // Several sends, one TSDU: it goes on while PARTIAL is set.
    endpoint.send("in ", SendFlags::PARTIAL).await.result()?;
    endpoint.send("par", SendFlags::PARTIAL).await.result()?;
    endpoint.send("ts", SendFlags::empty()).await.result()?;
    assert_eq!(receive(&endpoint).await?, "in parts");

    // Ahead of normal sends that wait, if any do. Nobody waits for this completion: CompRoutine
    // is NULL, and the request is done all the same.
    drop(endpoint.send("urgent", SendFlags::EXPEDITED));
    assert_eq!(receive(&endpoint).await?, "urgent");

    // A hint, which changes nothing of the TSDU.
    let flags = SendFlags::NO_RESPONSE_EXPECTED;
    endpoint.send("no hurry", flags).await.result()?;
    assert_eq!(receive(&endpoint).await?, "no hurry");

    // NON_BLOCKING, by a call that has the outcome at once: bytes taken, or STATUS_DEVICE_NOT_READY
    // where there is no room; `send_possible` waits for some.
    let mut rest = "now or never";
    while !rest.is_empty() {
        match endpoint.try_send(rest, SendFlags::empty()) {
            Ok(taken) => rest = &rest[taken..],
            Err(Status::DEVICE_NOT_READY) => drop(endpoint.send_possible().await?),
            Err(status) => return Err(status),
        }
    }
    assert_eq!(receive(&endpoint).await?, "now or never");

    // SMB Direct has no TSDU of no bytes, as the service flag NO_ZERO_LENGTH says.
    let empty = endpoint.send("", SendFlags::empty()).await;
    assert_eq!(empty.status, Status::INVALID_PARAMETER);

    endpoint.disconnect(DisconnectFlags::RELEASE, None).await?;
    println!("all came back");
    Ok(())
}

/// TdiBuildReceive: a buffer to be filled, up to the end of a TSDU.
async fn receive(endpoint: &Endpoint) -> Result<String, Status> {
    let buffer = BytesMut::zeroed(100);
    let received = endpoint.receive(buffer, ReceiveFlags::empty()).await;
    let data = received.into_data()?;
    println!("{data:?}");
    Ok(String::from_utf8_lossy(&data).into_owned())
}
