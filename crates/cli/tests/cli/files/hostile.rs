//! Peers of `send` and `listen --receive` that violate the protocol.

use std::sync::Arc;

use bytes::Bytes;
use smbdirect::{
    Config, Connection, ConnectionError, Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        provider::Provider,
    },
};
use tokio::time::timeout;

use super::Place;
use crate::support::{STEP_TIMEOUT, eventually, names_in, run, start, write_noise};

fn provider() -> Arc<dyn Provider> {
    Arc::new(Iwarp::new(IwarpConfig::default()))
}

async fn connect(address: &str) -> Connection {
    let connecting = Connection::connect(&*provider(), address, Config::default()).await;
    connecting.unwrap()
}

async fn receive(connection: &Connection) -> Result<Bytes, ConnectionError> {
    let received = timeout(STEP_TIMEOUT, connection.recv()).await;
    received
        .expect("an answer in time")
        .map(smbdirect::Message::into_bytes)
}

fn offer(length: u64, method: u8, name: &[u8]) -> Vec<u8> {
    [&[1, 1, 0, 0][..], &length.to_le_bytes(), &[method], name].concat()
}

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&[1, 3, 0, 0][..], &offset.to_le_bytes(), bytes].concat()
}

const ACCEPT: [u8; 4] = [1, 2, 0, 0];

const FAILED: u8 = 8;

const CANCEL: [u8; 4] = [1, 9, 0, 0];

