//! Each flag of TdiBuildSend, and what it changes at both ends:
//!
//! ```sh
//! cargo run -p smbdirect-tdi --example tdi_flags
//! ```
//!
//! Both ends are in this process and are connected over the loopback interface. Every line of the
//! output is a send, its completion, or a TSDU that the peer received.

use std::{error::Error, fmt, sync::Arc};

use bytes::BytesMut;
use smbdirect::rdma::iwarp::{Iwarp, IwarpConfig};
use smbdirect_tdi::{
    DisconnectFlags, Endpoint, NoResponse, ReceiveFlags, SendCompletion, SendFlags, SendSettings,
    Share, Status, Transport, TransportSettings,
};

/// MaxSendSize of the sending end, in bytes.
const MAX_TSDU: usize = 4096;
/// A send of this many bytes fills almost half of the send buffer, which has 2 * MAX_TSDU bytes.
const LARGE: usize = 4000;

// One thread, so that sends that are submitted without an `await` between them are all queued
// before the first of them leaves.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let receiving = Transport::new(provider.clone(), TransportSettings::default())?;
    let address = receiving
        .open_address("127.0.0.1:0".parse()?, Share::Exclusive)
        .await?;
    let peer = address.open_endpoint(());
    let accepted = peer.listen(None);

    let mut settings = TransportSettings {
        send: SendSettings::new(MAX_TSDU),
        ..TransportSettings::default()
    };
    // The default requests credits only when few are left, which takes many sends.
    settings.send.no_response = NoResponse::Always;
    let sending = Transport::new(provider, settings)?;
    let local = sending.open_any_address();
    let endpoint = local.open_endpoint(());
    endpoint.connect(address.local_addr(), None).await?;
    accepted.await?;

    let ends = Ends { endpoint, peer };
    ends.no_flags().await?;
    ends.partial().await?;
    ends.expedited().await?;
    ends.no_response_expected().await?;
    ends.non_blocking().await?;
    ends.combined().await?;
    ends.refused().await;

    let (Ends { endpoint, .. }, release) = (ends, DisconnectFlags::RELEASE);
    endpoint.disconnect(release, None).await?;
    let late = endpoint.send("too late", SendFlags::empty()).await;
    println!("disconnected");
    show(SendFlags::empty(), "too late", &late);
    assert_eq!(late.status, Status::INVALID_CONNECTION);
    Ok(())
}

/// The sending endpoint and the endpoint of its peer.
struct Ends {
    endpoint: Endpoint,
    peer: Endpoint,
}

impl Ends {
    /// A send without flags is a whole TSDU.
    async fn no_flags(&self) -> Result<(), Status> {
        println!("no flags");
        self.send("hello", SendFlags::empty()).await?;
        self.peer_receives("hello").await
    }

    /// PARTIAL: the TSDU continues with the next send. SMB Direct announces the length of a message
    /// in its first segment, so nothing leaves before the TSDU is complete.
    async fn partial(&self) -> Result<(), Status> {
        println!("PARTIAL");
        self.send("in ", SendFlags::PARTIAL).await?;
        self.send("two ", SendFlags::PARTIAL).await?;
        self.send("parts", SendFlags::empty()).await?;
        self.peer_receives("in two parts").await?;

        // An open TSDU can be discarded. The peer receives nothing of it.
        self.send("never", SendFlags::PARTIAL).await?;
        assert!(self.endpoint.discard_partial(SendFlags::empty()));
        println!("  discarded");
        Ok(())
    }

    /// EXPEDITED: the TSDU overtakes normal TSDUs that wait at this end. Expedited TSDUs keep their
    /// order among themselves.
    async fn expedited(&self) -> Result<(), Status> {
        println!("EXPEDITED");
        let send = |text, flags| (text, flags, self.endpoint.send(text, flags));
        let submitted = [
            send("one", SendFlags::empty()),
            send("two", SendFlags::empty()),
            send("now", SendFlags::EXPEDITED),
            send("next", SendFlags::EXPEDITED),
        ];
        for (text, flags, sending) in submitted {
            let completion = sending.await;
            show(flags, text, &completion);
            completion.result()?;
        }
        for text in ["now", "next", "one", "two"] {
            self.peer_receives(text).await?;
        }
        Ok(())
    }

