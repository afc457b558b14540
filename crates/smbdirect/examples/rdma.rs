//! Remote memory, between two machines, by iWARP over TCP or by RoCE over UDP:
//!
//! ```sh
//! cargo run --example rdma -- listen 127.0.0.1:5445
//! cargo run --example rdma -- connect 127.0.0.1:5445
//! ```
//!
//! With `roce` as the third argument both ends use RoCE.
//!
//! The listening end registers a buffer and sends its descriptor. The message format is up to the program; here
//! it is the 16 bytes of the descriptor. The connecting end reads the buffer by RDMA Read, writes half of it by
//! RDMA Write, and sends a message that ends the registration. The examples in C and Python do the same, so each
//! end works with any of them; the connecting end also uses the memory of `smbdirect listen --memory`.

use std::error::Error;

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, Listener, TransferFault,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};

/// Length of the buffer in bytes.
const LENGTH: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (role, address, provider): (_, _, Box<dyn Provider>) = match &arguments[..] {
        [role, address] => (role, address, Box::new(Iwarp::new(IwarpConfig::default()))),
        [role, address, kind] if kind == "roce" => {
            (role, address, Box::new(Roce::new(RoceConfig::default())))
        }
        _ => return Err("give `listen` or `connect`, ADDRESS:PORT, and `roce` for RoCE".into()),
    };
    if role == "listen" {
        let mut listener = Listener::bind(&*provider, address, Config::default()).await?;
        println!("listening on {}", listener.local_addr());
        serve(listener.accept().await?).await
    } else {
        ask(Connection::connect(&*provider, address, Config::default()).await?).await
    }
}

/// Registers a buffer, and waits until the peer has used it.
pub(crate) async fn serve(connection: Connection) -> Result<(), Box<dyn Error>> {
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let region = connection.register(BytesMut::from(&[b'a'; LENGTH][..]), access)?;
    let mut descriptor = BytesMut::new();
    region.descriptor().encode(&mut descriptor);
    connection.send(descriptor)?.await?;

    // The data of a write is in place before the message that follows it arrives. This message has also
    // ended the peer's access to the buffer.
    let done = connection.recv().await?;
    assert_eq!(done.invalidated_token(), Some(region.token()));
    let buffer = region.deregister().await?;
    let (first, second) = buffer.split_at(LENGTH / 2);
    assert!(first.iter().all(|&byte| byte == b'a') && second.iter().all(|&byte| byte == b'b'));
    println!("the peer wrote half of {LENGTH} bytes and ended its access");
    connection.closed().await;
    Ok(())
}

/// Reads and writes the memory of the peer.
pub(crate) async fn ask(connection: Connection) -> Result<(), Box<dyn Error>> {
    let descriptor = BufferDescriptorV1::from_bytes(&connection.recv().await?.into_bytes())?;
    let (length, half) = (descriptor.length as usize, descriptor.length as usize / 2);
    let memory = [descriptor];

    let before = connection
        .read(&memory, 0, BytesMut::zeroed(length))
        .await?;
    let written = Bytes::from(vec![b'b'; length - half]);
    // No need to await the write here: the read and the message are sent after it, so they take effect after
    // it too.
    let writing = connection.write(&memory, half as u64, written.clone());
    let after = connection
        .read(&memory, 0, BytesMut::zeroed(length))
        .await?;
    assert!(after[..half] == before[..half] && after[half..] == written);

    // Beyond the descriptor the library refuses a transfer, and the connection lives on.
    let refused = connection.read(&memory, 1, BytesMut::zeroed(length)).await;
    let fault = refused.err().map(|error| error.fault);
    assert!(fault.is_some_and(|fault| !matches!(fault, TransferFault::Connection(_))));

    connection
        .send_and_invalidate("done", descriptor.token.into())?
        .await?;
    writing.await?;
    connection.close().await?;
    println!("read {length} bytes and wrote {}", length - half);
    Ok(())
}
