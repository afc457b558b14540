//! A stall of this process fails no send: what has arrived is read before a deadline is judged, and a peer that had
//! no time to answer gets some.

use std::{sync::Arc, thread, time::Duration};

use bytes::BytesMut;
use smbdirect::{Iwarp, IwarpConfig, Settings};
use smbdirect_tdi::{ReceiveFlags, SendFlags, Status};
use tokio::runtime::Builder;

use crate::endpoint::ends::{Ends, settings, within};

/// Every deadline of the end that is stopped.
const LIMIT: Duration = Duration::from_millis(400);
/// A stop of the thread.
const STOP: Duration = Duration::from_millis(900);

#[test]
fn a_tdi_send_outlives_a_stop() {
    let one_thread = Builder::new_current_thread().enable_all().build();
    let several = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    for runtime in [one_thread.unwrap(), several.unwrap()] {
        runtime.block_on(async {
            let provider = Arc::new(Iwarp::new(IwarpConfig {
                connect_timeout: LIMIT,
                accept_timeout: LIMIT,
                close_timeout: LIMIT,
                ..IwarpConfig::default()
            }));
            let mut settings = settings(Settings::default());
            settings.send.send_timeout = Some(LIMIT);
            let ends = Ends::with(provider, settings).await;
            let sending = ends.here.send(vec![7; 1 << 20], SendFlags::empty());
            let receiving = ends
                .there
                .receive(BytesMut::zeroed(1 << 20), ReceiveFlags::NORMAL);
            thread::sleep(STOP);
            assert_eq!(within(sending).await.status, Status::SUCCESS);
            assert_eq!(within(receiving).await.status, Status::SUCCESS);
        });
    }
}
