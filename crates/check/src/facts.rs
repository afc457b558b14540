//! What the probes found out: plain data, from which [`judge`](super::judge) draws its conclusions.

use std::{net::IpAddr, time::Duration};

/// Everything that was found out.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) machine: Machine,
    /// The way to a server, if one was given.
    pub(super) way: Option<Way>,
}

/// This machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// Whether it has the files that Linux has. The facts below are read from them.
    pub(super) is_linux: bool,
    /// The kernel release, such as `6.12.9-amd64`.
    pub(super) release: String,
    pub(super) kernel: Kernel,
    pub(super) interfaces: Vec<Interface>,
    pub(super) adapters: Vec<Adapter>,
    /// Why the libraries of rdma-core cannot be used; `None` if they can, or were not tried.
    pub(super) verbs_missing: Option<String>,
    pub(super) client: Client,
    pub(super) server: Server,
}

/// The kernel's build options and modules that SMB Direct needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel {
    /// The file that the options were read from.
    pub(super) config: Option<String>,
    /// CONFIG_CIFS_SMB_DIRECT.
    pub(super) cifs_smb_direct: Setting,
    /// CONFIG_SMB_SERVER_SMBDIRECT.
    pub(super) server_smb_direct: Setting,
    /// CONFIG_INFINIBAND.
    pub(super) infiniband: Setting,
    /// CONFIG_INFINIBAND_ADDR_TRANS, which builds rdma_cm.
    pub(super) address_translation: Setting,
    pub(super) cifs: Module,
    pub(super) ksmbd: Module,
    pub(super) ib_core: Module,
    pub(super) rdma_cm: Module,
    /// The connection manager's device for user space.
    pub(super) rdma_ucm: Module,
    pub(super) siw: Module,
    pub(super) rxe: Module,
}

/// A build option of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Setting {
    On,
    Off,
    #[default]
    Unknown,
}

/// Where a module of the kernel is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Module {
    /// It is built into the kernel or loaded.
    Present,
    /// A file that can be loaded.
    Loadable,
    /// There is no such module for this kernel.
    Missing,
    #[default]
    Unknown,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) is_up: bool,
    pub(super) mtu: u32,
    /// The hardware address, without colons, in lower case.
    pub(super) hardware: String,
    pub(super) addresses: Vec<IpAddr>,
}

/// The protocol of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fabric {
    Iwarp,
    Roce,
    InfiniBand,
    Other,
}

impl Fabric {
    /// Returns the name for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iWARP",
            Self::Roce => "RoCE",
            Self::InfiniBand => "InfiniBand",
            Self::Other => "another protocol",
        }
    }

    /// Returns the port of SMB Direct (1.9).
    pub(super) const fn port(self) -> u16 {
        match self {
            Self::Iwarp => 5445,
            Self::Roce | Self::InfiniBand | Self::Other => 445,
        }
    }
}

/// An RDMA adapter.
#[derive(Clone, Debug)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) fabric: Fabric,
    /// The state of its first port, such as `ACTIVE` or `DOWN`.
    pub(super) state: String,
    /// The network interface it uses, if that is known.
    pub(super) interface: Option<String>,
    /// Scatter/gather elements of a Send, if libibverbs reports them.
    pub(super) max_send_elements: Option<u32>,
    /// Why this library cannot use it, if libibverbs reports it.
    pub(super) unusable: Option<String>,
}

impl Adapter {
    pub(super) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// The kernel's SMB client.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    /// Whether the running client says that it has SMB Direct.
    pub(super) smb_direct: Option<bool>,
    /// `rdma_readwrite_threshold`, in bytes.
    pub(super) threshold_bytes: Option<u64>,
    pub(super) mounts: Vec<Mount>,
}

/// A mount of the kernel's SMB client.
#[derive(Clone, Debug, Default)]
pub(super) struct Mount {
    /// `//SERVER/SHARE`.
    pub(super) source: String,
    pub(super) directory: String,
    pub(super) options: String,
    /// The address of the server.
    pub(super) address: Option<IpAddr>,
    /// Whether the mount option `rdma` was given.
    pub(super) is_rdma: bool,
    /// What the client says about the connection.
    pub(super) connection: Option<ClientConnection>,
}

impl Mount {
    /// Returns whether a mount option is present.
    pub(super) fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|each| each == option)
    }

    /// Returns the value of a mount option.
    pub(super) fn value(&self, option: &str) -> Option<&str> {
        let mut values = self.options.split(',');
        values.find_map(|each| each.strip_prefix(option)?.strip_prefix('='))
    }
}

/// A connection in /proc/fs/cifs/DebugData.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientConnection {
    pub(super) address: Option<IpAddr>,
    pub(super) is_rdma: bool,
    /// The state of SMB Direct, such as `CONNECTED`.
    pub(super) transport_status: Option<String>,
    /// Largest message that the server reassembles, in bytes.
    pub(super) max_fragmented_send_size: Option<u32>,
    /// Largest RDMA Read or Write, in bytes.
    pub(super) max_read_write_size: Option<u32>,
    /// 0x311 is SMB 3.1.1.
    pub(super) dialect: u16,
    pub(super) capabilities: u32,
    pub(super) is_signed: bool,
    pub(super) is_encrypted: bool,
    pub(super) is_disconnected: bool,
    /// `\\SERVER\SHARE` of each share.
    pub(super) shares: Vec<String>,
    /// The server's interfaces, if the client has asked for them.
    pub(super) interfaces: Option<Vec<ServerInterface>>,
}

