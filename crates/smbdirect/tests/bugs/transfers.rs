//! Bugs of long messages and of transfers, tested with the whole stack over iWARP on 127.0.0.1 and in one
//! process.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Config, Connection, MemoryRegion, Message, SendError, Settings, TransferFault,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
    },
};

use super::ends::{Ends, assert_nothing_outstanding, bytes, iwarp, listen, providers, region};
use crate::peer::within;

/// A message used the memory of the receives it arrived in. Expected: the longest message arrives
/// with the smallest legal receive buffer, even if the application takes no message before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_07_longest_message_in_the_smallest_buffer() {
    let mut settings = Settings::default();
    settings.send_credit_target = 4;
    settings.receive_credit_max = 4;
    settings.receive_buffer = Some(6 * 8192);
    for provider in providers() {
        let ends = Ends::new(&provider, settings.clone()).await;
        let longest = bytes(settings.max_fragmented_receive_size as usize, 1);
        let sending = ends.client.send(longest.clone()).unwrap();
        within(sending).await.unwrap();
        let message = within(ends.server.recv()).await.unwrap().into_bytes();
        assert!(message == longest);
    }
}

/// A message had more parts than a work request can hold, and the queue pair refused or never
/// completed it. Expected: a message of any number of parts is sent with any provider.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_12_message_of_many_buffers() {
    for provider in providers() {
        for max_send_size in [128, 1364, 8136] {
            let mut settings = Settings::default();
            settings.max_send_size = max_send_size;
            let ends = Ends::new(&provider, settings).await;
            for (pieces, length) in [(1, 5000), (2, 4000), (7, 999), (1000, 13), (5000, 1)] {
                let whole = bytes(pieces * length, pieces as u8);
                let message: Message = (0..pieces)
                    .flat_map(|piece| {
                        let start = piece * length;
                        [Bytes::new(), whole.slice(start..start + length)]
                    })
                    .collect();
                within(ends.client.send(message).unwrap()).await.unwrap();
                let received = within(ends.server.recv()).await.unwrap();
                assert!(received.into_bytes() == whole, "{pieces} of {length}");
            }
        }
    }
}

/// A write had the length of the descriptor, not of the data, so files whose size was not a
/// multiple of 128 KiB were corrupted. Expected: the write has the length of the data, and the
/// memory after it is unchanged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_13_write_of_the_descriptors_length() {
    const KIB: usize = 1024;
    for provider in providers() {
        let ends = Ends::new(&provider, Settings::default()).await;
        let before = bytes(256 * KIB, 0);
        for length in [
            0,
            1,
            127 * KIB,
            128 * KIB - 1,
            128 * KIB,
            128 * KIB + 1,
            129 * KIB,
        ] {
            let target = region(&ends.client, &before);
            let data = bytes(length, 0xff);
            let descriptors = [target.descriptor()];
            let written = ends.server.write(&descriptors, 0, data.clone());
            drop(ends.server.send("done").unwrap());
            within(ends.client.recv()).await.unwrap();
            within(written).await.unwrap();

            let into = BytesMut::zeroed(length);
            let read = within(ends.server.read(&descriptors, 0, into)).await;
            assert!(read.unwrap() == data, "{length} bytes read back");
            let after = within(target.deregister()).await.unwrap();
            assert!(after[..length] == data, "{length} bytes written");
            assert!(after[length..] == before[length..], "{length} and more");
        }
    }
}

/// Only the first descriptor of a request was used, so longer transfers failed. Expected: transfers
/// use any number of descriptors, including those of the sizes that Windows sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_14_more_than_one_descriptor() {
    for provider in providers() {
        let ends = Ends::new(&provider, Settings::default()).await;
        for lengths in [
            &[0xf_ffc0, 0x40][..],
            &[0x40, 0xf_ffc0],
            &[1, 0, 2, 0, 3],
            &[5000; 40],
            &[524_288, 524_288, 1],
        ] {
            let total = lengths.iter().sum::<usize>();
            let before = bytes(total, 1);
            let mut rest = &before[..];
            let regions: Vec<_> = lengths
                .iter()
                .map(|&length| {
                    let (content, behind) = rest.split_at(length);
                    rest = behind;
                    region(&ends.client, content)
                })
                .collect();
            let descriptors: Vec<_> = regions.iter().map(MemoryRegion::descriptor).collect();
            let read = |offset: usize, length| {
                let into = BytesMut::zeroed(length);
                within(ends.server.read(&descriptors, offset as u64, into))
            };
            assert!(read(0, total).await.unwrap() == before);
            for offset in [1, lengths[0] - 1, lengths[0], total - 1] {
                let length = (total - offset).min(3);
                let part = read(offset, length).await.unwrap();
                assert_eq!(part, before[offset..offset + length], "{lengths:?}");
            }
            let beyond = read(1, total).await.unwrap_err();
            assert!(matches!(
                beyond.fault,
                TransferFault::BeyondDescriptors { .. }
            ));

            let data = bytes(total - 1, 2);
            let written = ends.server.write(&descriptors, 1, data.clone());
            drop(ends.server.send("done").unwrap());
            within(ends.client.recv()).await.unwrap();
            within(written).await.unwrap();
            let mut after = Vec::new();
            for region in regions {
                after.extend(within(region.deregister()).await.unwrap());
            }
            assert!(after[1..] == data && after[0] == before[0], "{lengths:?}");
        }
    }
}

