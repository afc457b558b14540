//! Two queue pairs on a perfect network: runs of datagrams, limits and closing.

use std::net::SocketAddr;

use super::*;
use crate::roce::icrc::{self, DatagramHeader, FlowIcrc};

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

/// Returns the opcodes of the packets of each run of at most `max_datagrams`.
fn runs(end: &mut End, max_datagrams: usize) -> Vec<Vec<Opcode>> {
    let addresses = ["10.0.0.1:50000", "10.0.0.2:4791"];
    let [from, to] = addresses.map(|address| address.parse::<SocketAddr>().unwrap());
    let header = DatagramHeader::between(from, to).unwrap();
    let mut flow = FlowIcrc::new(&header);
    let mut runs = Vec::new();
    loop {
        // The bytes in the buffer before the run do not count.
        let before = 65_000;
        let mut out = BytesMut::zeroed(before);
        let queue_pair = &mut end.queue_pair;
        let run = queue_pair.poll_datagrams(end.now, &mut flow, max_datagrams, &mut out);
        let Some(length) = run else {
            return runs;
        };
        let out = out.freeze().slice(before..);
        let datagrams = out.chunks(length).zip(0..);
        let opcodes = datagrams.map(|(datagram, identification)| {
            let header = header.with_identification(identification);
            let datagram = out.slice_ref(datagram);
            assert!(icrc::verify(&header, &datagram));
            Packet::decode(&datagram).unwrap().bth.opcode
        });
        let opcodes: Vec<_> = opcodes.collect();
        assert!((1..=max_datagrams).contains(&opcodes.len()));
        runs.push(opcodes);
    }
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
    let expected = [
        // The acknowledgement waits for one run.
        vec![WriteOnly; 4],
        vec![Acknowledge],
        vec![WriteOnly; 4],
        // The last packet of the Write is shorter than the others, and the Send is longer.
        vec![WriteOnly; 3],
        vec![SendOnly],
    ];
    assert_eq!(runs(&mut end, 4), expected);
}

/// A datagram of a Send is 16 bytes longer than the Send. A Read request has 32 bytes, and an acknowledgement 20.
#[test]
fn only_the_last_datagram_of_a_run_is_shorter_and_none_is_longer() {
    use Opcode::*;
    let sends = |lengths: &[usize], reads: u64| {
        let mut end = End::new();
        for &length in lengths {
            end.post_send(1, length, None);
        }
        (0..reads).for_each(|id| end.post_read(id, 1));
        runs(&mut end, 4)
    };
    assert_eq!(sends(&[12, 8], 0), [[SendOnly, SendOnly]]);
    assert_eq!(sends(&[8, 12], 0), [[SendOnly], [SendOnly]]);
    assert_eq!(sends(&[12], 1), [[SendOnly], [ReadRequest]]);
    assert_eq!(sends(&[16], 1), [[SendOnly, ReadRequest]]);
    assert_eq!(sends(&[], 2), [[ReadRequest, ReadRequest]]);

    let mut end = End::new();
    end.post_receives(1, 1000);
    end.handle(&plain(SendOnly, 0, 1));
    end.post_send(1, 4, None);
    assert_eq!(runs(&mut end, 4), [[SendOnly, Acknowledge]]);

    let responses = |lengths: &[u32]| {
        let mut end = End::new();
        let buffer = BytesMut::zeroed(4 * MTU);
        let region = end.queue_pair.memory().register(buffer, Access::all());
        let mut at = 0;
        for &length in lengths {
            let address = region.as_ref().unwrap().address;
            end.handle(&rdma(ReadRequest, at, address, length, 0));
            at += length.div_ceil(MTU as u32);
        }
        runs(&mut end, 4)
    };
    let only = ReadResponseOnly;
    assert_eq!(responses(&[MTU as u32; 2]), [[only, only]]);
    assert_eq!(responses(&[5, 1]), [[only, only]]);
    assert_eq!(responses(&[1, 5]), [[only], [only]]);
    // A packet in the middle of a response has no AETH, so it is four bytes shorter than the first packet and
    // ends the run.
    let whole = [
        vec![ReadResponseFirst, ReadResponseMiddle],
        vec![ReadResponseLast],
    ];
    assert_eq!(responses(&[3 * MTU as u32]), whole);
}

//= ROCE-SW-06 test
#[test]
fn requests_and_responses_alternate() {
    for is_by_datagrams in [false, true] {
        let mut end = End::new();
        let buffer = BytesMut::zeroed(4 * MTU);
        let region = end.queue_pair.memory().register(buffer, Access::all());
        let address = region.unwrap().address;
        let length = 4 * MTU as u32;
        end.handle(&rdma(Opcode::ReadRequest, 0, address, length, 0));
        (0..4).for_each(|id| end.post_send(id, MTU, None));
        let sent: Vec<_> = if is_by_datagrams {
            runs(&mut end, 1).concat()
        } else {
            end.opcodes().iter().map(|&(opcode, _)| opcode).collect()
        };
        assert_eq!(sent.len(), 8);
        for turn in sent.chunks(2) {
            let requests = turn.iter().filter(|opcode| !opcode.is_response());
            assert_eq!(requests.count(), 1, "{sent:?}");
        }
    }
}

#[test]
fn completions_are_announced_until_they_are_taken() {
    let mut end = End::new();
    assert!(!end.queue_pair.has_completion());
    end.post_receives(1, 10);
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    assert!(end.queue_pair.has_completion());
    assert_eq!(end.summary(), ["received 1"]);
    assert!(!end.queue_pair.has_completion());
    end.queue_pair.end(Disconnect::Remote);
    assert!(end.queue_pair.has_completion());
    assert_eq!(end.summary(), ["Remote"]);
    assert!(!end.queue_pair.has_completion());
}

#[cfg(feature = "tokio")]
#[test]
fn all_completions_but_the_last_are_taken_together() {
    let mut end = End::new();
    end.post_send(1, 1, None);
    end.post_send(2, 1, None);
    end.queue_pair.end(Disconnect::Local);
    let mut taken = std::collections::VecDeque::new();
    end.queue_pair.take_completions(&mut taken);
    let flushed = |completion: &Completion| match completion {
        Completion::Flushed { id, .. } => id.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(taken.iter().map(flushed).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(end.summary(), ["Local"]);
}