    /// NO_RESPONSE_EXPECTED: the peer has nothing to answer, so the credits that it owes must not
    /// wait for an answer. SMB Direct carries no such flag; this end requests a response, which
    /// grants credits.
    async fn no_response_expected(&self) -> Result<(), Status> {
        println!("NO_RESPONSE_EXPECTED");
        let before = self.endpoint.connection()?.stats();
        self.send("no hurry", SendFlags::NO_RESPONSE_EXPECTED)
            .await?;
        self.peer_receives("no hurry").await?;
        let after = self.endpoint.connection()?.stats();
        let requested = after.keepalives_sent - before.keepalives_sent;
        println!("  requests for a response that left: {requested}");
        assert_eq!(requested, 1);
        Ok(())
    }

    /// NON_BLOCKING: the send takes the bytes for which the send buffer has room, and completes
    /// immediately.
    async fn non_blocking(&self) -> Result<(), Status> {
        println!("NON_BLOCKING");
        let data = "x".repeat(LARGE);
        for length in [LARGE, LARGE] {
            self.send(&data[..length], SendFlags::NON_BLOCKING).await?;
        }
        // There is room for a part. The TSDU stays open for the rest.
        let room = 2 * (MAX_TSDU - LARGE);
        let taken = self.send(&data[..1000], SendFlags::NON_BLOCKING).await?;
        assert_eq!(taken, room);
        let rest = &data[taken..1000];
        let refused = self.send(rest, SendFlags::NON_BLOCKING).await;
        assert_eq!(refused, Err(Status::DEVICE_NOT_READY));
        // The event "send possible" follows a refusal, once.
        let available = self.endpoint.send_possible().await?;
        println!("  send possible: {}", available >= rest.len());
        self.send(rest, SendFlags::NON_BLOCKING).await?;
        for length in [LARGE, LARGE, 1000] {
            self.peer_receives(&data[..length]).await?;
        }
        Ok(())
    }

    /// Flags can be combined. Expedited and normal TSDUs are open independently of each other.
    async fn combined(&self) -> Result<(), Status> {
        println!("combined");
        let (partial, expedited) = (SendFlags::PARTIAL, SendFlags::EXPEDITED);
        self.send("normal ", partial | SendFlags::NON_BLOCKING)
            .await?;
        self.send("expedited ", partial | expedited).await?;
        self.send("TSDU", expedited | SendFlags::NO_RESPONSE_EXPECTED)
            .await?;
        self.send("TSDU", SendFlags::empty()).await?;
        self.peer_receives("expedited TSDU").await?;
        self.peer_receives("normal TSDU").await
    }

    /// A request that SMB Direct cannot carry is refused, and no data is taken.
    async fn refused(&self) {
        println!("refused");
        let disconnect = self.send("bye", SendFlags::AND_DISCONNECT).await;
        assert_eq!(disconnect, Err(Status::NOT_SUPPORTED));
        let empty = self.send("", SendFlags::empty()).await;
        assert_eq!(empty, Err(Status::INVALID_PARAMETER));
        let long = "x".repeat(MAX_TSDU + 1);
        let long = self.send(&long, SendFlags::empty()).await;
        assert_eq!(long, Err(Status::INVALID_PARAMETER));
    }

    /// Sends `text`, and shows the completion. Returns the number of bytes taken.
    async fn send(&self, text: &str, flags: SendFlags) -> Result<usize, Status> {
        let completion = self.endpoint.send(text.as_bytes().to_vec(), flags).await;
        show(flags, text, &completion);
        completion.result()
    }

    /// Receives a TSDU at the peer, shows it, and compares it with `expected`.
    async fn peer_receives(&self, expected: &str) -> Result<(), Status> {
        let buffer = BytesMut::zeroed(MAX_TSDU);
        let received = self.peer.receive(buffer, ReceiveFlags::empty()).await;
        let data = received.into_data()?;
        let text = String::from_utf8_lossy(&data);
        println!("  the peer received {}", Quoted(&text));
        assert_eq!(text, expected);
        Ok(())
    }
}

fn show(flags: SendFlags, text: &str, completion: &SendCompletion) {
    let names: String = flags
        .iter_names()
        .flat_map(|(name, _)| [" ", name])
        .collect();
    let (text, status, taken) = (Quoted(text), completion.status, completion.information);
    println!("  send{names} {text}: {status}, {taken} bytes taken");
}

/// A text in quotation marks, or the length of one that does not fit into a line.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            length @ 40.. => write!(f, "{length} bytes"),
            _ => write!(f, "{:?}", self.0),
        }
    }
}
