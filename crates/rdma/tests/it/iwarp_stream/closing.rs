//! The end of a stream, and its work.

use super::*;

//= RDMAP-20 test
//= RDMAP-21 test
#[test]
fn after_a_terminate_of_the_peer_everything_is_flushed_and_nothing_is_sent() {
    let mut stream = Stream::new(&config(true));
    stream.post(receive(1, 10));
    stream.post(read(2, NOWHERE, 10));
    stream.post(write(3, &[0; 5000][..], NOWHERE));
    stream.post(send(4, &b"never"[..]));
    take(&mut stream, 60);
    let terminate = Terminate::new(TerminateCode::new(1, 1, 0), None);
    stream.handle_bytes(&fpdu(&[&terminate.ulpdu()]));
    stream.post(send(5, &b"late"[..]));
    let all = completions(&mut stream);
    let expected = "flushed 3, flushed 4, flushed 2, flushed 1, flushed 5, Terminated";
    assert_eq!(words(&all).join(", "), expected);
    let Some(Completion::Disconnected(Disconnect::Broken(error))) = all.last() else {
        panic!("not broken");
    };
    assert!(error.what.contains("1/1/0 (tagged buffer: invalid STag)"));
    let buffer_is_back = |completion: &Completion| match completion {
        Completion::Flushed { id, buffer } => buffer.is_some() == (id.0 == 2),
        _ => true,
    };
    assert!(all.iter().all(buffer_is_back));
    assert!(take_all(&mut stream).is_empty());
    stream.post(send(6, &b"later"[..]));
    assert!(completions(&mut stream).is_empty());
}

//= MPA-34 test
//= DDP-09 test
#[test]
fn a_fin_is_graceful_at_a_boundary_and_an_error_elsewhere() {
    let whole = fpdu(&[&untagged(Opcode::Send, 1).encode(), b"hello"]);
    let open_send = Untagged {
        last: false,
        ..untagged(Opcode::Send, 1)
    };
    let open_write = Tagged {
        last: false,
        ..tagged(Opcode::RdmaWrite, NOWHERE)
    };
    for (bytes, expected) in [
        (&[][..], ["flushed 1", "remote"]),
        (&whole, ["received 1", "remote"]),
        (&whole[..1], ["flushed 1", "Reset"]),
        (&whole[..whole.len() - 1], ["flushed 1", "Reset"]),
        (
            &fpdu(&[&open_send.encode(), b"hel"]),
            ["flushed 1", "Reset"],
        ),
        (&fpdu(&[&open_write.encode()]), ["flushed 1", "Reset"]),
    ] {
        let mut stream = Stream::new(&config(false));
        stream.post(receive(1, 10));
        stream.handle_bytes(bytes);
        stream.handle_end();
        assert_eq!(words(&completions(&mut stream)), expected);
        assert!(take_all(&mut stream).is_empty());
    }
}

//= RDMAP-22 test
#[test]
fn closing_finishes_posted_work_and_takes_no_more() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    let source = register(&mut other, b"123456789", Access::REMOTE_READ);
    other.post(receive(1, 10));
    one.post(receive(2, 10));
    one.post(read(3, source, 9));
    one.post(send(4, &b"last"[..]));
    one.close();
    one.post(send(5, &b"too late"[..]));
    assert!(!one.is_drained());
    exchange(&mut one, &mut other);
    assert!(one.is_drained());
    one.finish();
    other.handle_end();
    assert_eq!(words(&completions(&mut other)), ["received 1", "remote"]);
    one.handle_end();
    let seen = words(&completions(&mut one));
    assert_eq!(
        seen,
        ["read 3", "sent 4", "flushed 2", "flushed 5", "local"]
    );
}

/// If this end closed the socket at the error, TCP would reset the connection, and the peer might not see the FIN that
/// it has not read yet.
#[test]
fn an_error_of_the_peer_after_fin_is_discarded_until_its_fin() {
    let mut other = Stream::new(&config(true));
    other.post(read(1, NOWHERE, 9));
    let wrong_token = take_all(&mut other);
    for bytes in [&wrong_token[..], &[0xff; 10_000]] {
        let mut one = Stream::new(&config(false));
        one.close();
        one.finish();
        for _ in 0..3 {
            one.handle_bytes(bytes);
        }
        assert!(!one.has_ended());
        let room: usize = one.receive_slices().map(|slice| slice.len()).iter().sum();
        assert!(room > 0, "the rest is read");
        one.handle_end();
        assert_eq!(words(&completions(&mut one)), ["local"]);
        assert!(!one.is_broken());
    }
}

//= RDMAP-23 test
#[test]
fn a_stream_is_not_drained_while_a_read_is_in_flight() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    let source = register(&mut other, b"123456789", Access::REMOTE_READ);
    one.post(read(1, source, 9));
    let question = take_all(&mut one);
    assert!(!one.is_drained(), "expected");
    other.handle_bytes(&question);
    assert!(!other.is_drained(), "owed");
    let answer = take_all(&mut other);
    assert!(other.is_drained());
    one.handle_bytes(&answer);
    assert!(one.is_drained());
}
