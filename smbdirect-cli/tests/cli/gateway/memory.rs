//! What is in hand is bounded by `--memory`. Where it is spent, clients wait and nothing fails.

use super::{
    Kind::SmbDirect,
    ends::{Memory, described, negotiate, patient, received, submit},
    through_with,
};
use crate::{messages::*, support::noise};

const MIB: usize = 1 << 20;

/// The least memory for one connection with SMB Direct on both sides.
const LEAST_FOR_BOTH: &str = "53M";

#[tokio::test(flavor = "multi_thread")]
async fn the_least_memory_is_enough_for_a_write_by_rdma_on_both_sides() {
    let arguments = ["--memory", LEAST_FOR_BOTH];
    let (_gateway, mut client, mut server) =
        through_with(SmbDirect, SmbDirect, &arguments, patient()).await;
    negotiate(&mut client, &mut server, 0x0311).await;
    let connection = client.connection();
    let data = noise(8 * MIB, 1);
    let memory = Memory::holding(connection, &data, 2);
    for id in 0..3 {
        let request = write_by_rdma(id, 0, 8 << 20, V1, &memory.descriptors());
        submit(connection, request);
    }
    for id in 0..3 {
        let request = server.receive().await.unwrap();
        assert_eq!(u64_at(&request, 24), id);
        let (_, memory) = described(&request);
        let into = bytes::BytesMut::zeroed(8 * MIB);
        let reading = server.connection().read(&memory, 0, into);
        assert!(super::soon(reading).await.unwrap() == data);
        server.send(&write_answer(id, 8 << 20)).await;
        let expected = (write_answer(id, 8 << 20), None);
        assert_eq!(received(connection).await, expected);
    }
}
