//! All futures of the crate, from one list: a future that is dropped leaves no waker behind, and no waker is
//! woken or dropped under a lock, so it may own the last handle and call it.

use std::{
    collections::BTreeSet,
    fs,
    future::Future,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex, Weak, mpsc},
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::{
    Access, Config, Connection, Incoming, IncomingListener, Listener, MemoryRegion, Settings,
    rdma::provider::Provider,
    tdi::{ReceiveFlags, SendFlags},
};
use smbdirect_test::within;
use tokio::{runtime::Builder, sync::Mutex as AsyncMutex, time::sleep};

use crate::tdi_endpoint::ends::{Ends, any_port, iwarp, loopback, settings};

/// Bytes that do not fit into the buffers of a socket.
const LONG_WRITE_BYTES: usize = 32 << 20;
/// Messages for which a peer that does not run has not granted enough credits.
const MANY_MESSAGES: usize = 600;

type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Handles of each kind, over one provider.
struct World {
    provider: Arc<dyn Provider>,
    client: Connection,
    server: Connection,
    region: MemoryRegion,
    listener: Arc<AsyncMutex<Listener>>,
    incoming: Arc<AsyncMutex<IncomingListener>>,
    offer: Mutex<Option<Incoming>>,
    /// The other end of `offer`.
    _offering: tokio::task::JoinHandle<()>,
    ends: Ends,
}

impl World {
    async fn new(provider: Arc<dyn Provider>) -> Self {
        let mut listener = Listener::bind(&*provider, any_port(), Config::default())
            .await
            .unwrap();
        let at = listener.local_address();
        let (client, server) = tokio::join!(
            Connection::connect(&*provider, at, Config::default()),
            listener.accept()
        );
        let server = server.unwrap();
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = server.register(BytesMut::zeroed(LONG_WRITE_BYTES), access);
        let mut incoming = IncomingListener::bind(&*provider, any_port())
            .await
            .unwrap();
        let (there, address) = (provider.clone(), incoming.local_address());
        let offering = tokio::spawn(async move {
            let _ = Connection::connect(&*there, address, Config::default()).await;
        });
        let offer = within(incoming.accept()).await.unwrap();
        Self {
            ends: Ends::with(provider.clone(), settings(Settings::default())).await,
            client: client.unwrap(),
            server,
            region: region.unwrap(),
            listener: Arc::new(AsyncMutex::new(listener)),
            incoming: Arc::new(AsyncMutex::new(incoming)),
            offer: Mutex::new(Some(offer)),
            _offering: offering,
            provider,
        }
    }

    /// Returns a copy of each handle.
    fn handles(&self) -> Vec<Connection> {
        vec![self.client.clone(), self.server.clone()]
    }

    /// Submits messages until the peer has granted too few credits.
    fn fill(&self) {
        for _ in 0..MANY_MESSAGES {
            drop(self.client.send("x").unwrap());
        }
    }
}

/// A future of the crate.
struct Case {
    /// The name of the function or type in the source.
    name: &'static str,
    /// The first poll is certain to be pending over TCP.
    waits: bool,
    make: fn(&World) -> Boxed,
}

macro_rules! cases {
    ($($name:literal $waits:literal |$world:ident| $make:expr;)*) => {
        const CASES: &[Case] = &[$(Case {
            name: $name,
            waits: $waits,
            make: |$world| {
                let future = $make;
                Box::pin(async move { let _ = future.await; })
            },
        }),*];
    };
}

cases! {
    "recv" true |world| { let at = world.client.clone(); async move { at.recv().await } };
    "recv_segment" true |world| { let at = world.client.clone(); async move { at.recv_segment().await } };
    "recv_many" true |world| {
        let at = world.client.clone();
        async move { at.recv_many(&mut Vec::new(), 9).await }
    };
    "ready" true |world| {
        world.fill();
        let at = world.client.clone();
        async move { at.ready().await }
    };
    "keepalive" true |world| { let at = world.client.clone(); async move { at.keepalive().await } };
    "close" true |world| { let at = world.client.clone(); async move { at.close().await } };
    "closed" true |world| { let at = world.client.clone(); async move { at.closed().await } };
    "Sending" true |world| {
        world.fill();
        world.client.send("last").unwrap()
    };
    "Reading" true |world| {
        world.client.read(&[world.region.descriptor()], 0, BytesMut::zeroed(1 << 20))
    };
    "Writing" true |world| {
        let data = Bytes::from(vec![1; LONG_WRITE_BYTES]);
        world.client.write(&[world.region.descriptor()], 0, data)
    };
    "deregister" false |world| {
        let region = world.client.register(BytesMut::zeroed(9), Access::REMOTE_READ).unwrap();
        region.deregister()
    };
    "connect" true |world| {
        let provider = world.provider.clone();
        async move {
            let at = IncomingListener::bind(&*provider, any_port()).await.unwrap();
            Connection::connect(&*provider, at.local_address(), Config::default()).await
        }
    };
    "bind" false |world| {
        let provider = world.provider.clone();
        async move { Listener::bind(&*provider, any_port(), Config::default()).await }
    };
    "accept" true |world| {
        let listener = world.listener.clone();
        async move { listener.lock().await.accept().await }
    };
    "accept" true |world| {
        let listener = world.incoming.clone();
        async move { listener.lock().await.accept().await }
    };
    "accept" true |world| {
        world.offer.lock().unwrap().take().unwrap().accept(Config::default())
    };
    "open_address" false |world| {
        let transport = world.ends.transport.clone();
        async move {
            let share = smbdirect::tdi::Share::Exclusive;
            transport.open_address::<()>(any_port(), share).await
        }
    };
    "Requested" true |world| {
        let endpoint = world.ends.transport.open_endpoint(());
        endpoint.associate(&world.ends.remote).unwrap();
        let listen = endpoint.listen(None);
        async move {
            let result = listen.await;
            drop(endpoint);
            result
        }
    };
    "Sending" true |world| world.ends.here.send(Bytes::from("a TSDU"), SendFlags::empty());
    "Receiving" true |world| world.ends.here.receive(BytesMut::zeroed(9), ReceiveFlags::NORMAL);
    "send_possible" true |world| {
        let at = world.ends.here.clone();
        while at.try_send(vec![1; 65536], SendFlags::empty()).is_ok() {}
        async move { at.send_possible().await }
    };
    "disconnected" true |world| {
        let at = world.ends.here.clone();
        async move { at.disconnected().await }
    };
}

