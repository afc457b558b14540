//! Connecting to a host with several addresses: side by side, as RFC 8305 (Happy Eyeballs) has it.

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::sleep;

/// Time after which the next address is tried although the attempts before it have not failed (RFC 8305, section 5).
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Returns the first success of `attempt`, and ends the attempts at the other addresses. The next address is tried
/// when an attempt fails, or does not succeed soon.
///
/// # Errors
/// Every attempt failed; the error is that of the attempt that failed last.
pub(super) async fn first_of<T, E, F>(
    addresses: Vec<SocketAddr>,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = by_turns(addresses).into_iter();
    let first = waiting.next().expect("a name has at least one address");
    let mut running = vec![Box::pin(attempt(first))];
    loop {
        let has_more = waiting.len() > 0;
        let ended = tokio::select! {
            ended = poll_fn(|context| poll_any(&mut running, context)) => Some(ended),
            () = sleep(CONNECTION_ATTEMPT_DELAY), if has_more => None,
        };
        let fault = match ended {
            Some(Ok(connected)) => return Ok(connected),
            Some(Err(fault)) => Some(fault),
            None => None,
        };
        match (waiting.next(), fault) {
            (Some(address), _) => running.push(Box::pin(attempt(address))),
            (None, Some(fault)) if running.is_empty() => return Err(fault),
            (None, _) => {}
        }
    }
}

/// Polls all attempts, and removes the first that has ended.
fn poll_any<T, F: Future<Output = T>>(
    running: &mut Vec<Pin<Box<F>>>,
    context: &mut Context<'_>,
) -> Poll<T> {
    for index in 0..running.len() {
        if let Poll::Ready(ended) = running[index].as_mut().poll(context) {
            drop(running.swap_remove(index));
            return Poll::Ready(ended);
        }
    }
    Poll::Pending
}

/// Returns the addresses with the two families alternately, beginning with the family that the system put first.
fn by_turns(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let begins_with_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut one, mut other): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == begins_with_ipv6);
    one.reverse();
    other.reverse();
    let mut turns = Vec::with_capacity(one.len() + other.len());
    while !(one.is_empty() && other.is_empty()) {
        turns.extend(one.pop());
        turns.extend(other.pop());
    }
    turns
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Mutex};

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns() {
        let all = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let turns = addresses(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(by_turns(all), turns);
        assert_eq!(by_turns(addresses(&["1.1.1.1:1"])).len(), 1);
    }

    /// Returns what came of the attempts, and the ports that were tried. Each address behaves by its port: 1 fails
    /// immediately, 2 never answers, and the others succeed.
    async fn tried(ports: &[u16]) -> (Result<u16, u16>, Vec<u16>) {
        let tried = Mutex::new(Vec::new());
        let all = ports
            .iter()
            .map(|&port| ([127, 0, 0, 1], port).into())
            .collect();
        let result = first_of(all, |address: SocketAddr| {
            let port = address.port();
            tried.lock().unwrap().push(port);
            async move {
                match port {
                    1 => Err(port),
                    2 => pending().await,
                    _ => Ok(port),
                }
            }
        })
        .await;
        (result, tried.into_inner().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_delays_the_next_one_shortly() {
        assert_eq!(tried(&[3, 4]).await, (Ok(3), vec![3]));
        assert_eq!(tried(&[1, 3]).await, (Ok(3), vec![1, 3]));
        let began = tokio::time::Instant::now();
        assert_eq!(tried(&[2, 2, 1, 4]).await, (Ok(4), vec![2, 2, 1, 4]));
        assert_eq!(began.elapsed(), 2 * CONNECTION_ATTEMPT_DELAY);
        assert_eq!(tried(&[1, 1]).await, (Err(1), vec![1, 1]));
    }
}
