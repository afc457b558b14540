//! The findings of the probes, as plain data.

use std::{fmt, net::IpAddr, time::Duration};

use crate::measurement::Rate;

/// The findings of the probes, for [`diagnose`](crate::diagnose()).
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub(crate) machine: Machine,
    /// The server to probe, if one was given.
    pub(crate) remote: Option<Remote>,
}

/// This machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    /// Whether it has the files that Linux has. The facts below are read from them.
    pub(crate) is_known: bool,
    /// The kernel release, such as `6.12.9-amd64`.
    pub(crate) release: String,
    pub(crate) kernel: Kernel,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) adapters: Vec<Adapter>,
    /// Why the libraries of rdma-core cannot be used; `None` if they can, or were not tried.
    pub(crate) verbs_missing: Option<String>,
    pub(crate) client: Client,
    pub(crate) server: Server,
}

/// The kernel's build options and modules that SMB Direct needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel {
    /// The file that the options were read from.
    pub(crate) config: Option<String>,
    /// CONFIG_CIFS_SMB_DIRECT.
    pub(crate) cifs_smb_direct: Setting,
    /// CONFIG_SMB_SERVER_SMBDIRECT.
    pub(crate) server_smb_direct: Setting,
    /// CONFIG_INFINIBAND.
    pub(crate) infiniband: Setting,
    /// CONFIG_INFINIBAND_ADDR_TRANS, which builds rdma_cm.
    pub(crate) address_translation: Setting,
    pub(crate) cifs: Module,
    pub(crate) ksmbd: Module,
    pub(crate) ib_core: Module,
    pub(crate) rdma_cm: Module,
    /// The connection manager's device for user space.
    pub(crate) rdma_ucm: Module,
    pub(crate) siw: Module,
    pub(crate) rxe: Module,
}

/// A build option of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Setting {
    On,
    Off,
    #[default]
    Unknown,
}

/// Where a module of the kernel is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Module {
    /// The module is built into the kernel or loaded.
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
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    pub(crate) mtu: u32,
    /// The hardware address, without colons, in lower case.
    pub(crate) hardware: String,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The protocol of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fabric {
    Iwarp,
    Roce,
    InfiniBand,
    Other,
}

impl Fabric {
    /// Returns the name for people.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iWARP",
            Self::Roce => "RoCE",
            Self::InfiniBand => "InfiniBand",
            Self::Other => "another protocol",
        }
    }

    /// Returns the port of SMB Direct (1.9).
    pub(crate) const fn port(self) -> u16 {
        match self {
            Self::Iwarp => 5445,
            Self::Roce | Self::InfiniBand | Self::Other => 445,
        }
    }
}

/// An RDMA adapter.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    pub(crate) name: String,
    pub(crate) fabric: Fabric,
    /// The state of its first port, such as `ACTIVE` or `DOWN`.
    pub(crate) state: String,
    /// The network interface it uses, if that is known.
    pub(crate) interface: Option<String>,
    /// Scatter/gather elements of a Send, if libibverbs reports them.
    pub(crate) max_send_elements: Option<u32>,
    /// Why this library cannot use it, if libibverbs reports it.
    pub(crate) unusable: Option<String>,
}

impl Adapter {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

/// The kernel's SMB client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// Whether the running client reports that it has SMB Direct.
    pub(crate) smb_direct: Option<bool>,
    /// `rdma_readwrite_threshold`, in bytes.
    pub(crate) threshold_bytes: Option<u64>,
    pub(crate) mounts: Vec<Mount>,
}

/// A mount of the kernel's SMB client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mount {
    /// `//SERVER/SHARE`.
    pub(crate) source: String,
    pub(crate) directory: String,
    pub(crate) options: String,
    /// The address of the server.
    pub(crate) address: Option<IpAddr>,
    /// Whether the mount option `rdma` was given.
    pub(crate) is_rdma: bool,
    /// The connection, as the client reports it.
    pub(crate) connection: Option<ClientConnection>,
}

impl Mount {
    /// Returns whether a mount option is present.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|each| each == option)
    }

    /// Returns the value of a mount option.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        let mut values = self.options.split(',');
        values.find_map(|each| each.strip_prefix(option)?.strip_prefix('='))
    }
}

