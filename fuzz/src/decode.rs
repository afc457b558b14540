//! Arbitrary captures, read as `smbdirect decode` reads them: no panic, consistent events, times that add up,
//! and no more SMB over TCP than the capture has bytes.

use smbdirect_decode::{AsTcp, Event, EventKind, Explain, Packets, Streams, rule_text};

/// Reads `data` as a capture.
pub fn decode(data: &[u8]) {
    let Ok(mut packets) = Packets::new(data) else {
        return;
    };
    let mut streams = Streams::new(&[9], &[]);
    let mut checks = Checks::default();
    while let Ok(Some(packet)) = packets.next_packet() {
        checks.packets = packet.frame;
        streams.packet(&packet, &mut |event| checks.event(&event));
    }
    streams.finish(&mut |event| checks.event(&event));
    assert_eq!(streams.counts().packets, checks.packets);
    // The transferred and the missing bytes fit into the sequence numbers.
    let connected = streams.counts().tcp + streams.counts().roce.packets;
    assert!(connected > 0 || checks.streams == 0);
    explain(data);
    as_tcp(data);
}

/// Writes `data` as SMB2 over TCP.
fn as_tcp(data: &[u8]) {
    let Ok(mut packets) = Packets::new(data) else {
        return;
    };
    let mut output = Vec::new();
    let written = "memory takes the output";
    let mut as_tcp = AsTcp::new(&[9], &[], &mut output).expect(written);
    let mut read = 0;
    while let Ok(Some(packet)) = packets.next_packet() {
        as_tcp.packet(&packet).expect(written);
        // A block of pcapng takes up to 35 bytes, and Ethernet 14 where there was none.
        read += packet.data.len() + 35 + 14;
    }
    let summary = as_tcp.finish().expect(written);
    // The head of the file, and its interface.
    let heads = 100;
    let most = read + summary.put_back_bytes as usize + heads;
    assert!(output.len() <= most, "{} of {most} bytes", output.len());
    assert!(Packets::new(&output[..]).is_ok());
}

/// Explains `data`.
fn explain(data: &[u8]) {
    let Ok(mut packets) = Packets::new(data) else {
        return;
    };
    let mut explain = Explain::new(&[9], &[]);
    while let Ok(Some(packet)) = packets.next_packet() {
        explain.packet(&packet);
    }
    for connection in explain.finish().connections {
        let sum: f64 = connection.phases.iter().map(|phase| phase.seconds).sum();
        assert!(
            (sum - connection.seconds).abs() <= connection.seconds * 0.01,
            "{connection:?}"
        );
    }
}

#[derive(Default)]
struct Checks {
    packets: u64,
    streams: u32,
}

impl Checks {
    fn event(&mut self, event: &Event) {
        if let EventKind::Stream { ends, .. } = event.kind {
            self.streams += 1;
            assert_eq!(event.stream, self.streams, "streams are counted");
            assert_ne!(event.stream, 0, "{ends:?}");
        }
        assert!((1..=self.streams).contains(&event.stream));
        assert!((1..=self.packets).contains(&event.position.frame));
        for credits in event.credits.iter().flatten() {
            assert!(*credits <= u16::MAX.into(), "{event:?}");
        }
        for broken in &event.broken {
            assert!(!rule_text(broken.rule).is_empty(), "{broken:?}");
            assert!(!broken.how.is_empty(), "{broken:?}");
        }
        let is_message = event.kind.name().is_some();
        let may_break = is_message
            || matches!(
                event.kind,
                EventKind::Note { .. } | EventKind::Closed { .. }
            );
        assert!(may_break || event.broken.is_empty(), "{event:?}");
    }
}