#[tokio::test(flavor = "multi_thread")]
async fn names_with_paths_are_refused() {
    let place = Place::new();
    let listening = place.listen(&[]);
    let connection = connect(&listening.address).await;
    let long = [b'x'; 256];
    let names: [&[u8]; 10] = [
        b"",
        b".",
        b"..",
        b"/etc/smbdirect-was-here",
        b"../escaped",
        b"a/b",
        b"a\\b",
        b"a\0b",
        b".smbdirect-1",
        &long,
    ];
    for name in names {
        drop(connection.send(offer(3, 1, name)).unwrap());
        let answer = receive(&connection).await.unwrap();
        assert_eq!(answer[1], FAILED, "{name:?}: {answer:?}");
        assert!(
            answer[4..].starts_with(b"the name is refused: "),
            "{answer:?}"
        );
        drop(connection.send(CANCEL.to_vec()).unwrap());
    }
    // The connection is not affected.
    drop(connection.send(offer(0, 1, b"fine")).unwrap());
    assert_eq!(receive(&connection).await.unwrap(), &ACCEPT[..]);
    drop(connection);
    eventually("tidying up", || names_in(&place.into).is_empty());
    assert!(names_in(place.into.parent().unwrap()).len() == 2);
    listening.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_rules_end_the_connection_and_no_other() {
    let place = Place::new();
    let listening = place.listen(&[]);
    let descriptor = |length: u32| [&[0_u8; 12][..], &length.to_le_bytes()].concat();
    let memory = |offset: u64, length| {
        [
            &[1, 4, 0, 0][..],
            &offset.to_le_bytes(),
            &descriptor(length),
        ]
        .concat()
    };
    let done = |offset: u64| [&[1, 5, 0, 0][..], &offset.to_le_bytes()].concat();
    let finish = [&[1, 6, 0, 0][..], &[0; 32]].concat();
    let accepted: [(u8, Vec<u8>); 12] = [
        (1, data(1, b"x")),
        (1, data(0, &[0; 101])),
        (1, data(u64::MAX, b"x")),
        (1, finish.clone()),
        (1, memory(0, 10)),
        (1, done(0)),
        (1, offer(1, 1, b"again")),
        (2, data(0, b"x")),
        (2, memory(0, 101)),
        (2, memory(0, u32::MAX)),
        (3, done(99)),
        (3, vec![1, 99, 0, 0]),
    ];
    for (method, message) in accepted {
        let connection = connect(&listening.address).await;
        drop(connection.send(offer(100, method, b"file")).unwrap());
        assert_eq!(receive(&connection).await.unwrap(), &ACCEPT[..]);
        drop(connection.send(message.clone()).unwrap());
        // Memory may be offered before the end.
        let mut answers = 0;
        while receive(&connection).await.is_ok() {
            answers += 1;
            assert!(answers < 4, "{message:?}");
        }
    }
    for message in [
        vec![1],
        vec![2, 2, 0, 0],
        data(0, b"x"),
        finish,
        CANCEL.to_vec(),
    ] {
        let connection = connect(&listening.address).await;
        drop(connection.send(message.clone()).unwrap());
        assert!(receive(&connection).await.is_err(), "{message:?}");
    }
    let file = write_noise(&place.from, "file", 1000);
    run(&["send", &listening.address, file.to_str().unwrap()]).succeeded();
    assert_eq!(names_in(&place.into), ["file"]);
    let done = listening.terminate().succeeded();
    assert_eq!(
        done.stdout
            .matches("does not keep to the file protocol")
            .count(),
        12 + 17
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_checksum_keeps_the_file_out() {
    let place = Place::new();
    let listening = place.listen(&[]);
    let connection = connect(&listening.address).await;
    for message in [offer(5, 1, b"file"), data(0, b"hello")] {
        drop(connection.send(message).unwrap());
        receive(&connection).await.unwrap();
    }
    drop(
        connection
            .send([&[1, 6, 0, 0][..], &[0; 32]].concat())
            .unwrap(),
    );
    let answer = receive(&connection).await.unwrap();
    assert_eq!(answer[1], FAILED);
    assert!(answer[4..].starts_with(b"the checksum is "), "{answer:?}");
    assert!(names_in(&place.into).is_empty());
    let done = listening.terminate().succeeded();
    assert!(done.stdout.contains("damaged on the way"), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_and_then_silence_is_given_up() {
    let place = Place::new();
    let listening = place.listen(&["--inactivity-limit", "0.4", "--once"]);
    let connection = connect(&listening.address).await;
    drop(connection.send(offer(1 << 40, 1, b"file")).unwrap());
    assert_eq!(receive(&connection).await.unwrap(), &ACCEPT[..]);
    assert!(receive(&connection).await.is_err());
    let done = listening.running.finish();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(
        done.stdout.contains("the peer moved nothing for 400 ms"),
        "{done:?}"
    );
    assert!(names_in(&place.into).is_empty());
}

/// A listener that accepts a file and then breaks the rules.
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_notices_a_listener_that_breaks_the_rules() {
    let place = Place::new();
    let file = write_noise(&place.from, "file", 5 << 20);
    let address = "127.0.0.1:0";
    let mut listener = Listener::bind(&*provider(), address, Config::default())
        .await
        .unwrap();
    let address = listener.local_addr().to_string();
    let done = |offset: u64| [&[1, 5, 0, 0][..], &offset.to_le_bytes()].concat();
    for (rdma, answer) in [
        (false, done(1)),
        (false, done(u64::MAX)),
        (true, done(1)),
        (false, vec![1, 7, 0, 0]),
        (false, vec![0; 3]),
        (true, [&[1, 4, 0, 0][..], &[0; 23], &[1]].concat()),
    ] {
        let mut arguments = vec!["send", &address, file.to_str().unwrap()];
        if rdma {
            arguments.push("--rdma");
        }
        let sender = start(&arguments);
        let connection = timeout(STEP_TIMEOUT, listener.accept())
            .await
            .unwrap()
            .unwrap();
        receive(&connection).await.unwrap();
        drop(connection.send(ACCEPT.to_vec()).unwrap());
        receive(&connection).await.unwrap();
        drop(connection.send(answer).unwrap());
        let finished = tokio::task::spawn_blocking(|| sender.finish())
            .await
            .unwrap();
        finished.failed(1, "does not keep to the file protocol");
    }
}
