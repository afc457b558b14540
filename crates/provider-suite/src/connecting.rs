//! Listeners, requests and answers.

use std::{future::poll_fn, net::TcpStream, task::Poll, time::Duration};

use bytes::Bytes;
use smbdirect_rdma::{
    provider::{AcceptRequest, ConnectRequest},
    work::ProviderErrorKind,
};

use super::fabric::{
    End, Fabric, Pair, accept, first_receive, next_incoming, request, within_time,
};

pub async fn private_data_travels_both_ways(fabric: &Fabric) {
    let mut listener = fabric.listener().await;
    let address = listener.local_addr();
    assert_ne!(address.port(), 0);
    let question = Bytes::from(vec![0x51; fabric.capabilities.private_data]);
    let whole = |arrived: &Bytes, sent: &Bytes| {
        if fabric.capabilities.exact_private_data {
            arrived == sent
        } else {
            arrived.starts_with(sent) && arrived[sent.len()..].iter().all(|&b| b == 0)
        }
    };
    let connect = fabric.active.connect(ConnectRequest {
        private_data: question.clone(),
        ..request(address)
    });
    let accept = async {
        let incoming = next_incoming(listener.as_mut()).await;
        assert!(whole(&incoming.private_data, &question));
        let from = incoming.peer_addr;
        let answer = AcceptRequest {
            private_data: Bytes::from_static(b"answer"),
            receive: first_receive(),
            peer_serves_reads: Some(4),
        };
        (from, incoming.accept(answer).await.unwrap())
    };
    let both = async { tokio::join!(connect, accept) };
    let (active, (from, passive)) = within_time("connecting", both).await;
    let active = active.unwrap();
    assert!(whole(&active.private_data, &Bytes::from_static(b"answer")));
    assert_eq!(active.peer_addr, address);
    assert_eq!(active.local_addr, from);
    assert_eq!(passive.private_data, &b""[..]);
    assert_eq!(passive.peer_addr, from);
    assert_eq!(passive.local_addr, address);
    let most = passive.limits.max_outbound_reads;
    assert!(most <= 4, "the peer serves 4 Reads and we post {most}");
}

pub async fn connecting_without_a_listener_fails(fabric: &Fabric) {
    let address = fabric.listener().await.local_addr();
    let error = fabric.connect(address).await.map(drop).unwrap_err();
    // Nothing else uses the UDP port of RoCE in software here.
    let kinds = [
        ProviderErrorKind::Refused,
        ProviderErrorKind::PortUnreachable,
    ];
    assert!(kinds.contains(&error.kind), "{error:?}");
}

pub async fn dropped_incoming_refuses(fabric: &Fabric) {
    let mut listener = fabric.listener().await;
    let address = listener.local_addr();
    let turn_away = async { drop(next_incoming(listener.as_mut()).await) };
    let (active, ()) = tokio::join!(fabric.connect(address), turn_away);
    let error = active.map(drop).unwrap_err();
    // Software iWARP of Linux does not distinguish a refusal from a missing listener.
    let kinds = [ProviderErrorKind::Rejected, ProviderErrorKind::Refused];
    assert!(kinds.contains(&error.kind), "{error:?}");
    // The listener continues.
    let mut pair = fabric.pair_at(listener.as_mut()).await;
    greet(&mut pair).await;
}

/// The reason that the peer sees depends on the provider, because a closing listener may not have
/// time to send one, and on time: a request may arrive after the socket of the listener has closed.
pub async fn closed_listener_refuses(fabric: &Fabric) {
    let listener = fabric.listener().await;
    let address = listener.local_addr();
    let close = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(listener);
    };
    let (active, ()) = tokio::join!(fabric.connect(address), close);
    let kind = active.map(drop).unwrap_err().kind;
    let kinds = [
        ProviderErrorKind::Refused,
        ProviderErrorKind::PortUnreachable,
        ProviderErrorKind::Rejected,
        ProviderErrorKind::Reset,
    ];
    assert!(kinds.contains(&kind), "{kind:?}");
}

