//! Two queue pairs on a perfect network: runs of datagrams, limits and closing.

use std::net::SocketAddr;

use super::*;
use crate::rdma::roce::icrc::{self, DatagramHeader, FlowIcrc};

/// Moves packets between two ends until there are none.
fn exchange(ends: &mut [End; 2]) {
    loop {
        let [one, other] = ends;
        let (forth, back) = (one.packets(), other.packets());
        if forth.is_empty() && back.is_empty() {
            return;
        }
        forth.iter().for_each(|packet| other.handle(packet));
        back.iter().for_each(|packet| one.handle(packet));
    }
}

fn pair() -> [End; 2] {
    [End::new(), End::new()]
}

#[test]
fn work_of_every_kind_completes() {
    let mut ends = pair();
    ends[1].post_receives(3, 100_000);
    let buffer = BytesMut::from(&pattern(50_000)[..]);
    let memory = ends[1].queue_pair.memory();
    let region = memory.register(buffer, Access::all()).unwrap();
    let queue_pair = &mut ends[0].queue_pair;
    queue_pair.post(WorkRequest::Read {
        id: WorkId(1),
        from: region.address,
        into: BytesMut::zeroed(50_000),
    });
    queue_pair.post(WorkRequest::Write {
        id: WorkId(2),
        data: vec![9; 40_000].into(),
        to: region.address,
    });
    ends[0].post_send(3, 100_000, Some(region.address.token));
    ends[0].post_send(4, 0, None);
    exchange(&mut ends);
    let completions = ends[0].completions();
    let [
        Completion::Read { buffer, .. },
        Completion::Written { .. },
        Completion::Sent { id },
    ] = &completions[..]
    else {
        panic!("{completions:?}");
    };
    assert_eq!((&buffer[..], *id), (&pattern(50_000)[..], WorkId(4)));
    let completions = ends[1].completions();
    let [
        Completion::Received { message, .. },
        Completion::Received { .. },
    ] = &completions[..]
    else {
        panic!("{completions:?}");
    };
    assert_eq!(message[24..], pattern(100_000 - 24));
    let memory = ends[1].queue_pair.memory();
    let buffer = memory.deregister(region.address.token).unwrap();
    assert_eq!(buffer[..40_000], [9; 40_000]);
    assert_eq!(buffer[40_000..], pattern(50_000)[40_000..]);
}

#[test]
fn limits_and_room_follow_the_settings() {
    let mut end = End::new();
    let limits = end.queue_pair.limits();
    assert_eq!(
        (limits.max_outbound_reads, limits.max_inbound_reads),
        (2, 3)
    );
    assert_eq!(limits.max_transfer, 1 << 31);
    end.post_receives(5, 1);
    end.post_send(1, 1, None);
    let room = end.queue_pair.room();
    assert_eq!(room.sends, limits.max_send_queue - 1);
    assert_eq!(room.receives, limits.max_receive_queue - 5);
}

#[test]
fn a_closed_queue_pair_finishes_its_work_and_takes_no_more() {
    let mut ends = pair();
    ends[1].post_receives(2, 1000);
    ends[0].post_send(1, 1000, None);
    ends[0].queue_pair.close();
    ends[0].post_send(2, 1, None);
    assert!(!ends[0].queue_pair.is_drained());
    exchange(&mut ends);
    assert!(ends[0].queue_pair.is_drained() && ends[1].queue_pair.is_drained());
    assert_eq!(ends[0].summary(), ["sent 1"]);
    ends[0].queue_pair.end(Disconnect::Local);
    assert_eq!(ends[0].summary(), ["flushed 2", "Local"]);
    assert_eq!(ends[1].summary(), ["received 1000"]);
}

#[test]
#[should_panic(expected = "a path MTU of 1500")]
fn other_path_mtus_are_refused() {
    End::with(&QueuePairSettings {
        path_mtu: 1500,
        ..settings()
    });
}

#[test]
#[should_panic(expected = "no Read may be posted")]
fn reads_need_an_initiator_depth() {
    End::with(&QueuePairSettings {
        initiator_depth: 0,
        ..settings()
    })
    .post_read(1, 1);
}

/// Datagrams of a run have the same length, except the last, and each has its own ICRC.
#[test]
fn a_run_of_datagrams_is_what_udp_segment_takes() {
    use Opcode::*;
    let mut end = End::new();
    end.post_receives(1, 1000);
    end.handle(&plain(SendOnly, 0, 1));
    end.post_write(1, 10 * MTU + 2);
    end.post_send(2, 5, None);
    let addresses = ["10.0.0.1:50000", "10.0.0.2:4791"];
    let [from, to] = addresses.map(|address| address.parse::<SocketAddr>().unwrap());
    let header = DatagramHeader::between(from, to).unwrap();
    let mut flow = FlowIcrc::new(&header);
    let mut runs = Vec::new();
    loop {
        let mut out = BytesMut::from(&b"before"[..]);
        let run = end
            .queue_pair
            .poll_datagrams(end.now, &mut flow, 4, &mut out);
        let Some(length) = run else { break };
        let out = out.freeze().slice(6..);
        let datagrams: Vec<_> = out
            .chunks(length)
            .map(|chunk| out.slice_ref(chunk))
            .collect();
        assert!((1..=4).contains(&datagrams.len()));
        runs.push(datagrams);
    }
    let opcodes: Vec<Vec<_>> = runs
        .iter()
        .map(|run| {
            let numbered = run.iter().zip(0..);
            let opcodes = numbered.map(|(datagram, identification)| {
                let header = header.with_identification(identification);
                assert!(icrc::verify(&header, datagram));
                Packet::decode(datagram).unwrap().bth.opcode
            });
            opcodes.collect()
        })
        .collect();
    let expected = [
        // The acknowledgement waits for one run.
        vec![WriteOnly; 4],
        vec![Acknowledge],
        vec![WriteOnly; 4],
        // The last packet of the Write is shorter than the others, and the Send is longer.
        vec![WriteOnly; 3],
        vec![SendOnly],
    ];
    assert_eq!(opcodes, expected);
}
