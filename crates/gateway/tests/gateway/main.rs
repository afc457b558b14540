//! Gateways in this process: the data of READ and WRITE in every combination, refused requests, hostile peers, who is
//! admitted, and several servers.

mod admission;
mod hostile;
mod pair;
mod rdma;
mod refused;
mod server_rdma;
mod servers;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use serde_json::Value;
use smbdirect::{Config, rdma::software::network::NetworkSettings};
use smbdirect_gateway::{
    ClientAddress, ClientListener, Gateway, Live, Protocol, Service, Settings, connection_config,
};
use smbdirect_test::{
    messages::{ECHO, header, other},
    peers::{End, Kind, Server, SmbDirect, rdma::patient},
};
use smbdirect_transport::{Address, Kept, Rdma, RdmaSettings};
use tokio::{net::TcpListener, runtime, sync::oneshot};

/// The time limit of an event.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
/// The memory of a gateway, unless a test needs less.
const MEMORY: u64 = 4 << 30;

/// A gateway with a runtime of its own.
struct Running {
    address: String,
    service: Arc<Service>,
    events: mpsc::Receiver<Value>,
    end: oneshot::Sender<()>,
}

/// A client whose connection must not be affected by others, with its end at the server.
struct Bystander {
    client: End,
    server: End,
    /// Messages that the connection has moved.
    echoes: u64,
}

impl Bystander {
    async fn connect(from: Kind, address: &str, listener: &mut Server) -> Self {
        Self {
            client: End::connect_with(from, address, patient()).await,
            server: listener.accept().await,
            echoes: 0,
        }
    }

    /// Moves a message, in which the server finds what the client has sent.
    async fn moves_a_message(&mut self) {
        self.echoes += 1;
        let echo = echo(self.echoes);
        self.client.send(&echo).await;
        assert_eq!(self.server.receive().await, Some(echo));
    }
}

fn echo(message_id: u64) -> Vec<u8> {
    other(header(ECHO, message_id), &[4, 0, 0, 0])
}

impl Running {
    /// Starts a gateway to `upstream`.
    fn start(from: Kind, to: Kind, upstream: &str, memory: u64) -> Self {
        let settings = settings(from, to, memory);
        let live = live(&settings, &[upstream]);
        Self::start_with(settings, live)
    }

    fn start_with(settings: Settings, live: Live) -> Self {
        let (events_in, events) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        let (started, starting) = mpsc::channel();
        thread::spawn(move || {
            let runtime = runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                let rdma = Rdma::new(RdmaSettings::default()).unwrap();
                let here = "127.0.0.1:0".parse().unwrap();
                let listener = if settings.from == Protocol::SmbDirect {
                    let mut listeners = rdma.open_all(&here, &mut Kept::default()).await.unwrap();
                    ClientListener::SmbDirect(listeners.remove(0))
                } else {
                    ClientListener::Tcp(TcpListener::bind("127.0.0.1:0").await.unwrap())
                };
                let address = listener.address().unwrap();
                let report = move |event: &smbdirect_gateway::Event<'_>| {
                    // A test that has ended takes no more events.
                    let _ = events_in.send(serde_json::to_value(event).unwrap());
                };
                let service = Arc::new(Service::new(settings, live, rdma, vec![address], report));
                started.send((address, service.clone())).unwrap();
                let mut gateway = Gateway::new(service, [listener]);
                tokio::select! {
                    served = gateway.serve() => match served.unwrap() {},
                    _ = ended => {}
                }
                gateway.end(std::future::pending()).await;
            });
        });
        let (address, service) = starting.recv_timeout(EVENT_TIMEOUT).unwrap();
        Self {
            address: address.to_string(),
            service,
            events,
            end,
        }
    }

    /// Ends the gateway, and returns its summary.
    fn terminate(mut self) -> Value {
        self.end.send(()).unwrap();
        self.end = oneshot::channel().0;
        event(&mut self, "summary")
    }
}

/// Returns the default settings of a gateway to these servers.
fn live(settings: &Settings, servers: &[&str]) -> Live {
    let servers: Vec<Address> = servers.iter().map(|text| text.parse().unwrap()).collect();
    Live {
        max_connections: settings.affordable_connections().min(256),
        drain_timeout: Some(Duration::ZERO),
        ..Live::new(servers)
    }
}

/// Returns the settings that the command has by default.
fn settings(from: Kind, to: Kind, memory: u64) -> Settings {
    let protocol = |kind| {
        if kind == SmbDirect {
            Protocol::SmbDirect
        } else {
            Protocol::Tcp
        }
    };
    let mut changed = smbdirect::Settings::default();
    changed.max_fragmented_receive_size = (8 << 20) + (64 << 10);
    let config = connection_config(changed);
    Settings {
        from: protocol(from),
        to: protocol(to),
        client_address: ClientAddress::Own,
        network: NetworkSettings::default(),
        config: config.unwrap(),
        connect_timeout: Duration::from_secs(10),
        memory,
    }
}

fn gateway(from: Kind, to: Kind, upstream: &str) -> Running {
    Running::start(from, to, upstream, MEMORY)
}

/// A gateway, and both ends of one connection through it.
async fn through(from: Kind, to: Kind) -> (Running, End, End) {
    through_with(from, to, Config::default()).await
}

async fn through_with(from: Kind, to: Kind, config: Config) -> (Running, End, End) {
    let mut server = Server::bind(to, config.clone()).await;
    let gateway = gateway(from, to, &server.address().to_string());
    let client = End::connect_with(from, &gateway.address, config).await;
    let server = server.accept().await;
    (gateway, client, server)
}

/// Returns the next event of this kind, and skips others before it.
fn event(gateway: &mut Running, kind: &str) -> Value {
    loop {
        let event = gateway
            .events
            .recv_timeout(EVENT_TIMEOUT)
            .expect("an event");
        if event["event"] == kind {
            return event;
        }
    }
}

/// Returns how the next connection ends.
fn ended(gateway: &mut Running) -> String {
    event(gateway, "closed")["ended"].as_str().unwrap().into()
}
