//! A message, and bulk data by RDMA, between two machines, over TCP:
//!
//! ```sh
//! cargo run -p smbdirect --example two_machines -- listen 127.0.0.1:5445
//! cargo run -p smbdirect --example two_machines -- connect 127.0.0.1:5445
//! ```
//!
//! The connecting side registers a buffer and sends its descriptor, in a message format of its
//! own: here the 16 bytes of the descriptor and nothing else. The listening side fills the buffer
//! by RDMA Write, and ends the registration with the message that says so.

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
                Listener::bind(provider, address.parse()?, Config::default()).await?;
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

async fn ask(connection: Connection) -> Result<(), Box<dyn Error>> {
    let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let region = connection.register(BytesMut::zeroed(1 << 20), access)?;

    let mut request = BytesMut::new();
    region.descriptor().encode(&mut request);
    connection.send(request)?.await?;

    let answer = connection.recv().await?;
    // The peer gave up its access with this message, so the buffer is ours alone again.
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

async fn serve(connection: Connection) -> Result<(), Box<dyn Error>> {
    let request = connection.recv().await?.into_bytes();
    let descriptor = BufferDescriptorV1::decode(&request)?;

    let data = Bytes::from(vec![0x5a; descriptor.length as usize]);
    // Not awaited: whatever is sent after this call arrives behind the data.
    let writing = connection.write(data, &[descriptor], 0);
    connection
        .send_and_invalidate("your buffer is full", descriptor.token.into())?
        .await?;
    writing.await?;

    println!("the peer is gone: {}", connection.closed().await);
    Ok(())
}
