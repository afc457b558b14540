//! Log lines about a connection are in a span that names the connection. This is a binary of its own, because
//! `tracing` caches subscribers for all threads.

use std::sync::Arc;

use smbdirect::{Iwarp, IwarpConfig};
use smbdirect_tdi::{
    Answer, Client, Endpoint, Indication, SendFlags, Share, Transport, TransportSettings,
};
use smbdirect_test::log::{Log, peer};

#[tokio::test]
async fn lines_about_tdi_sessions_name_the_peer() {
    struct Panics;
    impl Client for Panics {
        fn receive(&self, _: &Endpoint, _: Indication) -> Answer {
            panic!("on purpose")
        }
    }

    struct TakesMore;
    impl Client for TakesMore {
        fn receive(&self, _: &Endpoint, indication: Indication) -> Answer {
            Answer::Taken(indication.data.len() + 1)
        }
    }

    let (log, _guard) = Log::start("info");
    let provider = Arc::new(Iwarp::new(IwarpConfig::default()));
    let transport = Transport::new(provider, TransportSettings::default()).unwrap();
    let opened = transport
        .open_address("127.0.0.1:0".parse().unwrap(), Share::Exclusive)
        .await;
    let (remote, local) = (opened.unwrap(), transport.open_any_address());
    let address = remote.local_addr();
    let (here, there) = (transport.open_endpoint(()), transport.open_endpoint(()));
    here.associate(&local).unwrap();
    there.associate(&remote).unwrap();

    here.connect(address, None).await.unwrap_err();
    let line = log.wait_for("no address accepts a peer").await;
    assert_ne!(peer(&line), address);

    remote.set_client(Some(Arc::new(Panics)));
    let listening = there.listen(None);
    here.connect(address, None).await.unwrap();
    listening.await.unwrap();
    drop(here.send("boom", SendFlags::empty()));
    let line = log.wait_for("a handler panicked").await;
    assert_ne!(peer(&line), address);
    assert!(line.contains(&format!(" local={address}}}: ")), "{line}");

    there.disconnected().await.unwrap();
    here.disconnected().await.unwrap();
    let took_more = "a handler took more than was indicated";
    assert!(!log.lines().iter().any(|line| line.contains(took_more)));
    remote.set_client(Some(Arc::new(TakesMore)));
    let listening = there.listen(None);
    here.connect(address, None).await.unwrap();
    listening.await.unwrap();
    drop(here.send("a little", SendFlags::empty()));
    let line = log.wait_for(took_more).await;
    assert!(line.contains(&format!(" local={address}}}: ")), "{line}");
}
