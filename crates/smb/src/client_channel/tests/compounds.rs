//! Compound requests and answers.

use super::*;

/// A chain of CREATE, READ or WRITE by RDMA and CLOSE.
fn chain(middle: Vec<u8>) -> Vec<Vec<u8>> {
    vec![
        other(header(CREATE, 20), &[57; 59]),
        flagged(middle, RELATED),
        flagged(other(header(CLOSE, 22), &[24; 21]), RELATED),
    ]
}

#[test]
fn read_in_a_related_compound_is_translated_in_its_place() {
    let read = read(21, 0, 10, V1_INVALIDATE, &descriptors());
    let elements = chain(with(read, 80, &[0xff; 16]));
    for padding in [0, 0xaa] {
        let mut client = ClientChannel::new();
        let parts = translated(&mut client, &compound_padded(&elements, padding));
        let bytes = sent(&parts);
        let expected = [
            with(
                compound_padded(&elements[..2], padding)[..128].to_vec(),
                0,
                b"\xfeSMB",
            ),
            {
                let mut read = read_without_channel(&elements[1]);
                read.resize(120, 0);
                with(read, 20, &120_u32.to_le_bytes())
            },
            elements[2].clone(),
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(client.pending(), 1);
    }
}

#[test]
fn writes_in_a_compound_are_padded_after_their_data() {
    for length in 0..9 {
        let elements: Vec<_> = (0..3)
            .map(|id| write_by_rdma(id, 0, length, V1, &descriptors()))
            .collect();
        let mut client = ClientChannel::new();
        let bytes = sent(&translated(&mut client, &compound(&elements)));
        let plain: Vec<_> = elements
            .iter()
            .map(|element| write_with_data(element, length))
            .collect();
        assert_eq!(bytes, compound(&plain));
        assert_eq!(client.pending(), 3);
    }
}

/// Returns the placements of a compound answer, and its messages with the tokens that they invalidate.
type Steps = (
    Vec<(Bytes, Vec<BufferDescriptorV1>)>,
    Vec<(Bytes, Option<Token>)>,
);

fn steps(client: &mut ClientChannel, bytes: &[u8]) -> Result<Steps, ServerFault> {
    assert_eq!(answer_of(client, bytes), Ok(Answer::Compound));
    let (mut placed, mut messages) = (Vec::new(), Vec::new());
    for step in client.compound_answer(Bytes::copy_from_slice(bytes))? {
        match step {
            Step::Place { data, to } => {
                assert!(messages.is_empty(), "data comes before the answers");
                placed.push((data, to));
            }
            Step::Send {
                message,
                invalidate,
            } => messages.push((message.into_bytes(), invalidate)),
        }
    }
    Ok((placed, messages))
}

#[test]
fn compound_answer_stays_whole_when_its_data_is_placed() {
    for (channel, token) in [(V1, None), (V1_INVALIDATE, Some(Token(TOKENS[0])))] {
        let mut client = ClientChannel::new();
        let elements = chain(read(21, 0, 10, channel, &descriptors()));
        translated(&mut client, &compound(&elements));
        let answers = [
            other(answer(CREATE, 20, SUCCESS), &[89; 91]),
            flagged(read_answer(21, b"abc", 0), RELATED),
            flagged(other(answer(CLOSE, 22, SUCCESS), &[60; 63]), RELATED),
        ];
        let (placed, messages) = steps(&mut client, &compound_padded(&answers, 0xaa)).unwrap();
        assert_eq!(placed, [(Bytes::from_static(b"abc"), descriptors())]);
        let expected = [
            compound_padded(&answers[..2], 0xaa)[..160].to_vec(),
            with(
                flagged(read_answer(21, &[], 3), RELATED),
                20,
                &80_u32.to_le_bytes(),
            ),
            answers[2].clone(),
        ];
        assert_eq!(messages, [(expected.concat().into(), token)]);
        assert_eq!(client.pending(), 0);
    }
}

#[test]
fn last_element_of_a_compound_answer_is_placed() {
    let mut client = ClientChannel::new();
    let requests = [
        header(ECHO, 1),
        read(2, 0, 10, V1, &descriptors()),
        read(3, 0, 10, V1, &descriptors()),
    ];
    translated(&mut client, &compound(&requests));
    let answers = [
        other(answer(ECHO, 1, SUCCESS), &[4, 0, 0, 0]),
        read_answer(2, &[], 0),
        read_answer(3, b"abc", 0),
    ];
    let (placed, messages) = steps(&mut client, &compound(&answers)).unwrap();
    assert_eq!(placed, [(Bytes::from_static(b"abc"), descriptors())]);
    let expected = [
        answers[0].clone(),
        read_answer(2, &[], 0),
        read_answer(3, &[], 3),
    ];
    assert_eq!(messages, [(compound(&expected).into(), None)]);
}

#[test]
fn compound_answer_that_invalidates_more_than_one_token_is_split() {
    let mut client = ClientChannel::new();
    let requests: Vec<_> = (0..3)
        .map(|id| match id {
            1 => write_by_rdma(id, 0, 3, V1_INVALIDATE, &descriptors()[1..]),
            _ => read(id, 0, 3, V1_INVALIDATE, &descriptors()[id as usize..]),
        })
        .collect();
    translated(&mut client, &compound(&requests));
    let answers = [
        read_answer(0, b"abc", 0),
        flagged(write_answer(1, 3), RELATED),
        flagged(error(READ, 2, END_OF_FILE), RELATED),
        flagged(other(answer(ECHO, 9, SUCCESS), &[4, 0, 0, 0]), RELATED),
    ];
    let (placed, messages) = steps(&mut client, &compound(&answers)).unwrap();
    assert_eq!(placed, [(Bytes::from_static(b"abc"), descriptors())]);
    // An element that is sent alone has no RELATED flag. The padding after it is kept, because a server may also
    // pad a message that is not part of a compound.
    let alone = |element: &[u8], length| {
        let mut element = with(element.to_vec(), 16, &1_u32.to_le_bytes());
        element.resize(length, 0);
        Bytes::from(element)
    };
    let expected = [
        (read_answer(0, &[], 3).into(), Some(Token(TOKENS[0]))),
        (alone(&answers[1], 88), Some(Token(TOKENS[1]))),
        (alone(&answers[2], 80), Some(Token(TOKENS[2]))),
        (alone(&answers[3], 68), None),
    ];
    assert_eq!(messages, expected);
    assert_eq!(client.pending(), 0);
}

#[test]
fn signed_answers_in_a_compound_are_not_changed() {
    let mut client = ClientChannel::new();
    let requests = [
        read(1, 0, 3, V1, &descriptors()),
        flagged(header(ECHO, 2), SIGNED),
        flagged(header(ECHO, 3), SIGNED),
    ];
    translated(&mut client, &compound(&requests));
    let signed = |id, body: &[u8]| flagged(other(answer(ECHO, id, SUCCESS), body), SIGNED);
    let answers = [
        read_answer(1, b"abc", 0),
        signed(2, &[4, 0, 0, 0]),
        signed(3, &[4, 0, 0, 0]),
    ];
    let bytes = compound_padded(&answers, 0xaa);
    let (_, messages) = steps(&mut client, &bytes).unwrap();
    let tail = &messages[0].0[80..];
    assert_eq!(tail, &bytes[88..], "with their padding");
}

#[test]
fn signed_answer_that_would_have_to_change_is_a_fault() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1, &descriptors()));
    let bytes = flagged(read_answer(1, b"abc", 0), SIGNED);
    assert_eq!(answer_of(&mut client, &bytes), Err(ServerFault::Signed));

    let mut client = ClientChannel::new();
    let requests: Vec<_> = (0..2)
        .map(|id| write_by_rdma(id, 0, 3, V1_INVALIDATE, &descriptors()))
        .collect();
    translated(&mut client, &compound(&requests));
    let answers = [0, 1].map(|id| flagged(write_answer(id, 3), SIGNED));
    assert_eq!(
        steps(&mut client, &compound(&answers)),
        Err(ServerFault::Signed)
    );

    // An answer that is forwarded unchanged may be signed.
    let mut client = ClientChannel::new();
    translated(
        &mut client,
        &write_by_rdma(1, 0, 3, V1_INVALIDATE, &descriptors()),
    );
    let bytes = flagged(write_answer(1, 3), SIGNED);
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(Some(TOKENS[0]))));
}

