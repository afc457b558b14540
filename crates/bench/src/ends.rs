//! The two ends of a measurement, and the orders that one gives the other.
//!
//! Each end is a thread with a runtime of its own, pinned to the core that the burst names. The end
//! that connects gives the orders: one JSON object per line, over a TCP connection that is silent
//! while a burst runs. The protocol is the same whether the other end is a thread of this process,
//! another process or another machine.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use smbdirect::{
    Listener,
    rdma::{
        iwarp::{Iwarp, IwarpConfig, MpaCrc},
        loopback::Loopback,
        provider::Provider,
        roce::{Roce, RoceConfig},
    },
};
use smbdirect_transport::{Kind, peer_span, text::printable};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::runtime::{self, Runtime};
use tracing::debug;

use crate::{
    host::{self, Cores},
    means::{channel, frames, smb_direct, tcp, tcp_loop::Loop},
    work::{
        Burst, Half, Link, MAX_BURST_MESSAGES, MAX_BURST_ROUND_TRIPS, MAX_MESSAGE_BYTES,
        MAX_OUTSTANDING, MAX_REQUEST_BYTES, Means, Operation, Placement, Smb,
    },
};

/// An order of the near end to the far end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
enum Order {
    /// Listen for the connections of a link, and accept them.
    Open {
        id: u32,
        link: Link,
        /// The congestion control of all TCP connections; `None` leaves it to the system.
        congestion_control: Option<String>,
    },
    /// Do the passive part of a burst.
    Burst { id: u32, burst: Burst },
    /// End a link.
    Close { id: u32 },
    /// Report the resident memory.
    Resident,
}

/// An answer of the far end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
enum Answer {
    /// The greeting, before the first order.
    Hello {
        version: String,
        process: u32,
    },
    Listening {
        port: u16,
    },
    Opened,
    Done(Half),
    Closed,
    Resident {
        bytes: Option<u64>,
    },
    Failed {
        error: String,
    },
}

/// The connection for orders and answers.
#[derive(Debug)]
struct Control {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

/// Longest line in bytes; the longest answer has a number for each connection.
const MAX_LINE_BYTES: u64 = 1 << 20;

impl Control {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_TIMEOUT))?;
        Ok(Self {
            reader: BufReader::new(stream.try_clone()?),
            writer: stream,
        })
    }

    fn send(&mut self, line: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        self.writer
            .write_all(&line)
            .context("the other end is gone")
    }

    /// Returns the next line of the other end; `None` when it has closed the connection.
    fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = Vec::new();
        let read = (&mut self.reader)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .context("the other end is silent")?;
        if read == 0 {
            return Ok(None);
        }
        let value = serde_json::from_slice(&line);
        value
            .map(Some)
            .context("the other end is not `smbdirect bench`")
    }

    fn answer(&mut self) -> Result<Answer> {
        match self
            .receive()?
            .context("the other end closed the connection")?
        {
            Answer::Failed { error } => {
                bail!("the other end: {}", printable(&error))
            }
            answer => Ok(answer),
        }
    }
}

/// Longest time that the other end may be silent. Between two orders the near end may run other
/// programs.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(180);

/// The state that two ends in one process share.
#[derive(Debug, Default)]
pub struct InProcess {
    loopback: Arc<Loopback>,
    /// Ends of channels that the far thread has not taken yet.
    channels: Mutex<HashMap<u32, channel::End>>,
}

/// The settings of an end.
#[derive(Clone, Debug)]
pub struct EndSettings {
    /// The cores that this process may use.
    pub cores: Cores,
    /// The settings of software iWARP, and the congestion control of all TCP connections.
    pub iwarp: IwarpConfig,
    /// The settings of software RoCE.
    pub roce: RoceConfig,
    /// The RDMA adapters of this machine; `None` for other transports.
    pub adapters: Option<Arc<dyn Provider>>,
    /// The state that both ends share; `None` if the other end is another process.
    pub in_process: Option<Arc<InProcess>>,
    /// Maximum number of connections of a link.
    pub max_connections: u32,
}

