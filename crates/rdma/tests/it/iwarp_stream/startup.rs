//! The first FPDUs after the startup frames.

use super::*;

//= MPA-07 test
//= EST-05 test
#[test]
fn a_responder_sends_nothing_before_the_first_fpdu() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    one.post(receive(1, 10));
    other.post(receive(2, 10));
    other.post(send(3, &b"early"[..]));
    assert!(take_all(&mut other).is_empty());
    one.post(send(4, &b"first"[..]));
    let first = take_all(&mut one);
    other.handle_bytes(&first[..first.len() - 1]);
    assert!(take_all(&mut other).is_empty());
    other.handle_bytes(&first[first.len() - 1..]);
    exchange(&mut one, &mut other);
    assert_eq!(words(&completions(&mut one)), ["sent 4", "received 1"]);
    assert_eq!(words(&completions(&mut other)), ["sent 3", "received 2"]);

    // Not even a Terminate is sent before it.
    let mut other = Stream::new(&config(false));
    other.handle_bytes(&fpdu(&[b"nonsense of some length"]));
    assert!(take_all(&mut other).is_empty());
    assert_eq!(words(&completions(&mut other)), ["Protocol"]);
}

/// A valid first FPDU and a broken one arrive in one read, so the responder may send a Terminate.
//= MPA-07 test
//= MPA-22 test
#[test]
fn a_responder_may_send_a_terminate_after_the_first_fpdu() {
    let mut stream = Stream::new(&config(false));
    let mut broken = rtr();
    *broken.last_mut().unwrap() ^= 1;
    let terminate = terminated(&mut stream, &[rtr(), broken].concat());
    let TerminateCode {
        layer,
        error_type,
        error_code,
    } = terminate.code();
    assert_eq!((layer, error_type, error_code), (2, 0, 2));
    assert_eq!(words(&completions(&mut stream)), ["Protocol"]);
}

//= EST-03 test
//= EST-06 test
//= EST-07 test
#[test]
fn ready_to_receive_has_no_visible_effect() {
    for (kind, expected) in [
        (
            Rtr::Write,
            &[Opcode::RdmaWrite, Opcode::RdmaReadRequest][..],
        ),
        // A Read uses the only slot.
        (Rtr::Read, &[Opcode::RdmaReadRequest]),
    ] {
        let mut one = Stream::new(&StreamConfig {
            ready_to_receive: Some(kind),
            max_outbound_reads: 1,
            ..config(true)
        });
        let mut other = Stream::new(&config(false));
        let source = register(&mut other, b"data", Access::REMOTE_READ);
        one.post(read(5, source, 4));
        let first = take_all(&mut one);
        assert_eq!(opcodes(&first), expected);
        other.handle_bytes(&first);
        exchange(&mut one, &mut other);
        assert_eq!(words(&completions(&mut one)), ["read 5"]);
        assert!(completions(&mut other).is_empty());
    }
}

/// A startup probe wakes a responder that overlooked the first FPDU, and is sent only to such a
/// one.
//= MPA-36 test
//= DDP-13 test
#[test]
fn a_startup_probe_is_sent_only_to_a_silent_responder() {
    for ready_to_receive in [None, Some(Rtr::Write), Some(Rtr::Read)] {
        let mut one = Stream::new(&StreamConfig {
            ready_to_receive,
            ..config(true)
        });
        let mut other = Stream::new(&config(false));
        one.post(receive(1, 10));
        other.post(receive(2, 10));
        one.startup_probe();
        let mut said = take_all(&mut one);
        assert_eq!(
            opcodes(&said).len(),
            usize::from(ready_to_receive.is_some())
        );
        assert_eq!(one.is_unanswered(), ready_to_receive.is_some());

        one.post(send(3, &b"hello"[..]));
        assert!(!one.is_unanswered(), "more bytes follow anyway");
        said.extend(take_all(&mut one));
        assert!(one.is_unanswered());
        one.startup_probe();
        assert!(!one.is_unanswered());
        let startup_probe = take_all(&mut one);
        assert_eq!(opcodes(&startup_probe), [Opcode::RdmaWrite]);
        assert_eq!(startup_probe.len(), 20, "an empty one");
        assert!(one.is_unanswered());

        // The responder reports no completion for it.
        other.handle_bytes(&[said, startup_probe].concat());
        assert_eq!(words(&completions(&mut other)), ["received 2"]);
        assert!(
            !other.is_unanswered(),
            "only an initiator sends startup probes"
        );
        other.post(send(4, &b"good day"[..]));
        exchange(&mut one, &mut other);
        assert_eq!(words(&completions(&mut one)), ["sent 3", "received 1"]);
        assert!(!one.is_unanswered());
        one.startup_probe();
        assert!(take_all(&mut one).is_empty());
    }
    let mut closing = Stream::new(&config(true));
    closing.post(send(1, &b"bye"[..]));
    take_all(&mut closing);
    closing.close();
    closing.startup_probe();
    assert!(take_all(&mut closing).is_empty());
    closing.end(Disconnect::Local);
    assert!(!closing.is_unanswered());
}