/// The limit of SMB2 was used for SMB Direct. Expected: messages are limited by MaxFragmentedSize,
/// and transfers of any length are split by the smaller MaxReadWriteSize of the two ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_15_the_wrong_limit() {
    let mut small = Settings::default();
    small.max_read_write_size = 65_536;
    small.max_fragmented_receive_size = 131_072;
    for provider in [iwarp(), Arc::new(Loopback::new())] {
        let mut listener = listen(&provider, small.clone()).await;
        let address = listener.local_addr();
        let (client, server) = within(async {
            tokio::join!(
                Connection::connect(&*provider, address, Config::default()),
                listener.accept()
            )
        })
        .await;
        let (client, server) = (client.unwrap(), server.unwrap());
        for end in [&client, &server] {
            assert_eq!(end.negotiated().max_read_write_size, 65_536);
        }
        let longest = bytes(131_072, 3);
        drop(client.send(longest.clone()).unwrap());
        assert!(within(server.recv()).await.unwrap().into_bytes() == longest);
        let too_large = client.send(bytes(131_073, 3)).unwrap_err();
        assert!(matches!(too_large, SendError::TooLong { max: 131_072, .. }));

        let data = bytes(1 << 20, 4);
        for (one, other) in [(&client, &server), (&server, &client)] {
            let target = region(other, &vec![0; 1 << 20]);
            let descriptors = [target.descriptor()];
            within(one.write(&descriptors, 0, data.clone()))
                .await
                .unwrap();
            let into = BytesMut::zeroed(1 << 20);
            let read = within(one.read(&descriptors, 0, into)).await.unwrap();
            assert!(read == data);
            assert_eq!((one.stats().writes, one.stats().reads), (16, 16));
            within(target.deregister()).await.unwrap();
        }
    }
}

/// More reads and writes were posted than the send queue or the peer's read depth holds. Expected:
/// hundreds of them are queued and complete with any depth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_16_flood_of_reads_and_writes() {
    let mut shallow = IwarpConfig::default();
    shallow.ird = 1;
    shallow.ord = 1;
    let mut providers = providers();
    providers.push(Arc::new(Iwarp::new(shallow)));
    for provider in providers {
        let ends = Ends::new(&provider, Settings::default()).await;
        const COUNT: usize = 300;
        const SIZE: usize = 6000;
        let source = region(&ends.client, &bytes(COUNT * SIZE, 5));
        let target = region(&ends.client, &vec![0; COUNT * SIZE]);
        let data = bytes(COUNT * SIZE, 6);
        let mut begun = Vec::new();
        for at in (0..COUNT).map(|number| number * SIZE) {
            let into = BytesMut::zeroed(SIZE);
            let reading = ends.server.read(&[source.descriptor()], at as u64, into);
            let piece = data.slice(at..at + SIZE);
            let writing = ends.server.write(&[target.descriptor()], at as u64, piece);
            drop(ends.server.send(vec![7; 100]).unwrap());
            begun.push((at, reading, writing));
        }
        let expected = bytes(COUNT * SIZE, 5);
        for (at, reading, writing) in begun {
            assert!(within(reading).await.unwrap() == expected[at..at + SIZE]);
            within(writing).await.unwrap();
        }
        for _ in 0..COUNT {
            assert_eq!(within(ends.client.recv()).await.unwrap().len(), 100);
        }
        assert!(within(target.deregister()).await.unwrap() == data);
        drop(source);
        within(ends.client.close()).await.unwrap();
        within(ends.server.closed()).await;
        assert_nothing_outstanding(&ends.client);
        assert_nothing_outstanding(&ends.server);
    }
}
