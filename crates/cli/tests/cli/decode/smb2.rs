//! SMB2 in the payloads: the command, and the way of the data of a READ or WRITE.

use smbdirect_smb::smb2::Command;

use smbdirect_test::{
    decoded::events,
    talk::{I, R, Talk, Transfer},
};

use super::{Decode, captures::capture, decode};
use crate::messages::*;

/// A Data Transfer with the beginning of a message, of which `remaining` bytes are to come.
fn carrying(message: &[u8], remaining: u32) -> Transfer {
    Transfer {
        granted: 2,
        length: message.len() as u32,
        remaining,
        rest: [&[0; 4], message].concat(),
        ..Transfer::default()
    }
}

/// The end of the line in text, and `payload`, `channel` and `channel_bytes` in JSON.
type Shown = (
    &'static str,
    &'static str,
    Option<&'static str>,
    Option<u64>,
);

#[test]
fn requests_by_rdma_show_their_channel() {
    let memory = [descriptor(0x1000, 0x77, 70_000)];
    let cases: Vec<((usize, Vec<u8>), Shown)> = vec![
        (
            (I, read(1, 0, 65_536, V1_INVALIDATE, &memory)),
            (
                "SMB2 READ request, 65,536 bytes by RDMA_V1_INVALIDATE",
                "SMB2 READ request",
                Some("RDMA_V1_INVALIDATE"),
                Some(65_536),
            ),
        ),
        (
            (I, write_by_rdma(2, 0, 1, V1, &memory)),
            (
                "SMB2 WRITE request, 1 byte by RDMA_V1",
                "SMB2 WRITE request",
                Some("RDMA_V1"),
                Some(1),
            ),
        ),
        (
            (I, read(3, 0, 7, 3, &memory)),
            (
                "SMB2 READ request, 7 bytes by RDMA_TRANSFORM",
                "SMB2 READ request",
                Some("RDMA_TRANSFORM"),
                Some(7),
            ),
        ),
        (
            (I, read(4, 0, 7, 9, &memory)),
            (
                "SMB2 READ request, 7 bytes by channel 9",
                "SMB2 READ request",
                Some("channel 9"),
                Some(7),
            ),
        ),
        (
            (I, read(5, 0, 7, 0, &[])),
            ("SMB2 READ request", "SMB2 READ request", None, None),
        ),
        (
            (I, write(6, 0, b"data")),
            ("SMB2 WRITE request", "SMB2 WRITE request", None, None),
        ),
        (
            // Only READ and WRITE have a channel.
            (I, with(read(7, 0, 7, V1, &memory), 12, &[0x10, 0])),
            (
                "SMB2 QUERY_INFO request",
                "SMB2 QUERY_INFO request",
                None,
                None,
            ),
        ),
        (
            (R, read_answer(1, &[], 65_536)),
            ("SMB2 READ response", "SMB2 READ response", None, None),
        ),
        (
            // An answer with bytes that look like a channel.
            (R, flagged(read(8, 0, 7, V1, &memory), RESPONSE)),
            ("SMB2 READ response", "SMB2 READ response", None, None),
        ),
        (
            (I, with(header(ECHO, 9), 12, &[0x34, 0x12])),
            (
                "SMB2 command 0x1234 request",
                "SMB2 command 0x1234 request",
                None,
                None,
            ),
        ),
    ];
    let mut talk = Talk::established();
    for ((way, message), _) in &cases {
        talk.transfer(*way, &carrying(message, 0));
        talk.transfer(1 - way, &Transfer::empty(1));
    }
    let text = talk.decoded(&[]).succeeded();
    let lines: Vec<_> = text
        .stdout
        .lines()
        .filter(|line| line.contains("SMB2"))
        .collect();
    let json = talk.decoded(&["--json"]).succeeded();
    let mut transfers = events(&json, "message");
    transfers.retain(|event| event["payload"].is_string());
    assert_eq!((lines.len(), transfers.len()), (cases.len(), cases.len()));
    for ((line, transfer), (_, (words, payload, channel, bytes))) in
        lines.iter().zip(&transfers).zip(&cases)
    {
        assert!(line.ends_with(&format!("  {words}")), "{line}");
        assert_eq!(transfer["payload"].as_str(), Some(*payload));
        assert_eq!(transfer["channel"].as_str(), *channel);
        assert_eq!(transfer["channel_bytes"].as_u64(), *bytes);
    }
}

#[test]
fn truncated_request_shows_its_readable_part() {
    let message = read(1, 0, 65_536, V1, &[descriptor(0, 7, 65_536)]);
    for (length, words) in [
        (3, ""),
        (19, "SMB2"),
        (20, "SMB2 READ request"),
        (111, "SMB2 READ request"),
        (112, "SMB2 READ request, 65,536 bytes by RDMA_V1"),
        (127, "SMB2 READ request, 65,536 bytes by RDMA_V1"),
    ] {
        let (now, later) = message.split_at(length);
        let mut talk = Talk::established();
        talk.transfer(I, &carrying(now, later.len() as u32));
        talk.transfer(I, &carrying(later, 0));
        let text = talk.decoded(&[]).succeeded();
        let lines: Vec<_> = text
            .stdout
            .lines()
            .filter(|line| line.contains("I> Data Transfer"))
            .collect();
        assert!(lines[0].trim_end().ends_with(words), "{}", lines[0]);
        assert_eq!(lines[0].contains("SMB2"), !words.is_empty());
        assert!(lines[1].ends_with("continued"), "{}", lines[1]);
    }
}

#[test]
fn requests_of_linux_show_their_channel() {
    let path = capture("siw-small.pcap").expect("it stands beside the tests of the library");
    let done = decode(&path, &["--json"]);
    let with_channel: Vec<_> = events(&done, "message")
        .into_iter()
        .filter(|event| event["channel"].is_string())
        .collect();
    assert!(!with_channel.is_empty());
    for event in with_channel {
        assert_eq!(event["channel"], "RDMA_V1_INVALIDATE");
        let payload = event["payload"].as_str().unwrap();
        let command = payload.split(' ').nth(1);
        assert!(
            [Command::READ, Command::WRITE]
                .iter()
                .any(|moves| moves.name() == command)
        );
        assert!(event["channel_bytes"].as_u64().unwrap() > 0);
    }
}