/// An interface that a server offers to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerInterface {
    pub(super) address: IpAddr,
    pub(super) is_rdma: bool,
    /// Bits in a second, if known.
    pub(super) speed: Option<u64>,
}

/// The SMB servers of this machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) ksmbd: Ksmbd,
    /// Whether ksmbd.conf has `server multi channel support = yes`, if there is one.
    pub(super) ksmbd_multichannel: Option<bool>,
    /// The program that listens on TCP port 5445, if one does.
    pub(super) iwarp_port_owner: Option<String>,
    /// Programs that are running: `smbd`, `ksmbd.mountd`, and `smbdirect` as a gateway.
    pub(super) programs: Vec<String>,
    /// TCP ports of SMB and SMB Direct that something listens on.
    pub(super) listens: Vec<u16>,
    /// An attempt to use this machine's own SMB Direct over iWARP, if ksmbd is running.
    pub(super) attempt: Option<Attempt>,
}

/// The state of the kernel's SMB server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ksmbd {
    /// Its module is not loaded.
    #[default]
    Absent,
    /// It is loaded, but its daemon does not run.
    Stopped,
    /// Its daemon runs, and the kernel's part has not started.
    NotStarted,
    Running,
}

/// The way to a server.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// The server as it was given.
    pub(super) host: String,
    pub(super) share: Option<String>,
    /// The addresses of the server, or why it has none.
    pub(super) addresses: Result<Vec<IpAddr>, String>,
    /// The address that was probed.
    pub(super) address: Option<IpAddr>,
    /// Where packets leave this machine, or why they cannot.
    pub(super) route: Option<Result<Route, String>>,
    pub(super) path: Path,
    /// TCP port 445.
    pub(super) tcp: Option<Tcp>,
    /// SMB over TCP port 445.
    pub(super) smb: Option<Result<Smb, SmbFault>>,
    /// Attempts to use SMB Direct, one for each transport.
    pub(super) attempts: Vec<Attempt>,
    pub(super) session: Option<Session>,
}

/// Where packets leave this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) source: IpAddr,
    pub(super) interface: Option<String>,
    /// The MTU of the interface in bytes.
    pub(super) mtu: Option<u32>,
}

/// The packet sizes on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// The path MTU that the kernel knows, in bytes.
    pub(super) known_mtu: Option<u32>,
    /// The largest TCP segment to the server, in bytes, which the server's own MTU limits.
    pub(super) segment: Option<u32>,
    /// Whether a short ICMP echo was answered; `None` if it could not be sent.
    pub(super) short_ping: Option<bool>,
    /// Whether an ICMP echo of the interface's MTU was answered.
    pub(super) full_ping: Option<bool>,
    /// A router said that the long echo was too large, so TCP adapts.
    pub(super) is_told: bool,
}

/// The answer to a TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tcp {
    Open,
    /// A reset: the machine is there and nothing listens, or a firewall resets.
    Refused,
    /// No answer: a firewall drops the packets, or the machine is off.
    Dropped,
    /// An ICMP error: no such machine, or a firewall rejects.
    Unreachable(String),
}

/// An attempt to use SMB Direct.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) fabric: Fabric,
    pub(super) port: u16,
    /// What made it: `software iWARP`, `software RoCE`, or an adapter.
    pub(super) by: String,
    pub(super) result: Result<Reached, AttemptFault>,
}

/// SMB Direct was negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) max_send_size: u32,
    pub(super) max_receive_size: u32,
    /// Largest message that the server reassembles, in bytes.
    pub(super) max_fragmented_send_size: u32,
    pub(super) max_read_write_size: u32,
    pub(super) round_trip: Option<Duration>,
    pub(super) smb: Result<Smb, SmbFault>,
}

/// Why SMB Direct was not negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptFault {
    /// Nothing listens.
    Refused,
    /// TCP is not answered.
    Dropped,
    /// The server or the network cannot be reached.
    Unreachable(String),
    /// TCP connects, but the answer is not iWARP.
    NotIwarp,
    /// The listener refused the RDMA connection.
    Rejected(String),
    /// The RDMA connection ended before the negotiation was complete.
    Lost(String),
    /// The negotiation timed out without an answer.
    Silent(String),
    /// The server refused the negotiation with this status.
    NegotiationRefused(String),
    /// The server's answer broke a rule of the specification.
    NegotiationBroken(String),
    /// This machine has no adapter for it.
    NoAdapter,
    /// The attempt failed on this machine.
    Local(String),
}

/// The answer to SMB2 NEGOTIATE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Smb {
    /// 0x0311 is SMB 3.1.1.
    pub(super) dialect: u16,
    pub(super) signing_required: bool,
    pub(super) multichannel: bool,
    pub(super) max_read_size: u32,
    pub(super) max_write_size: u32,
}

/// Why there is no SMB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SmbFault {
    /// The server closed the connection.
    HungUp,
    /// No answer in time.
    Silent,
    /// The answer is not SMB2, or refuses.
    Other(String),
}

/// The findings of a session.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    pub(super) user: String,
    /// `TCP` or `SMB Direct`.
    pub(super) over: &'static str,
    /// Why the login failed.
    pub(super) login: Option<String>,
    /// The session is encrypted as a whole.
    pub(super) is_encrypted: bool,
    /// Why the interfaces could not be queried, or the interfaces.
    pub(super) interfaces: Option<Result<Vec<ServerInterface>, String>>,
    /// Whether the share demands encryption, or why it cannot be connected to.
    pub(super) share: Option<Result<bool, String>>,
}
