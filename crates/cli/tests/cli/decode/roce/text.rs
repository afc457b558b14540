//! The text of RoCE events other than messages.

use smbdirect::rdma::roce::packet::{NakCode, Syndrome};
use smbdirect_test::talk::{I, R, roce::Talk};

use super::super::Decode;

#[test]
fn naks_have_names() {
    let mut talk = Talk::established();
    for code in [
        NakCode::PsnSequenceError,
        NakCode::InvalidRequest,
        NakCode::RemoteAccessError,
        NakCode::RemoteOperationalError,
    ] {
        let psn = talk.psn[I];
        talk.nak(R, psn, code);
    }
    talk.answer(R, 1, Syndrome::RnrNak { timer: 12 });
    let done = talk.capture().decoded(&[]).succeeded();
    for words in [
        "Code PSN sequence error, PSN 0x",
        "invalid request, PSN 0x",
        "remote access error, PSN 0x",
        "remote operational error, PSN 0x",
        "RNR NAK            WaitMs 0.64, PSN 0x000001",
    ] {
        assert!(done.stdout.contains(words), "{words}: {}", done.stdout);
    }
}

#[test]
fn other_protocols_are_not_shown() {
    let mut talk = Talk::new();
    for number in 0..40_u8 {
        talk.send(I, &[number; 60]);
        talk.write(R, 100);
    }
    let capture = talk.capture();
    let done = capture.decoded(&["--json"]);
    done.failed(1, "but no connection to port 445").one_line();
    let done = capture.decoded(&[]);
    let says = "1 connection of RoCE without SMB Direct";
    assert!(done.stdout.contains(says), "{done:?}");
}
