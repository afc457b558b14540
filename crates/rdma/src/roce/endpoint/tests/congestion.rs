//! Marks of congestion, and the datagrams that answer them.

use super::*;
use crate::roce::packet::{Opcode, Packet};

/// Returns the datagrams that an end has to send.
fn sent(network: &mut Network, end: usize) -> Vec<(Traffic, Vec<u8>)> {
    let mut out = BytesMut::new();
    let mut sent = Vec::new();
    while let Some(transmit) = network.ends[end].poll_transmit(network.now, 64, &mut out) {
        let datagrams = out.chunks(transmit.segment_size);
        sent.extend(datagrams.map(|datagram| (transmit.traffic, datagram.to_vec())));
        out.clear();
    }
    sent
}

fn opcodes(sent: &[(Traffic, Vec<u8>)]) -> Vec<(Traffic, Opcode)> {
    let opcode = |datagram: &Vec<u8>| Packet::split(datagram).unwrap().0.opcode;
    sent.iter()
        .map(|(traffic, datagram)| (*traffic, opcode(datagram)))
        .collect()
}

//= ROCE-A17.9-01 test
//= ROCE-A17.9-02 test
#[test]
fn a_cnp_leaves_by_itself_and_reaches_the_sender_of_the_marked_packet() {
    use Traffic::{ConnectionManager, QueuePair};
    for seed in 0..2 {
        let mut network = Network::new(seed);
        network.connect();
        assert_eq!(
            opcodes(&sent(&mut network, 0)),
            [(ConnectionManager, Opcode::UdSendOnly)]
        );
        let mut network = Network::new(seed);
        let ids = network.connected();
        network.post(0, ids[0], send(1, vec![1; 5000]));
        let datagrams = sent(&mut network, 0);
        assert!(datagrams.iter().all(|(traffic, _)| *traffic == QueuePair));
        let path = network.path(1);
        for (_, datagram) in &datagrams {
            let taken = network.ends[1].handle_marked_datagram(network.now, path, datagram);
            assert!(taken.is_some());
        }
        let answers = sent(&mut network, 1);
        let cnp = (
            Traffic::CongestionNotification,
            Opcode::CongestionNotification,
        );
        assert_eq!(opcodes(&answers), [cnp, (QueuePair, Opcode::Acknowledge)]);
        let path = network.path(0);
        for (_, datagram) in &answers {
            let taken = network.ends[0].handle_marked_datagram(network.now, path, datagram);
            assert!(taken.is_some());
        }
        let congestion = network.ends[0].congestion(ids[0]).unwrap();
        assert_eq!(congestion.notifications_received, 1);
        // The acknowledgement has a mark, too, but the CNP does not count.
        assert_eq!(congestion.marked, 1);
        let congestion = network.ends[1].congestion(ids[1]).unwrap();
        assert_eq!(
            (congestion.marked, congestion.notifications_sent),
            (datagrams.len() as u64, 1)
        );
        // A datagram that is not for the queue pair causes none.
        let (_, mut damaged) = datagrams[0].clone();
        *damaged.last_mut().unwrap() ^= 1;
        network.now += Duration::from_millis(1);
        let path = network.path(1);
        assert_eq!(
            network.ends[1].handle_marked_datagram(network.now, path, &damaged),
            None
        );
        let still = network.ends[1].congestion(ids[1]).unwrap();
        assert_eq!(still, congestion);
    }
}

#[test]
fn only_packets_of_queue_pairs_can_be_marked() {
    for (traffic, is_ecn_capable) in [
        (Traffic::QueuePair, true),
        (Traffic::CongestionNotification, false),
        (Traffic::ConnectionManager, false),
    ] {
        assert_eq!(traffic.is_ecn_capable(), is_ecn_capable, "{traffic:?}");
    }
}