/// One end of the measurement, which runs in a thread of its own.
struct End {
    setting: EndSettings,
    /// The provider of software RoCE, whose links share a socket.
    roce: Roce,
    runtime: Runtime,
    links: HashMap<u32, Connections>,
    /// Approximate memory of each link in bytes. Only the far end records it.
    memory: HashMap<u32, u64>,
    /// Whether this is the near end, which gives the orders.
    active: bool,
}

enum Connections {
    Smb(Vec<smb_direct::End>),
    Tcp(Vec<TcpStream>),
    TcpLoop(Loop),
    Frames(Vec<frames::Frames>),
    Channel(channel::End),
}

impl End {
    fn new(setting: EndSettings, active: bool) -> Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the runtime does not start")?;
        Ok(Self {
            roce: Roce::new(setting.roce.clone()),
            setting,
            runtime,
            links: HashMap::new(),
            memory: HashMap::new(),
            active,
        })
    }

    fn provider(&self, smb: &Smb) -> Result<Arc<dyn Provider>> {
        match smb.over {
            Kind::Iwarp => {}
            Kind::Roce => return Ok(Arc::new(self.roce.clone())),
            Kind::Verbs => {
                let adapters = self.setting.adapters.clone();
                return adapters.context("start it with --transport verbs");
            }
            Kind::Loopback => {
                let shared = self.setting.in_process.as_ref();
                let shared = shared.context("loopback works within one process only")?;
                return Ok(shared.loopback.clone());
            }
        }
        let crc = if smb.crc { MpaCrc::On } else { MpaCrc::Off };
        let mut config = self.setting.iwarp.clone();
        config.crc = crc;
        Ok(Arc::new(Iwarp::new(config)))
    }

    /// Connects the connections of a link.
    fn connect(&self, id: u32, link: &Link, address: SocketAddr) -> Result<Connections> {
        host::allow_sockets(link.connections);
        let all = 0..link.connections;
        Ok(match &link.means {
            Means::SmbDirect(smb) => {
                let provider = self.provider(smb)?;
                let connecting = smb_direct::connect(&*provider, address, smb, link);
                Connections::Smb(self.runtime.block_on(connecting)?)
            }
            Means::Tcp => {
                let connect = |_| Ok::<_, anyhow::Error>(tcp::prepare(self.tcp(address)?)?);
                Connections::Tcp(all.map(connect).collect::<Result<_, _>>()?)
            }
            Means::TcpLoop => {
                let streams = all.map(|_| self.tcp(address));
                Connections::TcpLoop(Loop::new(streams.collect::<Result<_>>()?, link)?)
            }
            Means::Frames => {
                let connect = |_| self.framed(self.tcp(address)?, link);
                Connections::Frames(all.map(connect).collect::<Result<_, _>>()?)
            }
            Means::Channel => {
                let shared = self.setting.in_process.as_ref();
                let shared = shared.context("a channel works within one process only")?;
                let (near, far) = channel::pair();
                let mut waiting = shared.channels.lock().expect("inserting does not panic");
                waiting.insert(id, far);
                Connections::Channel(near)
            }
        })
    }

    /// Sets the congestion control of a socket that is not connected yet.
    fn control_congestion(&self, socket: SockRef<'_>) -> Result<()> {
        let Some(algorithm) = &self.setting.iwarp.tuning.congestion_control else {
            return Ok(());
        };
        host::set_congestion_control(socket, algorithm)
            .with_context(|| format!("congestion control {algorithm}"))
    }

    /// Connects a plain TCP connection.
    fn tcp(&self, address: SocketAddr) -> Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        self.control_congestion((&socket).into())?;
        socket.connect(&address.into())?;
        Ok(socket.into())
    }

    fn framed(&self, stream: TcpStream, link: &Link) -> Result<frames::Frames> {
        let stream = tcp::prepare(stream)?;
        let _within = self.runtime.enter();
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        Ok(frames::framed(stream, link.largest))
    }

    fn burst(&mut self, id: u32, burst: &Burst) -> Result<Half> {
        let core = match (burst.placement, self.active) {
            (Placement::Free, _) => None,
            (Placement::TwoCores, false) => self.setting.cores.far(),
            (Placement::TwoCores, true) | (Placement::SameCore, _) => self.setting.cores.near(),
        };
        self.setting.cores.pin(core);
        let connections = self.links.get_mut(&id).context("there is no such link")?;
        let (active, started, cpu) = (self.active, Instant::now(), host::thread_cpu());
        let mut half = Half::default();
        match connections {
            Connections::Smb(ends) => {
                for done in self
                    .runtime
                    .block_on(smb_direct::burst(ends, burst, active))?
                {
                    half.arrived.extend(done.arrived);
                    half.round_trips.extend(done.round_trips);
                }
            }
            // It runs threads of its own, and adds up their times.
            Connections::Tcp(streams) => return tcp::burst(streams, burst, active),
            Connections::TcpLoop(all) => return all.burst(burst, active),
            Connections::Frames(all) => {
                let burst = frames::burst(all, *burst, active);
                half.round_trips = self.runtime.block_on(burst)?;
            }
            Connections::Channel(end) => half.round_trips = end.burst(burst, active)?,
        }
        half.seconds = started.elapsed().as_secs_f64();
        let clocks = host::thread_cpu().zip(cpu);
        half.cpu = clocks.map(|(after, before)| (after - before).as_secs_f64());
        Ok(half)
    }
}