/// A connection in /proc/fs/cifs/DebugData.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientConnection {
    pub(crate) address: Option<IpAddr>,
    pub(crate) is_rdma: bool,
    /// The state of SMB Direct, such as `CONNECTED`.
    pub(crate) transport_status: Option<String>,
    /// Largest message that the server reassembles, in bytes.
    pub(crate) max_fragmented_send_size: Option<u32>,
    /// Largest RDMA Read or Write, in bytes.
    pub(crate) max_read_write_size: Option<u32>,
    /// 0x311 is SMB 3.1.1.
    pub(crate) dialect: u16,
    pub(crate) capabilities: u32,
    pub(crate) is_signed: bool,
    pub(crate) is_encrypted: bool,
    pub(crate) is_disconnected: bool,
    /// `\\SERVER\SHARE` of each share.
    pub(crate) shares: Vec<String>,
    /// The server's interfaces, if the client has asked for them.
    pub(crate) interfaces: Option<Vec<ServerInterface>>,
}

/// An interface that a server offers to its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerInterface {
    pub(crate) address: IpAddr,
    pub(crate) is_rdma: bool,
    /// Bits in a second, if known.
    pub(crate) speed: Option<u64>,
}

/// The SMB servers of this machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) ksmbd: Ksmbd,
    /// Whether ksmbd.conf has `server multi channel support = yes`, if there is one.
    pub(crate) ksmbd_multichannel: Option<bool>,
    /// The program that listens on TCP port 5445, if one does.
    pub(crate) iwarp_port_owner: Option<String>,
    /// Programs that are running: `smbd`, `ksmbd.mountd`, and `smbdirect` as a gateway.
    pub(crate) programs: Vec<String>,
    /// TCP ports of SMB and SMB Direct that something listens on.
    pub(crate) listens: Vec<u16>,
    /// An attempt to use this machine's own SMB Direct over iWARP, if ksmbd is running.
    pub(crate) attempt: Option<Attempt>,
}

/// The state of the kernel's SMB server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ksmbd {
    /// The module ksmbd is not loaded.
    #[default]
    Absent,
    /// The module is loaded, but the daemon does not run.
    Stopped,
    /// The daemon runs, and the kernel's part has not started.
    NotStarted,
    Running,
}

/// A server, and the network to it.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    /// The server as it was given.
    pub(crate) host: String,
    pub(crate) share: Option<String>,
    /// The addresses of the server, or why it has none.
    pub(crate) addresses: Result<Vec<IpAddr>, String>,
    /// The address that was probed.
    pub(crate) address: Option<IpAddr>,
    /// The route by which packets leave this machine, or the reason why there is none.
    pub(crate) route: Option<Result<Route, String>>,
    pub(crate) path: Path,
    /// TCP port 445.
    pub(crate) tcp: Option<Tcp>,
    /// SMB over TCP port 445.
    pub(crate) smb: Option<Result<Smb, SmbFault>>,
    /// Attempts to use SMB Direct, one for each transport.
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) session: Option<Session>,
    /// The rates, if they were measured.
    pub(crate) measurement: Option<Measurement>,
}

/// Where packets leave this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) source: IpAddr,
    pub(crate) interface: Option<String>,
    /// The MTU of the interface in bytes.
    pub(crate) mtu: Option<u32>,
}

/// The packet sizes on the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The path MTU that the kernel knows, in bytes.
    pub(crate) known_mtu: Option<u32>,
    /// The largest TCP segment to the server, in bytes, which the server's own MTU limits.
    pub(crate) segment: Option<u32>,
    /// Whether a short ICMP echo was answered; `None` if it could not be sent.
    pub(crate) short_ping: Option<bool>,
    /// Whether an ICMP echo of the interface's MTU was answered.
    pub(crate) full_ping: Option<bool>,
    /// Whether a router reported that the long echo was too large. TCP then adapts.
    pub(crate) is_reported_too_large: bool,
}

/// The answer to a TCP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tcp {
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
pub(crate) struct Attempt {
    pub(crate) fabric: Fabric,
    pub(crate) port: u16,
    /// The means of the attempt: `software iWARP`, `software RoCE`, or an adapter.
    pub(crate) by: String,
    pub(crate) result: Result<Reached, AttemptFault>,
}

