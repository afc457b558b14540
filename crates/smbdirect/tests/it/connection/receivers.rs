//! Several tasks receive on one connection.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
};

use smbdirect::{Connection, ConnectionError, Message, rdma::provider::Provider};
use smbdirect_test::within;

use super::{Pair, pair};

over_every_provider! {
    receivers_are_served_in_the_order_in_which_they_wait
    one_message_wakes_one_receiver
    a_dropped_receiver_leaves_its_message_to_the_next_one
    many_tasks_receive_in_turn
}

type Receiving<'a> = Pin<Box<dyn Future<Output = Result<Message, ConnectionError>> + Send + 'a>>;

/// Counts how often a future is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A future that receives, and its wake-ups.
struct Receiver<'a> {
    future: Receiving<'a>,
    count: Arc<Count>,
}

impl<'a> Receiver<'a> {
    fn new(connection: &'a Connection) -> Self {
        Self {
            future: Box::pin(connection.recv()),
            count: Arc::default(),
        }
    }

    fn poll(&mut self) -> Option<Message> {
        let waker = Waker::from(self.count.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Some(result.unwrap()),
            Poll::Pending => None,
        }
    }

    fn wake_ups(&self) -> usize {
        self.count.0.load(SeqCst)
    }
}

/// Returns receivers that began to wait one after the other.
fn waiting(connection: &Connection, count: usize) -> Vec<Receiver<'_>> {
    let mut receivers: Vec<_> = (0..count).map(|_| Receiver::new(connection)).collect();
    for receiver in &mut receivers {
        assert!(receiver.poll().is_none());
    }
    receivers
}

/// Sends messages of one byte each, counted from `first`, and waits until they have arrived.
async fn deliver(from: &Connection, to: &Connection, first: u8, count: u8) {
    let before = to.stats().messages_received;
    for number in first..first + count {
        drop(from.send([number]).unwrap());
    }
    within(async {
        while to.stats().messages_received < before + u64::from(count) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

async fn receivers_are_served_in_the_order_in_which_they_wait(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let mut receivers = waiting(&server, 5);
    deliver(&client, &server, 0, 3).await;
    assert!(Receiver::new(&server).poll().is_none(), "it came last");
    // The order in which a runtime polls them does not matter.
    for (index, expected) in [
        (4, None),
        (1, Some(1)),
        (3, None),
        (0, Some(0)),
        (2, Some(2)),
    ] {
        let received = receivers[index].poll();
        assert_eq!(received.map(|message| message.into_bytes()[0]), expected);
    }
    deliver(&client, &server, 3, 2).await;
    for index in [4, 3] {
        assert_eq!(
            receivers[index].poll().unwrap().into_bytes(),
            [index as u8][..]
        );
    }
}

async fn one_message_wakes_one_receiver(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let mut receivers = waiting(&server, 4);
    let all = |receivers: &[Receiver<'_>]| receivers.iter().map(Receiver::wake_ups).sum::<usize>();
    deliver(&client, &server, 0, 1).await;
    assert_eq!((receivers[0].wake_ups(), all(&receivers)), (1, 1));
    deliver(&client, &server, 1, 1).await;
    assert_eq!((receivers[1].wake_ups(), all(&receivers)), (1, 2));
    assert!(receivers[0].poll().is_some() && receivers[1].poll().is_some());
    within(client.close()).await.unwrap();
    within(server.closed()).await;
    assert_eq!((receivers[2].wake_ups(), receivers[3].wake_ups()), (1, 1));
}

async fn a_dropped_receiver_leaves_its_message_to_the_next_one(provider: Arc<dyn Provider>) {
    let Pair { client, server, .. } = pair(provider).await;
    let mut receivers = waiting(&server, 3);
    deliver(&client, &server, 7, 1).await;
    drop(receivers.remove(0));
    assert_eq!((receivers[0].wake_ups(), receivers[1].wake_ups()), (1, 0));
    assert!(receivers[1].poll().is_none());
    assert_eq!(receivers[0].poll().unwrap().into_bytes(), [7][..]);
    // A receiver that is not polled again keeps no message after the end.
    deliver(&client, &server, 8, 1).await;
    within(client.close()).await.unwrap();
    within(server.closed()).await;
    assert_eq!(within(server.recv()).await.unwrap().into_bytes(), [8][..]);
    assert_eq!(
        within(server.recv()).await.unwrap_err(),
        ConnectionError::Closed
    );
}

async fn many_tasks_receive_in_turn(provider: Arc<dyn Provider>) {
    const TASKS: usize = 8;
    const MESSAGES: usize = 50;
    let Pair { client, server, .. } = pair(provider).await;
    let tasks = [(); TASKS].map(|()| {
        let server = server.clone();
        tokio::spawn(async move {
            let mut received = 0;
            while received < MESSAGES && server.recv().await.is_ok() {
                received += 1;
            }
            received
        })
    });
    for _ in 0..TASKS * MESSAGES {
        drop(client.send("x").unwrap());
    }
    for task in tasks {
        assert_eq!(within(task).await.unwrap(), MESSAGES);
    }
}
