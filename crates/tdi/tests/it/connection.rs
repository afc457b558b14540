//! Tests of `Outbound` and `Inbound` at the two ends of a real connection, in process and over TCP.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use bytes::Bytes;
use smbdirect::{
    Config, Connection, Listener, Settings,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        loopback::Loopback,
        provider::Provider,
    },
};
use smbdirect_tdi::{
    Answer, Inbound, IndicationFlags, Outbound, ReceiveEvent, ReceiveSettings, RequestId,
    SendAvailability, SendEvent, SendFlags, SendRequest, SendSettings, Status, Submission,
};
use tokio::time::{Duration, timeout};

/// A connection, and the listener that keeps the other end's provider alive.
struct Pair {
    client: Connection,
    server: Connection,
    _listener: Listener,
}

async fn pair(provider: Arc<dyn Provider>) -> Pair {
    // With four credits a long TSDU has to wait for more credits before its end.
    let mut settings = Settings::default();
    settings.send_credit_target = 4;
    settings.receive_credit_max = 4;
    let config = Config::new(settings).unwrap();
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::bind(&*provider, address, config.clone())
        .await
        .unwrap();
    let address = listener.local_addr();
    let connecting = Connection::connect(&*provider, address, config);
    let (client, server) = tokio::join!(connecting, listener.accept());
    Pair {
        client: client.unwrap(),
        server: server.unwrap(),
        _listener: listener,
    }
}

fn providers() -> [Arc<dyn Provider>; 2] {
    let iwarp = Iwarp::new(IwarpConfig::default());
    [Arc::new(Loopback::new()), Arc::new(iwarp)]
}

/// Sends all complete TSDUs.
async fn send_all(connection: &Connection, outbound: &mut Outbound) {
    loop {
        connection.ready().await.unwrap();
        let Some(tsdu) = outbound.poll_tsdu(SendAvailability::default()) else {
            return;
        };
        connection.send(tsdu.message).unwrap().await.unwrap();
        outbound.tsdu_sent();
    }
}

/// Takes `count` TSDUs from indications. Returns each with the number of its indications.
async fn indicated(connection: &Connection, count: usize) -> Vec<(Bytes, usize)> {
    let mut inbound = Inbound::new(ReceiveSettings::default()).unwrap();
    let (mut tsdus, mut tsdu, mut indications) = (Vec::new(), Vec::new(), 0);
    while tsdus.len() < count {
        assert!(inbound.wants_segment());
        let segment = connection.recv_segment().await.unwrap();
        let remaining = segment.remaining as usize;
        inbound.handle_segment(segment.payload, remaining, segment.invalidated_token);
        while let Some(event) = inbound.poll_event() {
            let ReceiveEvent::Indicate(seen) = event else {
                panic!("{event:?}");
            };
            assert_eq!(seen.tsdu_offset, tsdu.len());
            indications += 1;
            tsdu.extend_from_slice(&seen.data);
            inbound.answer(Answer::Taken(seen.data.len())).unwrap();
            let ends = seen.flags.contains(IndicationFlags::ENTIRE_MESSAGE);
            assert_eq!(ends, tsdu.len() == seen.tsdu_length);
            if ends {
                tsdus.push((std::mem::take(&mut tsdu).into(), indications));
                indications = 0;
            }
        }
    }
    assert_eq!(inbound.held(), 0);
    tsdus
}

//= TDI-SEND-04 test
//= TDI-SEND-09 test
//= TDI-SEND-10 test
//= TDI-SEND-28 test
#[tokio::test]
async fn tsdus_arrive_in_order_and_whole() {
    let long: Bytes = (0..200_000_u32)
        .map(|at| at as u8)
        .collect::<Vec<_>>()
        .into();
    for provider in providers() {
        let pair = pair(provider).await;
        let max = pair.client.negotiated().max_fragmented_send_size as usize;
        let mut outbound = Outbound::new(SendSettings::new(max)).unwrap();
        let mut send = |id, data: Bytes, flags| {
            let request = SendRequest::new(RequestId(id), data, flags);
            outbound.send(Instant::now(), request)
        };
        for (id, part) in [(1, 0..50_000), (2, 50_000..50_001), (3, 50_001..150_000)] {
            let done = send(id, long.slice(part.clone()), SendFlags::PARTIAL);
            let Submission::Completed(done) = done else {
                panic!("a segment is wanted");
            };
            assert_eq!(
                (done.status, done.information),
                (Status::SUCCESS, part.len())
            );
        }
        for (id, data, flags) in [
            (4, Bytes::from("normal"), SendFlags::PARTIAL),
            (5, Bytes::from("expedited"), SendFlags::EXPEDITED),
            (6, long.slice(150_000..), SendFlags::empty()),
            (7, Bytes::from("last"), SendFlags::empty()),
        ] {
            send(id, data, flags);
        }
        let mut whole = long.slice(..150_000).to_vec();
        whole.extend_from_slice(b"normal");
        whole.extend_from_slice(&long[150_000..]);
        let both = async {
            tokio::join!(
                send_all(&pair.client, &mut outbound),
                indicated(&pair.server, 3)
            )
            .1
        };
        let tsdus = timeout(Duration::from_secs(60), both)
            .await
            .expect("it completes in time");
        let data: Vec<_> = tsdus.iter().map(|(data, _)| &data[..]).collect();
        assert!(data == [b"expedited", &whole[..], b"last"]);
        // The long TSDU is longer than one indication.
        assert!(tsdus[1].1 > 3, "{} indications", tsdus[1].1);
        let mut done = Vec::new();
        while let Some(SendEvent::Completed(completion)) = outbound.poll_event() {
            done.push((completion.id.0, completion.status, completion.information));
        }
        let success = Status::SUCCESS;
        assert_eq!(
            done,
            [(5, success, 9), (6, success, 50_000), (7, success, 4)]
        );
        assert_eq!(outbound.buffered(), 0);
    }
}