/// A waker that owns handles, and calls and drops them when it is woken or dropped.
struct Owner(Mutex<Vec<Connection>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        let handles = std::mem::take(&mut *self.0.lock().unwrap());
        for handle in handles {
            handle.stats();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().unwrap().drain(..).for_each(|handle| {
            handle.stats();
        });
    }
}

fn owner(handles: Vec<Connection>) -> (Waker, Weak<Owner>) {
    let owner = Arc::new(Owner(Mutex::new(handles)));
    let weak = Arc::downgrade(&owner);
    (Waker::from(owner), weak)
}

fn poll(future: &mut Boxed, waker: &Waker) -> bool {
    let mut context = Context::from_waker(waker);
    future.as_mut().poll(&mut context).is_pending()
}

/// Waits until nothing owns the waker.
async fn is_gone(name: &str, owner: &Weak<Owner>) {
    for _ in 0..10_000 {
        if owner.strong_count() == 0 {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
    panic!("{name}: its waker was left behind");
}

/// Polls the future, polls it with another waker, and drops it.
async fn dropped(case: &Case, world: World, is_tcp: bool) {
    let name = case.name;
    let mut future = (case.make)(&world);
    let (first, first_owner) = owner(world.handles());
    let (second, second_owner) = owner(world.handles());
    let pending = poll(&mut future, &first);
    assert!(pending || !is_tcp || !case.waits, "{name} did not wait");
    drop(first);
    if !pending {
        return;
    }
    // From here on the wakers own the last handles, except those that the future itself has.
    let kept = [world.client.clone(), world.server.clone()];
    let World { client, server, .. } = world;
    drop((client, server));
    if poll(&mut future, &second) {
        is_gone(name, &first_owner).await;
    }
    drop((second, kept));
    drop(future);
    is_gone(name, &first_owner).await;
    is_gone(name, &second_owner).await;
}

/// Polls the future with a waker that owns the last handles, and drops it.
async fn dropped_with_the_last_handle(case: &Case, world: World) {
    let mut future = (case.make)(&world);
    let (waker, owner) = owner(world.handles());
    poll(&mut future, &waker);
    drop((waker, world));
    drop(future);
    is_gone(case.name, &owner).await;
}

/// Polls the future, and ends the connections, which wakes it.
async fn woken(case: &Case, world: World) {
    let mut future = (case.make)(&world);
    let (waker, owner) = owner(world.handles());
    let pending = poll(&mut future, &waker);
    world.client.abort();
    world.server.abort();
    drop((waker, world));
    if pending {
        let _ = tokio::time::timeout(Duration::from_millis(20), &mut future).await;
    }
    drop(future);
    is_gone(case.name, &owner).await;
}

#[test]
fn a_dropped_future_leaves_nothing_behind_and_no_waker_runs_under_a_lock() {
    for provider in [iwarp, loopback] {
        let is_tcp = provider().name() == "iwarp";
        for (index, case) in CASES.iter().enumerate() {
            let name = case.name;
            let (done, is_done) = mpsc::channel();
            let thread = thread::spawn(move || {
                let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    dropped(case, World::new(provider()).await, is_tcp).await;
                    dropped_with_the_last_handle(case, World::new(provider()).await).await;
                    woken(case, World::new(provider()).await).await;
                });
                done.send(()).unwrap();
            });
            match is_done.recv_timeout(Duration::from_secs(120)) {
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("{name} (number {index}): a lock is held while a waker runs")
                }
                _ => thread.join().unwrap(),
            }
        }
    }
}

/// Finds the asynchronous functions and the futures in the source: each is in the list above.
#[test]
fn the_list_has_all_futures() {
    /// Tasks of the crate, and futures of functions that are in the list.
    const WITHIN: &[&str] = &["Driver", "Task", "Polling", "Possible"];
    fn visit(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // Providers are used through the functions that are in the list.
            if path.is_dir() && path.file_name().is_none_or(|name| name != "rdma") {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path).unwrap();
                for line in source.lines().map(str::trim) {
                    let name = line
                        .strip_prefix("pub async fn ")
                        .or_else(|| line.strip_prefix("impl Future for "));
                    let end = |at: char| !at.is_alphanumeric() && at != '_';
                    found.extend(
                        name.and_then(|name| name.split(end).next())
                            .map(String::from),
                    );
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    visit(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    assert!(found.len() > 15, "{found:?}");
    let known = CASES
        .iter()
        .map(|case| case.name)
        .chain(WITHIN.iter().copied());
    assert_eq!(found, known.map(String::from).collect());
}