/// The near end, which gives the orders.
pub struct Near {
    end: End,
    control: Control,
    /// The address of the far end.
    far: IpAddr,
    /// The process id of the far end.
    process: u32,
    next: u32,
}

/// A link that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkId(u32);

impl Near {
    /// Connects to the far end over `stream`, and checks that it is the same version.
    ///
    /// # Errors
    /// The far end does not answer, or is another version.
    pub fn new(stream: TcpStream, setting: EndSettings) -> Result<Self> {
        let far = stream.peer_addr()?.ip();
        let mut control = Control::new(stream)?;
        let Answer::Hello { version, process } = control.answer()? else {
            bail!("the other end does not begin as `smbdirect bench --serve` does");
        };
        let ours = env!("CARGO_PKG_VERSION");
        if version != ours {
            let theirs = printable(&version);
            bail!("the other end is version {theirs}, this one is {ours}");
        }
        Ok(Self {
            end: End::new(setting, true)?,
            control,
            far,
            process,
            next: 0,
        })
    }

    /// Returns whether both ends are in this process.
    pub(crate) fn is_one_process(&self) -> bool {
        self.end.setting.in_process.is_some() && self.process == process::id()
    }

    /// Returns whether both ends are on this machine, which the address shows.
    pub(crate) fn is_one_machine(&self) -> bool {
        self.far.is_loopback()
    }

    pub(crate) fn cores(&self) -> &Cores {
        &self.end.setting.cores
    }

    pub(crate) fn open(&mut self, link: Link) -> Result<LinkId> {
        let id = self.next;
        self.next += 1;
        // The channel has to exist before the far end takes its end of it.
        let early = match link.means {
            Means::Channel => Some(self.end.connect(id, &link, (self.far, 0).into())?),
            _ => None,
        };
        let congestion_control = self.end.setting.iwarp.tuning.congestion_control.clone();
        self.control.send(&Order::Open {
            id,
            link,
            congestion_control,
        })?;
        let connections = match (early, self.control.answer()?) {
            (Some(connections), Answer::Listening { .. }) => connections,
            (None, Answer::Listening { port }) => {
                let address = SocketAddr::new(self.far, port);
                self.end.connect(id, &link, address)?
            }
            _ => bail!("the other end sent an unexpected answer"),
        };
        ensure!(
            matches!(self.control.answer()?, Answer::Opened),
            "the other end sent an unexpected answer"
        );
        self.end.links.insert(id, connections);
        Ok(LinkId(id))
    }

    pub(crate) fn close(&mut self, id: LinkId) -> Result<()> {
        self.end.links.remove(&id.0);
        self.control.send(&Order::Close { id: id.0 })?;
        ensure!(
            matches!(self.control.answer()?, Answer::Closed),
            "the other end sent an unexpected answer"
        );
        // The tasks of closed connections end in one more turn of the runtime.
        self.end.runtime.block_on(tokio::task::yield_now());
        Ok(())
    }