pub async fn given_up_connect(fabric: &Fabric) {
    let mut listener = fabric.listener().await;
    let address = listener.local_addr();
    let mut connect = fabric.active.connect(request(address));
    poll_fn(|context| Poll::Ready(connect.as_mut().poll(context).is_pending())).await;
    drop(connect);
    // The listener may see the abandoned peer or not. The next peer connects, and is the last one
    // that it sees.
    let mut accepted = None;
    let mut connect = std::pin::pin!(fabric.connect(address));
    let active = loop {
        tokio::select! {
            active = &mut connect => break active,
            incoming = next_incoming(listener.as_mut()) => {
                accepted = accept(incoming).await.ok().or(accepted);
            }
        }
    };
    let mut pair = Pair {
        active: End::new(active.unwrap()),
        passive: End::new(accepted.expect("the connecting peer was accepted")),
        capabilities: fabric.capabilities,
    };
    greet(&mut pair).await;
}

//= SMBD-3.1.4.1-07 test
//= SMBD-3.1.7.2-04 test
pub async fn the_receive_posted_before_connecting(fabric: &Fabric) {
    let mut pair = fabric.pair().await;
    greet(&mut pair).await;
}

pub async fn a_hundred_connections(fabric: &Fabric) {
    let mut listener = fabric.listener().await;
    let address = listener.local_addr();
    let mut active = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let provider = fabric.active.clone();
        active.spawn(async move { provider.connect(request(address)).await.unwrap() });
    }
    let mut passive = Vec::new();
    while passive.len() < 100 {
        let incoming = next_incoming(listener.as_mut()).await;
        passive.push(End::new(accept(incoming).await.unwrap()));
    }
    let active = within_time("connecting", active.join_all()).await;
    assert_eq!(active.len(), 100);
    drop(active);
    for end in &mut passive {
        end.ended().await;
    }
}

pub async fn connections_outlive_the_listener(fabric: &Fabric) {
    let mut listener = fabric.listener().await;
    let mut pair = fabric.pair_at(listener.as_mut()).await;
    drop(listener);
    greet(&mut pair).await;
}

//= MPA-31 test
pub async fn silent_peer_blocks_no_other(fabric: &Fabric) {
    if !fabric.capabilities.over_tcp {
        println!(
            "skipped: no half-open connections with {}",
            fabric.passive.attributes().name
        );
        return;
    }
    let mut listener = fabric.listener().await;
    let address = listener.local_addr();
    let silent = [(); 3].map(|()| TcpStream::connect(address).unwrap());
    let pair = fabric.pair_at(listener.as_mut());
    // This is less than a provider waits for silent peers.
    let mut pair = tokio::time::timeout(Duration::from_secs(3), pair)
        .await
        .unwrap();
    greet(&mut pair).await;
    drop(silent);
}

//= SMBD-3.1.4.6-05 test
pub async fn limits_of_the_two_ends_agree(fabric: &Fabric) {
    let pair = fabric.pair().await;
    let (a, p) = (pair.active.limits(), pair.passive.limits());
    assert!(a.max_outbound_reads <= p.max_inbound_reads, "{a:?} {p:?}");
    assert!(p.max_outbound_reads <= a.max_inbound_reads, "{a:?} {p:?}");
    for (limits, provider) in [(a, &fabric.active), (p, &fabric.passive)] {
        let best = provider.attributes().limits;
        assert!(limits.max_outbound_reads <= best.max_outbound_reads);
        assert!(limits.max_transfer <= best.max_transfer);
        assert!(limits.max_send_queue <= best.max_send_queue);
        assert!(limits.max_receive_queue <= best.max_receive_queue);
    }
}

/// Exchanges a message in each direction.
async fn greet(pair: &mut Pair) {
    pair.active.send("hello");
    let message = pair.until("hello", |_, p| p.messages.pop_front()).await;
    assert_eq!(message.bytes, "hello");
    pair.passive.send("welcome");
    let message = pair.until("welcome", |a, _| a.messages.pop_front()).await;
    assert_eq!(message.bytes, "welcome");
}
