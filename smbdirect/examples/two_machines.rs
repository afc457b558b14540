//! Sends a message, and bulk data by RDMA, between two machines over TCP:
//!
//! ```sh
//! cargo run -p smbdirect --example two_machines -- listen 127.0.0.1:5445
//! cargo run -p smbdirect --example two_machines -- connect 127.0.0.1:5445
//! ```
//!
//! The connecting side registers a buffer and sends its descriptor. The message format is up to
//! the program; here it is the 16 bytes of the descriptor. The listening side fills the buffer by
//! RDMA Write, and then sends a message that invalidates the registration.

use std::{error::Error, sync::Arc};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener,
    rdma::iwarp::{Iwarp, IwarpConfig},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    match &arguments[..] {
        [role, address] if role == "listen" => {
            let mut listener =
                Listener::bind(&*provider, address.parse()?, Config::default()).await?;
            println!("listening on {}", listener.local_address());
            serve(listener.accept().await?).await
        }
        [role, address] if role == "connect" => {
            let address = address.parse()?;
            ask(Connection::connect(&*provider, address, Config::default()).await?).await
        }
        _ => Err("give `listen ADDRESS:PORT` or `connect ADDRESS:PORT`".into()),
    }
}

pub(crate) async fn ask(connection: Connection) -> Result<(), Box<dyn Error>> {
    let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let region = connection.register(BytesMut::zeroed(1 << 20), access)?;

    let mut request = BytesMut::new();
    region.descriptor().encode(&mut request);
    connection.send(request)?.await?;

    let answer = connection.recv().await?;
    // This message has ended the peer's access to the buffer.
    assert_eq!(answer.invalidated_token(), Some(region.token()));
    let buffer = region.deregister().await?;
    println!(
        "{:?}: {} bytes, all {:#x}",
        answer.into_bytes(),
        buffer.len(),
        buffer[0]
    );
    connection.close().await?;
    Ok(())
}

pub(crate) async fn serve(connection: Connection) -> Result<(), Box<dyn Error>> {
    let request = connection.recv().await?.into_bytes();
    let descriptor = BufferDescriptorV1::decode(&request)?;

    let data = Bytes::from(vec![0x5a; descriptor.length as usize]);
    // No need to await the write here: messages sent after this call arrive after the data.
    let writing = connection.write(&[descriptor], 0, data);
    connection
        .send_and_invalidate("your buffer is full", descriptor.token.into())?
        .await?;
    writing.await?;

    println!("the peer is gone: {}", connection.closed().await);
    Ok(())
}