    /// Runs a burst, and returns what the near end and the far end did.
    pub(crate) fn burst(&mut self, id: LinkId, burst: &Burst) -> Result<(Half, Half)> {
        let order = Order::Burst {
            id: id.0,
            burst: *burst,
        };
        self.control.send(&order)?;
        let near = self.end.burst(id.0, burst);
        // If both ends fail, the far end has the cause.
        let far = match (self.control.answer(), &near) {
            (Err(far), Err(near)) => return Err(anyhow!("{far:#} ({near:#})")),
            (far, _) => far?,
        };
        let Answer::Done(far) = far else {
            bail!("the other end sent an unexpected answer");
        };
        Ok((near?, far))
    }

    /// Returns the resident memory of both ends, counted once if they share a process.
    pub(crate) fn resident(&mut self) -> Result<Option<u64>> {
        let near = host::resident();
        if self.is_one_process() {
            return Ok(near);
        }
        self.control.send(&Order::Resident)?;
        let Answer::Resident { bytes } = self.control.answer()? else {
            bail!("the other end sent an unexpected answer");
        };
        Ok(near.zip(bytes).map(|(near, far)| near.saturating_add(far)))
    }
}

/// Serves the orders that come over `stream` until it ends.
///
/// # Errors
/// The connection fails. Work that fails is reported to the near end instead.
pub fn serve_orders(stream: TcpStream, setting: EndSettings) -> Result<()> {
    let address = stream.local_addr()?.ip();
    let mut control = Control::new(stream)?;
    let mut end = End::new(setting, false)?;
    control.send(&Answer::Hello {
        version: env!("CARGO_PKG_VERSION").into(),
        process: process::id(),
    })?;
    while let Some(order) = control.receive()? {
        let answer = match order {
            Order::Open {
                id,
                link,
                congestion_control,
            } => {
                end.setting.iwarp.tuning.congestion_control = congestion_control;
                open(&mut end, &mut control, address, id, &link)
            }
            Order::Burst { id, burst } => check(&burst)
                .and_then(|()| end.burst(id, &burst))
                .map(Answer::Done),
            Order::Close { id } => {
                end.links.remove(&id);
                end.memory.remove(&id);
                end.runtime.block_on(tokio::task::yield_now());
                Ok(Answer::Closed)
            }
            Order::Resident => Ok(Answer::Resident {
                bytes: host::resident(),
            }),
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed {
            error: format!("{error:#}"),
        });
        control.send(&answer)?;
    }
    Ok(())
}

/// Starts the far end in a thread of this process, for one near end. Returns the address for orders, and what both ends
/// share.
///
/// # Errors
/// Listening fails, or the thread does not start.
pub fn start_far_thread(setting: &EndSettings) -> Result<(SocketAddr, Arc<InProcess>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let shared = Arc::new(InProcess::default());
    let setting = EndSettings {
        in_process: Some(shared.clone()),
        ..setting.clone()
    };
    let serve = move || {
        let (stream, near) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) => return debug!("the far end: {error}"),
        };
        if let Err(error) = serve_orders(stream, setting) {
            peer_span(near).in_scope(|| debug!("the far end: {error:#}"));
        }
    };
    thread::Builder::new().name("far".into()).spawn(serve)?;
    Ok((address, shared))
}

/// Maximum number of links that one peer may have at the same time.
const MAX_LINKS: usize = 256;

/// Maximum number of bytes that the links of one peer may take.
const MAX_MEMORY_BYTES: u64 = 4 << 30;

/// Returns about how many bytes a link takes: for each connection the buffers to send, read and
/// write, and the receives of its credits.
fn memory(link: &Link) -> u64 {
    let receives = match &link.means {
        Means::SmbDirect(smb) => u64::from(smb.segment) * u64::from(smb.receive_credit_max),
        _ => 0,
    };
    let blocks = 2 + u64::from(link.slots);
    let each = (u64::from(link.largest) * blocks).saturating_add(receives);
    each.saturating_mul(link.connections.into())
}

