//! Each flag of a send, and combinations of flags.

use super::*;

//= TDI-SEND-02 test
//= TDI-SEND-07 test
//= TDI-SEND-28 test
//= TDI-SEND-31 test
#[test]
fn send_without_flags_is_one_tsdu() {
    let mut sends = Sends::new();
    for data in ["a", "bc", "def"] {
        assert_eq!(sends.send(data, NONE), None);
    }
    assert_eq!(sends.drain(), ["a", "bc", "def"]);
    let all = [(1, SUCCESS, 1), (2, SUCCESS, 2), (3, SUCCESS, 3)];
    assert_eq!(sends.done(), all);
    assert!(sends.next().is_none());
}

//= TDI-SEND-03 test
#[test]
fn flags_combine_and_undefined_bits_are_refused() {
    for bits in 0..16 {
        let mut flags = NONE;
        for (bit, flag) in [E, P, N, B].into_iter().enumerate() {
            flags.set(flag, bits & (1 << bit) != 0);
        }
        let mut sends = Sends::new();
        let result = sends.send("ab", flags);
        assert_eq!(
            result,
            flags.intersects(P | B).then_some((SUCCESS, 2)),
            "{flags:?}"
        );
        let expected: &[&str] = if flags.contains(P) { &[] } else { &["ab"] };
        assert_eq!(sends.drain(), expected, "{flags:?}");
    }
    for bit in (0..32).filter(|bit| !(5..=9).contains(bit)) {
        let mut sends = Sends::new();
        let flags = SendFlags::from_bits_retain(1 << bit);
        assert_eq!(sends.send("ab", flags), INVALID, "{flags:?}");
        assert!(sends.next().is_none());
    }
    let mut sends = Sends::new();
    let unsupported = Some((Status::NOT_SUPPORTED, 0));
    assert_eq!(sends.send("ab", SendFlags::AND_DISCONNECT), unsupported);
    assert!(sends.next().is_none());
}

//= TDI-SEND-04 test
//= TDI-SEND-05 test
#[test]
fn expedited_sends_overtake_unstarted_tsdus() {
    let mut sends = Sends::new();
    for data in ["begun", "n1", "n2"] {
        sends.send(data, NONE);
    }
    let begun = sends.next().unwrap();
    assert_eq!(text(begun.message), "begun");
    sends.send("e1", E);
    sends.send("e2", E);
    sends.send("n3", NONE);
    assert_eq!(sends.drain(), ["e1", "e2", "n1", "n2", "n3"]);
}

//= TDI-SEND-06 test
#[test]
fn expedited_flag_is_ignored_if_so_set() {
    let mut sends = Sends::with(SendSettings {
        expedited: Expedited::Ignore,
        high_water: 8,
        ..settings()
    });
    sends.send("n1", NONE);
    sends.send("e", E | P);
    sends.send("n2", NONE);
    assert_eq!(sends.drain(), ["n1", "en2"]);
}

//= TDI-SEND-08 test
//= TDI-SEND-09 test
#[test]
fn partial_sends_are_one_tsdu() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("a", P), taken(1));
    assert_eq!(sends.send("b", P), taken(1));
    assert!(sends.next().is_none());
    // This is of the other class, and hence another TSDU.
    assert_eq!(sends.send("X", E | P), taken(1));
    assert_eq!(sends.send("c", NONE), None);
    assert_eq!(sends.send("d", NONE), None);
    assert_eq!(sends.send("Y", E), None);
    assert_eq!(sends.drain(), ["XY", "abc", "d"]);
    let all = [(6, SUCCESS, 1), (4, SUCCESS, 1), (5, SUCCESS, 1)];
    assert_eq!(sends.done(), all);
}

//= TDI-SEND-12 test
//= TDI-SEND-13 test
#[test]
fn no_response_expected_only_sets_the_prompt() {
    let low = SendAvailability {
        send_credits: 3,
        low_credits: 2,
        segment_payload: 4,
    };
    let plenty = SendAvailability {
        send_credits: 9,
        ..low
    };
    for (policy, availability, prompts) in [
        (NoResponse::Ignore, low, false),
        (NoResponse::WhenLowOnCredits, low, true),
        (NoResponse::WhenLowOnCredits, plenty, false),
        (NoResponse::Always, low, true),
        (NoResponse::Always, plenty, true),
    ] {
        for (flags, prompts) in [(N, prompts), (NONE, false)] {
            let mut sends = Sends::with(SendSettings {
                no_response: policy,
                ..settings()
            });
            assert_eq!(sends.send("ab", P | N), taken(2));
            assert_eq!(sends.send("cd", flags), None);
            let tsdu = sends.outbound.poll_tsdu(availability).unwrap();
            assert_eq!(
                tsdu.prompt, prompts,
                "{policy:?} {availability:?} {flags:?}"
            );
            assert_eq!(text(tsdu.message), "abcd");
            sends.outbound.tsdu_sent();
            assert_eq!(sends.done(), [(2, SUCCESS, 2)]);
        }
    }
    // The credits that the TSDU leaves decide: 8 bytes use two segments, 4 bytes use one.
    for (data, credits, prompts) in [("12345678", 4, true), ("1234", 4, false), ("1234", 1, true)] {
        let mut sends = Sends::new();
        sends.send(data, N);
        let availability = SendAvailability {
            send_credits: credits,
            ..low
        };
        let tsdu = sends.outbound.poll_tsdu(availability).unwrap();
        assert_eq!(tsdu.prompt, prompts, "{data} {credits}");
    }
}