/// SMB Direct was negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) max_send_size: u32,
    pub(crate) max_receive_size: u32,
    /// Largest message that the server reassembles, in bytes.
    pub(crate) max_fragmented_send_size: u32,
    pub(crate) max_read_write_size: u32,
    pub(crate) round_trip: Option<Duration>,
    pub(crate) smb: Result<Smb, SmbFault>,
}

/// Why SMB Direct was not negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptFault {
    /// Nothing listens.
    Refused,
    /// TCP is not answered.
    Dropped,
    /// The server or the network cannot be reached.
    Unreachable(String),
    /// TCP connects, but the answer is not iWARP.
    NotIwarp,
    /// The port accepts TCP, and the connection ends or stays silent after the MPA Request.
    Unanswered,
    /// The listener refused the RDMA connection.
    Rejected(String),
    /// The listener answered with RDMA options that this end does not support.
    Incompatible(String),
    /// The RDMA connection ended before the negotiation was complete.
    Lost(String),
    /// The negotiation timed out without an answer.
    Silent(String),
    /// The server refused the negotiation with this status.
    NegotiationRefused(String),
    /// The server's answer broke a rule of the specification.
    NegotiationBroken(String),
    /// This machine has no adapter for the address.
    NoAdapter,
    /// The attempt failed on this machine.
    Local(String),
}

impl fmt::Display for AttemptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "connection refused",
            Self::Dropped => "no answer",
            Self::NotIwarp => "the answer is not iWARP",
            Self::Unanswered => "the MPA Request is not answered",
            Self::NoAdapter => "no adapter",
            Self::Unreachable(why)
            | Self::Rejected(why)
            | Self::Incompatible(why)
            | Self::Lost(why)
            | Self::Silent(why)
            | Self::NegotiationRefused(why)
            | Self::NegotiationBroken(why)
            | Self::Local(why) => why,
        })
    }
}

/// The answer to SMB2 NEGOTIATE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Smb {
    /// 0x0311 is SMB 3.1.1.
    pub(crate) dialect: u16,
    pub(crate) signing_required: bool,
    pub(crate) multichannel: bool,
    pub(crate) max_read_size: u32,
    pub(crate) max_write_size: u32,
}

/// Why there is no SMB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SmbFault {
    /// The server closed the connection.
    HungUp,
    /// No answer in time.
    Silent,
    /// The answer is not SMB2, or refuses.
    Other(String),
}

/// The findings of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(crate) user: String,
    /// The login is by Kerberos.
    pub(crate) is_kerberos: bool,
    /// `TCP` or `SMB Direct`.
    pub(crate) over: &'static str,
    /// Why the login failed.
    pub(crate) login: Option<String>,
    /// The session is encrypted as a whole.
    pub(crate) is_encrypted: bool,
    /// Why the interfaces could not be queried, or the interfaces.
    pub(crate) interfaces: Option<Result<Vec<ServerInterface>, String>>,
    /// Whether the share demands encryption, or why it cannot be connected to.
    pub(crate) share: Option<Result<bool, String>>,
}

/// The rates to one server, over each transport that works.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measurement {
    /// TCP, and each kind of SMB Direct.
    pub(crate) transports: Vec<Measured>,
    /// The path without SMB; `None` if nothing there measures it.
    pub(crate) path: Option<Result<f64, String>>,
    /// The time was over before everything was measured.
    pub(crate) is_cut_short: bool,
    /// Scratch files whose handle was not closed, so that it is not certain that the server has deleted them.
    pub(crate) left: Vec<String>,
}

/// The rates over one transport.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    /// `None` for TCP.
    pub(crate) fabric: Option<Fabric>,
    /// The adapter or the software; `TCP` for TCP.
    pub(crate) by: String,
    pub(crate) rates: Vec<Rate>,
    /// The reason why rates are missing.
    pub(crate) failure: Option<String>,
    /// SMB2 credits that the server had granted while no request was outstanding.
    pub(crate) smb2_credits: u16,
    /// The session signs its messages.
    pub(crate) signs: bool,
    /// Why data moved in messages although the transport has RDMA.
    pub(crate) in_messages: Option<InMessages>,
}

/// Why data moved in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InMessages {
    /// The session has to sign or to encrypt data.
    Protected(String),
    /// Another reason.
    Other(String),
}