/// Listens for a link, reports the port, and accepts the connections.
fn open(
    end: &mut End,
    control: &mut Control,
    address: IpAddr,
    id: u32,
    link: &Link,
) -> Result<Answer> {
    let (connections, largest) = (end.setting.max_connections, MAX_MESSAGE_BYTES);
    ensure!(end.links.len() < MAX_LINKS, "there are too many links");
    ensure!(
        (1..=connections).contains(&link.connections) && link.largest <= largest,
        "at most {connections} connections and messages of {largest} bytes"
    );
    ensure!(
        (1..=MAX_OUTSTANDING).contains(&link.slots),
        "at most {MAX_OUTSTANDING} slots to write to"
    );
    let taken: u64 = end.memory.values().sum();
    let after = taken.saturating_add(memory(link));
    ensure!(
        after <= MAX_MEMORY_BYTES,
        "the connections, with their message size and credits, would take too much memory"
    );
    host::allow_sockets(link.connections);
    let any = SocketAddr::new(address, 0);
    let connections = match &link.means {
        Means::SmbDirect(smb) => {
            let (provider, config) = (end.provider(smb)?, smb_direct::config(smb, link)?);
            let listener = end
                .runtime
                .block_on(Listener::bind(&*provider, any, config))?;
            let port = listener.local_addr().port();
            control.send(&Answer::Listening { port })?;
            let accepting = smb_direct::accept(listener, link);
            Connections::Smb(end.runtime.block_on(accepting)?)
        }
        Means::Channel => {
            control.send(&Answer::Listening { port: 0 })?;
            let shared = end.setting.in_process.as_ref();
            let shared = shared.context("a channel works within one process only")?;
            let waiting = shared
                .channels
                .lock()
                .expect("inserting does not panic")
                .remove(&id);
            Connections::Channel(waiting.context("there is no such channel")?)
        }
        Means::Tcp | Means::TcpLoop | Means::Frames => {
            let listener = TcpListener::bind(any)?;
            end.control_congestion((&listener).into())?;
            control.send(&Answer::Listening {
                port: listener.local_addr()?.port(),
            })?;
            let streams = accept(&listener, link.connections)?;
            match link.means {
                Means::Tcp => {
                    let prepared = streams.into_iter().map(tcp::prepare);
                    Connections::Tcp(prepared.collect::<Result<_, _>>()?)
                }
                Means::TcpLoop => Connections::TcpLoop(Loop::new(streams, link)?),
                _ => {
                    let framed = streams.into_iter().map(|stream| end.framed(stream, link));
                    Connections::Frames(framed.collect::<Result<_>>()?)
                }
            }
        }
    };
    end.links.insert(id, connections);
    end.memory.insert(id, memory(link));
    Ok(Answer::Opened)
}

/// Accepts `connections` connections, in bounded time.
fn accept(listener: &TcpListener, connections: u32) -> Result<Vec<TcpStream>> {
    listener.set_nonblocking(true)?;
    let started = Instant::now();
    let mut streams = Vec::new();
    while streams.len() < connections as usize {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                streams.push(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(
                    started.elapsed() < Duration::from_secs(10),
                    "the other end does not connect"
                );
                thread::sleep(Duration::from_micros(200));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(streams)
}

/// Checks that a burst of the other end is within the limits.
fn check(burst: &Burst) -> Result<()> {
    let largest = MAX_MESSAGE_BYTES;
    ensure!(
        (1..=largest).contains(&burst.size),
        "messages have 1 to {largest} bytes"
    );
    ensure!(
        burst.count <= MAX_BURST_MESSAGES
            && (burst.kind != Operation::Echo || burst.count <= MAX_BURST_ROUND_TRIPS),
        "a burst of {} is too long",
        burst.count
    );
    ensure!(
        burst
            .request
            .is_none_or(|size| (1..=MAX_REQUEST_BYTES.min(largest)).contains(&size)),
        "requests have 1 to {MAX_REQUEST_BYTES} bytes"
    );
    ensure!(
        burst.outstanding <= MAX_OUTSTANDING,
        "at most {MAX_OUTSTANDING} outstanding"
    );
    Ok(())
}
