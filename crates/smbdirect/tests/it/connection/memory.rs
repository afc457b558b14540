//! Registered memory, reads and writes.

use std::sync::Arc;

use bytes::BytesMut;
use smbdirect::{
    Access, MemoryRegion, TransferFault,
    rdma::{loopback::Loopback, memory::RegisterFault, provider::Provider},
};
use smbdirect_test::within;

use super::{Pair, bytes, pair};

over_every_provider! {
    reads_writes_and_invalidation
    several_buffers_are_one_range
}

//= SMBD-3.1.4.3-05 test
//= SMBD-3.1.4.4-01 test
async fn reads_writes_and_invalidation(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let data = bytes(3 << 20);
    let source = client
        .register(BytesMut::from(&data[..]), Access::REMOTE_READ)
        .unwrap();
    let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let sink = client.register(BytesMut::zeroed(3 << 20), access).unwrap();
    let into = BytesMut::zeroed(3 << 20);
    let read = within(server.read(&[source.descriptor()], 0, into))
        .await
        .unwrap();
    assert_eq!(read, data);
    let writing = server.write(&[sink.descriptor()], 0, data.clone());
    drop(server.send_and_invalidate("done", sink.token()).unwrap());
    let done = within(client.recv()).await.unwrap();
    assert_eq!(done.invalidated_token(), Some(sink.token()));
    assert_eq!(within(sink.deregister()).await.unwrap(), data);
    within(writing).await.unwrap();
    let beyond = within(server.read(&[source.descriptor()], 1, BytesMut::zeroed(3 << 20))).await;
    let error = beyond.unwrap_err();
    assert!(matches!(
        error.fault,
        TransferFault::BeyondDescriptors { .. }
    ));
    assert_eq!(error.buffer.unwrap().len(), 3 << 20);
    assert_eq!(within(source.deregister()).await.unwrap(), data);
    assert_eq!(client.stats().regions, 0);
}

//= SMBD-3.1.4.3-02 test
//= SMBD-3.1.4.3-05 test
//= SMBD-3.1.4.4-01 test
async fn several_buffers_are_one_range(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let data = bytes(100_000);
    let lengths = [1, 0, 70_000, 29_998, 1];
    let (mut parts, mut rest) = (Vec::new(), BytesMut::from(&data[..]));
    for length in lengths {
        parts.push(rest.split_to(length));
    }
    let regions = client.register_all(parts, Access::REMOTE_READ).unwrap();
    let descriptors: Vec<_> = regions.iter().map(MemoryRegion::descriptor).collect();
    assert_eq!(descriptors.len(), lengths.len());
    for (descriptor, length) in descriptors.iter().zip(lengths) {
        assert_eq!(descriptor.length as usize, length);
    }
    let all = within(server.read(&descriptors, 0, BytesMut::zeroed(100_000))).await;
    assert_eq!(all.unwrap(), data);
    let across = within(server.read(&descriptors, 69_999, BytesMut::zeroed(10))).await;
    assert_eq!(across.unwrap(), data[69_999..70_009]);
    assert_eq!(client.stats().regions, 5);
    let mut back = BytesMut::new();
    for region in regions {
        back.unsplit(within(region.deregister()).await.unwrap());
    }
    assert_eq!(
        (back, client.stats().regions),
        (BytesMut::from(&data[..]), 0)
    );
    assert!(client.register_all([], Access::all()).unwrap().is_empty());
}

//= SMBD-3.1.4.3-03 test
#[cfg(target_pointer_width = "64")]
#[tokio::test]
async fn failed_registration_returns_buffer_and_reason() {
    let Pair { client, .. } = pair(Arc::new(Loopback::new())).await;
    // Address space only: the pages are never touched.
    let buffer = BytesMut::zeroed(1 << 32);
    let error = client.register(buffer, Access::REMOTE_WRITE).unwrap_err();
    assert_eq!(error.reason, RegisterFault::TooLong);
    assert_eq!(error.buffer.len(), 1 << 32);
    assert_eq!(client.stats().regions, 0);
}