#[test]
fn compound_answer_with_nothing_to_translate_passes() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1_INVALIDATE, &descriptors()));
    let bytes = compound_padded(
        &[
            interim(READ, 1),
            error(CREATE, 5, END_OF_FILE),
            read_answer(6, b"other", 0),
        ],
        0xaa,
    );
    let (placed, messages) = steps(&mut client, &bytes).unwrap();
    assert!(placed.is_empty());
    assert_eq!(messages, [(bytes.into(), None)]);
    assert_eq!(client.pending(), 1);
    // A compound answer that invalidates one token is also forwarded unchanged.
    let bytes = compound_padded(&[error(READ, 1, END_OF_FILE), interim(WRITE, 5)], 0xaa);
    let (_, messages) = steps(&mut client, &bytes).unwrap();
    assert_eq!(messages, [(bytes.into(), Some(Token(TOKENS[0])))]);
}

#[test]
fn answers_of_a_compound_may_arrive_separately_in_any_order() {
    let mut client = ClientChannel::new();
    let elements = chain(read(21, 0, 10, V1_INVALIDATE, &descriptors()));
    translated(&mut client, &compound(&elements));
    let close = other(answer(CLOSE, 22, SUCCESS), &[60; 60]);
    assert_eq!(answer_of(&mut client, &close), Ok(pass(None)));
    assert!(matches!(
        answer_of(&mut client, &read_answer(21, b"abc", 0)),
        Ok(Answer::Place(_))
    ));
    let create = other(answer(CREATE, 20, SUCCESS), &[89; 89]);
    assert_eq!(answer_of(&mut client, &create), Ok(pass(None)));
}

#[test]
fn broken_compounds_are_refused() {
    let good = compound(&[header(ECHO, 1), read(2, 0, 3, V1, &descriptors())]);
    for next_command in [1_u32, 8, 56, 63, 65, 68, good.len() as u32, u32::MAX] {
        let bytes = with(good.clone(), 20, &next_command.to_le_bytes());
        let refusal = refused(&bytes);
        assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
        let mut client = ClientChannel::new();
        translated(&mut client, &read(7, 0, 3, V1, &descriptors()));
        let fault = client.compound_answer(bytes.into()).unwrap_err();
        assert!(matches!(fault, ServerFault::Malformed { .. }), "{fault}");
    }
    // Every truncation except one at the end of an element.
    for length in 65..good.len() {
        assert!(matches!(
            refused(&good[..length]),
            Refusal::Malformed { .. }
        ));
    }
}
