//! Feature `metrics`: the figures of real connections, and what a recorder of the facade gets.
//!
//! This is a single test, because the figures cover the whole process.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicU64, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use smbdirect::{
    Access, Config, Connection, ConnectionError, Listener, Settings,
    metrics::{Kind, Role, Value, snapshot},
    rdma::{loopback::Loopback, provider::Provider},
};

/// A recorder that keeps the last value of each figure.
#[derive(Default)]
struct Kept {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<String, Arc<Recorded>>>,
    described: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Recorded(Mutex<Vec<f64>>);

impl HistogramFn for Recorded {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

fn text(key: &Key) -> String {
    let labels = key
        .labels()
        .map(|label| format!("{}={}", label.key(), label.value()));
    [key.name().to_owned()]
        .into_iter()
        .chain(labels)
        .collect::<Vec<_>>()
        .join(",")
}

fn place<T: Default>(map: &Mutex<BTreeMap<String, Arc<T>>>, key: &Key) -> Arc<T> {
    map.lock().unwrap().entry(text(key)).or_default().clone()
}

impl Recorder for Kept {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(place(&self.counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(place(&self.gauges, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(place(&self.histograms, key))
    }
}

impl Kept {
    fn counter(&self, key: &str) -> u64 {
        self.counters.lock().unwrap()[key].load(Relaxed)
    }

    fn gauge(&self, key: &str) -> f64 {
        f64::from_bits(self.gauges.lock().unwrap()[key].load(Relaxed))
    }
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn pair(provider: &Arc<dyn Provider>, port: u16) -> [Connection; 2] {
    let config = Config::new(Settings::default()).unwrap();
    let mut listener = Listener::bind(&**provider, address(port), config.clone())
        .await
        .unwrap();
    let client = Connection::connect(&**provider, address(port), config).await;
    [client.unwrap(), listener.accept().await.unwrap()]
}

#[test]
fn the_figures_of_all_connections() {
    let kept = Kept::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&kept, || {
        smbdirect::metrics::describe();
        runtime.block_on(figures(&kept));
    });
    drop(runtime);
    let described = kept.described.lock().unwrap().clone();
    let families = snapshot().families();
    let names: Vec<_> = families
        .iter()
        .map(|family| family.name.to_owned())
        .collect();
    assert_eq!(described, names);
    check_names(&families);
    // Connections whose runtime has ended are finished by another thread.
    let started = Instant::now();
    while !snapshot().connections.is_empty() {
        assert!(started.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(1));
    }
}

async fn figures(kept: &Kept) {
    let provider: Arc<dyn Provider> = Arc::new(Loopback::new());
    let refused = Connection::connect(&*provider, address(9), Config::default()).await;
    assert!(refused.is_err());
    let [client, server] = pair(&provider, 1).await;
    client.send(vec![7; 100_000]).unwrap().await.unwrap();
    assert_eq!(server.recv().await.unwrap().len(), 100_000);
    client.keepalive().await.unwrap();
    let region = client
        .register(
            BytesMut::zeroed(4096),
            Access::REMOTE_READ | Access::REMOTE_WRITE,
        )
        .unwrap();
    let descriptors = [region.descriptor()];
    server
        .write(&descriptors, 0, Bytes::from(vec![1; 4096]))
        .await
        .unwrap();
    server
        .read(&descriptors, 0, BytesMut::zeroed(1000))
        .await
        .unwrap();

    let open = snapshot();
    assert_eq!(open.connections.len(), 2);
    let of = |role| {
        open.connections
            .iter()
            .find(|one| one.role == role)
            .unwrap()
    };
    assert_eq!(of(Role::Active).peer_addr, client.peer_addr());
    assert_eq!(of(Role::Active).id, client.id());
    assert_eq!(of(Role::Active).statistics, client.stats());
    assert_eq!(of(Role::Passive).credits, server.credits());
    assert_eq!(open.statistics.bytes_sent, 100_000);

    smbdirect::metrics::collect();
    assert_eq!(kept.counter("smbdirect_connections_total,role=active"), 1);
    assert_eq!(kept.counter("smbdirect_connections_total,role=passive"), 1);
    let refused = "smbdirect_connect_failures_total,role=active,cause=rdma_refused";
    assert_eq!(kept.counter(refused), 1);
    assert_eq!(kept.counter("smbdirect_received_bytes_total"), 100_000);
    assert_eq!(kept.counter("smbdirect_rdma_written_bytes_total"), 4096);
    assert_eq!(kept.counter("smbdirect_rdma_read_bytes_total"), 1000);
    assert!(kept.counter("smbdirect_wire_sent_bytes_total") >= 100_000);
    assert_eq!(kept.counter("smbdirect_rdma_registrations_total"), 1);
    assert_eq!(kept.gauge("smbdirect_memory_regions"), 1.0);
    assert_eq!(kept.gauge("smbdirect_connections_active"), 2.0);
    let trips = kept.histograms.lock().unwrap()["smbdirect_keepalive_round_trip_seconds"].clone();
    assert_eq!(trips.0.lock().unwrap().len(), 1);

    drop(region);
    client.close().await.unwrap();
    assert_eq!(server.closed().await.label(), "closed_by_peer");
    let before = snapshot();
    assert!(before.connections.iter().all(|one| one.error.is_some()));
    drop((client, server));
    while !snapshot().connections.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let gone = snapshot();
    assert_eq!(gone.statistics.bytes_sent, 100_000, "totals never fall");
    assert_eq!(
        (
            gone.statistics.regions,
            gone.statistics.receives_outstanding
        ),
        (0, 0)
    );
    assert_eq!(gone.ended["closed_here"], 1);
    assert_eq!(gone.ended["closed_by_peer"], 1);
    smbdirect::metrics::collect();
    assert_eq!(kept.gauge("smbdirect_connections_active"), 0.0);
    assert_eq!(kept.counter("smbdirect_sent_bytes_total"), 100_000);
    aborted(&provider).await;
}

/// A connection that is over while handles exist is not active, and its cause is counted once.
async fn aborted(provider: &Arc<dyn Provider>) {
    let [client, server] = pair(provider, 2).await;
    client.abort();
    assert_eq!(client.closed().await, ConnectionError::Aborted);
    server.closed().await;
    assert_eq!(snapshot().ended["aborted"], 1);
    assert_eq!(snapshot().connections.len(), 2);
}

/// The names follow the conventions of Prometheus.
fn check_names(families: &[smbdirect::metrics::Family]) {
    for family in families {
        let total = family.name.ends_with("_total");
        let rises = matches!(family.kind, Kind::Counter | Kind::Seconds);
        assert_eq!(total, rises, "{}", family.name);
        assert!(family.name.starts_with("smbdirect_"), "{}", family.name);
        assert!(family.help.ends_with('.'), "{}", family.help);
        assert!(!family.samples.is_empty(), "{}", family.name);
        let histogram = matches!(family.samples[0].value, Value::Histogram(_));
        assert_eq!(histogram, family.kind == Kind::Histogram);
    }
}

#[test]
fn the_page_about_metrics_has_every_figure_and_cause() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let families = snapshot().families();
    let names = families.iter().map(|family| family.name);
    for name in names.chain(ConnectionError::LABELS.iter().copied()) {
        assert!(page.contains(&format!("`{name}")), "{name}");
    }
}
