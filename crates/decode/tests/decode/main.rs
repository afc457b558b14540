//! Captures decoded by the library: made up ones with each rule violated once, files of each form and packets that
//! change nothing, and those of Linux.

mod as_tcp;
mod broken;
mod captures;
mod explain;
mod formats;
mod roce;
mod strays;

use std::{fs, path::Path};

use pcap_file::pcap::PcapReader;
use serde_json::Value;
use smbdirect_decode::{CaptureError, Event, Packets, Streams, Summary};
use smbdirect_test::{
    decoded::{self, Decoded},
    talk::{self, Talk},
};

/// The decoded part of a capture, and the reason why the rest was not decoded.
#[derive(Debug)]
struct Done {
    lines: Vec<Value>,
    error: Option<CaptureError>,
}

impl Decoded for Done {
    fn json(&self) -> Vec<Value> {
        self.lines.clone()
    }
}

impl Done {
    /// Asserts that there are messages, that none breaks a rule, and that the whole capture was decoded.
    #[track_caller]
    fn succeeded(self) -> Self {
        assert!(self.error.is_none(), "{self:?}");
        self.breaks_no_rule("");
        self
    }

    /// Asserts that there are messages, and that none breaks a rule.
    #[track_caller]
    fn breaks_no_rule(&self, case: &str) {
        assert_eq!(decoded::broken(self), [""; 0], "{case}: {self:?}");
        assert!(!decoded::names(self).is_empty(), "{case}: {self:?}");
    }

    /// Asserts that the rest of the capture was not decoded, for this reason.
    #[track_caller]
    fn failed(&self, says: &str) {
        let error = self.error.as_ref().expect("an error").to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// Decodes a capture.
fn decode(capture: &[u8]) -> Done {
    let (mut lines, mut summary) = (Vec::new(), Summary::default());
    let mut sink = |event: Event| {
        summary.count(&event);
        lines.push(serde_json::to_value(event).unwrap());
    };
    let mut streams = Streams::new(&[], &[]);
    let ended = Packets::new(capture).and_then(|mut packets| {
        while let Some(packet) = packets.next_packet()? {
            streams.packet(&packet, &mut sink);
        }
        Ok(())
    });
    streams.finish(&mut sink);
    summary.counts = streams.counts().clone();
    lines.push(serde_json::to_value(summary).unwrap());
    let error = ended.err();
    Done { lines, error }
}

/// Decodes the capture of a connection that was made up.
trait Decode {
    fn decoded(&self) -> Done;
}

impl Decode for Talk {
    fn decoded(&self) -> Done {
        decode(&self.capture())
    }
}

impl Decode for talk::roce::Talk {
    fn decoded(&self) -> Done {
        decode(&self.capture())
    }
}

/// The packets of a committed capture.
fn packets(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../smbdirect/tests/captures");
    let file = fs::File::open(folder.join(name)).unwrap();
    let mut reader = PcapReader::new(file).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().data.into_owned());
    }
    packets
}
