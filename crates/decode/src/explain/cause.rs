//! The names of where time goes, and of what makes a connection slow.

use serde::Serialize;

/// Where an instant of a connection went. Each instant has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing was outstanding for a second or more.
    Idle,
    /// The client connected and logged in.
    Setup,
    /// Nothing was outstanding: the client did not ask.
    Think,
    /// The client had too few SMB2 credits for another request.
    Smb2Credits,
    /// An end had no SMB Direct send credit to spare.
    SendCredits,
    /// A request was on the wire.
    Request,
    /// RDMA Writes or Reads were moving data.
    Data,
    /// A response was on the wire.
    Response,
    /// Everything outstanding was in the server.
    Server,
    /// Everything outstanding was on its way, as far as the round trip of the path accounts for it.
    Path,
    /// Packets had been lost and were not replaced yet.
    Retransmission,
    /// The sender waited for acknowledgements, because a loss had reduced its congestion window.
    ReducedWindow,
    /// The sender waited for an acknowledgement that its peer delayed.
    DelayedAcknowledgement,
    /// The sender waited for the window of its peer.
    Window,
    /// A sender paused in the middle of a message, without a reason on the wire.
    Pause,
    /// The capture lacks packets, so it is unknown what happened.
    Unseen,
}

impl Phase {
    /// All phases, in the order in which they are shown.
    pub const ALL: [Self; 16] = [
        Self::Idle,
        Self::Setup,
        Self::Think,
        Self::Smb2Credits,
        Self::SendCredits,
        Self::Request,
        Self::Data,
        Self::Response,
        Self::Server,
        Self::Path,
        Self::Retransmission,
        Self::ReducedWindow,
        Self::DelayedAcknowledgement,
        Self::Window,
        Self::Pause,
        Self::Unseen,
    ];

    /// Returns what happens then, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Idle => "idle for a second or more",
            Self::Setup => "connecting and logging in",
            Self::Think => "the client asks for nothing",
            Self::Smb2Credits => "waiting for SMB2 credits",
            Self::SendCredits => "waiting for SMB Direct send credits",
            Self::Request => "request on the wire",
            Self::Data => "data on the wire by RDMA",
            Self::Response => "response on the wire",
            Self::Server => "in the server",
            Self::Path => "delay of the path",
            Self::Retransmission => "lost packets",
            Self::ReducedWindow => "congestion window that a loss has reduced",
            Self::DelayedAcknowledgement => "delayed acknowledgements",
            Self::Window => "window of the receiver",
            Self::Pause => "pauses of a sender",
            Self::Unseen => "not seen: the capture lacks packets",
        }
    }
}

/// What makes a connection slow. Each instant counts for one cause, or for none if nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The capture has SMB over TCP and no SMB Direct.
    RdmaNotUsed,
    /// Too few SMB Direct send credits.
    SendCredits,
    /// Too few SMB2 credits.
    Smb2Credits,
    /// Data moves in messages because the client's threshold for RDMA is high.
    Threshold,
    /// Data moves in messages because they are signed.
    Signing,
    /// Data moves in messages because they are encrypted.
    Encryption,
    /// The client has one request outstanding at a time.
    OneOutstanding,
    /// The requests ask for few bytes each.
    SmallRequests,
    /// Most requests open, look at and close files.
    Metadata,
    /// The path has a long round trip.
    Delay,
    /// The path loses packets.
    Loss,
    /// The path loses every large packet.
    MtuBlackHole,
    /// The server takes long.
    SlowServer,
    /// The client's processor is busy.
    BusyClient,
    /// The server's processor is busy.
    BusyServer,
    /// An acknowledgement is delayed that the sender waits for.
    DelayedAcknowledgement,
    /// The receiver does not take the bytes from its socket.
    Window,
    /// The client does not ask.
    Think,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 18] = [
        Self::RdmaNotUsed,
        Self::SendCredits,
        Self::Smb2Credits,
        Self::Threshold,
        Self::Signing,
        Self::Encryption,
        Self::OneOutstanding,
        Self::SmallRequests,
        Self::Metadata,
        Self::Delay,
        Self::Loss,
        Self::MtuBlackHole,
        Self::SlowServer,
        Self::BusyClient,
        Self::BusyServer,
        Self::DelayedAcknowledgement,
        Self::Window,
        Self::Think,
    ];

    /// Returns what is wrong, in one sentence without the figures.
    pub const fn words(self) -> &'static str {
        match self {
            Self::RdmaNotUsed => "RDMA is not used: all of SMB goes over TCP, port 445.",
            Self::SendCredits => {
                "An end has too few SMB Direct send credits, so its peer posts too few receives."
            }
            Self::Smb2Credits => "The server grants too few SMB2 credits for another request.",
            Self::Threshold => {
                "Data moves in messages although RDMA is possible: the client uses RDMA only above its threshold."
            }
            Self::Signing => "Data moves in messages, because the session is signed.",
            Self::Encryption => "Data moves in messages, because the session is encrypted.",
            Self::OneOutstanding => {
                "The client has one request outstanding at a time, and waits for it before it sends the next."
            }
            Self::SmallRequests => "The requests are small, so each costs more than its data.",
            Self::Metadata => "Most requests open, list, look at and close files.",
            Self::Delay => "The path has a long round trip.",
            Self::Loss => "The path loses packets.",
            Self::MtuBlackHole => {
                "Large packets never arrive: a link of the path has a smaller MTU and does not say so."
            }
            Self::SlowServer => "The server takes longer than one with a fast disk.",
            Self::BusyClient => "The client pauses within messages: its processor is busy.",
            Self::BusyServer => "The server pauses within messages: its processor is busy.",
            Self::DelayedAcknowledgement => {
                "A sender waits for an acknowledgement that its peer delays."
            }
            Self::Window => {
                "The receiver takes bytes from its socket too slowly, and closes its window."
            }
            Self::Think => {
                "The client asks for nothing: its application, or its own disk, is slower than the share."
            }
        }
    }

    /// Returns the cure for each system: its name, and a command or setting.
    pub const fn cures(self) -> &'static [[&'static str; 2]] {
        match self {
            Self::RdmaNotUsed => &[
                [
                    "any system",
                    "smbdirect check SERVER names what is missing; a capture on the host misses an adapter's RDMA",
                ],
                [
                    "Linux client",
                    "mount -t cifs -o rdma,vers=3.1.1,username=USER //SERVER/SHARE /mnt",
                ],
                [
                    "Windows",
                    "Enable-NetAdapterRdma -Name ADAPTER; Get-SmbMultichannelConnection shows what is used",
                ],
                ["Samba", "smbdirect gateway :5445 127.0.0.1"],
            ],
            Self::SendCredits => &[
                [
                    "Linux client",
                    "echo 255 > /proc/fs/cifs/smbd_receive_credit_max, then mount again",
                ],
                [
                    "Linux server",
                    "ksmbd has a fixed number of 255; a newer kernel grants it at once",
                ],
                [
                    "Windows",
                    "the adapter's queue pairs are too small: update its driver and firmware",
                ],
                ["Samba", "smbdirect gateway --receive-credit-max 255"],
            ],
            Self::Smb2Credits => &[
                ["Linux server", "ksmbd.conf: smb2 max credits = 8192"],
                [
                    "Windows",
                    "Set-SmbServerConfiguration -Smb2CreditsMin 512 -Smb2CreditsMax 8192",
                ],
                ["Samba", "smb.conf: smb2 max credits = 8192"],
            ],
            Self::Threshold => &[
                [
                    "Linux client",
                    "echo 4096 > /proc/fs/cifs/rdma_readwrite_threshold, then mount again",
                ],
                [
                    "Windows",
                    "the threshold is fixed; use larger reads and writes",
                ],
            ],
            Self::Signing => &[
                [
                    "Linux client",
                    "mount without -o sign, sec=krb5i and sec=ntlmsspi",
                ],
                [
                    "Windows",
                    "Set-SmbClientConfiguration -RequireSecuritySignature $false, if the network is trusted",
                ],
                [
                    "Samba",
                    "smb.conf: server signing = default, if the network is trusted",
                ],
            ],
            Self::Encryption => &[
                [
                    "Linux client",
                    "mount without -o seal, if the network is trusted",
                ],
                [
                    "Windows",
                    "Set-SmbShare -Name SHARE -EncryptData $false, if the network is trusted",
                ],
                [
                    "Samba",
                    "smb.conf: server smb encrypt = default, if the network is trusted",
                ],
            ],
            Self::OneOutstanding => &[
                [
                    "Linux client",
                    "mount with rsize=4194304,wsize=4194304,rasize=16777216; copy several files at a time",
                ],
                [
                    "Windows",
                    "robocopy SOURCE TARGET /E /MT:16, or an application with overlapped I/O",
                ],
                [
                    "this project",
                    "smbdirect get and put keep several requests outstanding",
                ],
            ],
            Self::SmallRequests => &[
                [
                    "Linux client",
                    "use larger blocks (dd bs=1M), or the page cache instead of O_DIRECT",
                ],
                [
                    "Windows",
                    "use larger reads and writes; robocopy instead of an editor or a database dump",
                ],
            ],
            Self::Metadata => &[
                [
                    "Linux client",
                    "mount with actimeo=60; copy an archive instead of many small files",
                ],
                [
                    "Windows",
                    "robocopy SOURCE TARGET /E /MT:32; copy an archive instead of many small files",
                ],
                [
                    "Samba",
                    "smb.conf: case sensitive = yes, store dos attributes = no",
                ],
            ],
            Self::Delay => &[
                [
                    "any system",
                    "more requests outstanding, and larger ones; a shorter path",
                ],
                [
                    "Linux client",
                    "mount with rsize=4194304,wsize=4194304,rasize=16777216; copy several files at a time",
                ],
                ["Windows", "robocopy SOURCE TARGET /E /MT:16"],
            ],
            Self::Loss => &[
                [
                    "Linux",
                    "ethtool -S ETH | grep -i -e drop -e discard -e crc; replace the cable or transceiver",
                ],
                [
                    "Windows",
                    "Get-NetAdapterStatistics; Enable-NetQosFlowControl -Priority 3 for RoCE, and the same in the switch",
                ],
                [
                    "switch",
                    "for RoCE priority flow control or ECN; for iWARP larger buffers",
                ],
                [
                    "long path",
                    "modprobe tcp_bbr; sysctl -w net.ipv4.tcp_congestion_control=bbr at the sender: it keeps its window",
                ],
            ],
            Self::MtuBlackHole => &[
                [
                    "Linux",
                    "ping -M do -s 8972 SERVER finds it; ip link set ETH mtu 1500",
                ],
                [
                    "Windows",
                    "ping -f -l 8972 SERVER finds it; Set-NetAdapterAdvancedProperty -Name ADAPTER -RegistryKeyword *JumboPacket -RegistryValue 1514",
                ],
                ["switch", "the same MTU on each port of the path"],
            ],
            Self::SlowServer => &[
                [
                    "Linux",
                    "iostat -x 1 and top on the server: the disk or a core is at 100 %",
                ],
                [
                    "Windows",
                    "Get-Counter '\\PhysicalDisk(*)\\Avg. Disk sec/Read' on the server",
                ],
                [
                    "Samba",
                    "a faster disk or a cache; smb.conf: no strict sync, no vfs module that copies",
                ],
            ],
            Self::BusyClient => &[
                [
                    "Linux",
                    "top -H on the client: a core is at 100 %; move the load or the interrupts away from it",
                ],
                [
                    "Windows",
                    "Get-Counter '\\Processor(*)\\% Processor Time' on the client",
                ],
            ],
            Self::BusyServer => &[
                [
                    "Linux",
                    "top -H on the server: a core is at 100 %; move the load or the interrupts away from it",
                ],
                [
                    "Windows",
                    "Get-Counter '\\Processor(*)\\% Processor Time' on the server",
                ],
            ],
            Self::DelayedAcknowledgement => &[
                [
                    "Linux",
                    "at the receiver: ip route add PEER dev ETH quickack 1",
                ],
                [
                    "Windows",
                    "Set-NetTCPSetting -SettingName InternetCustom -DelayedAckFrequency 1",
                ],
            ],
            Self::Window => &[
                [
                    "Linux",
                    "top -H at the receiver: a core is at 100 %; sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'",
                ],
                [
                    "Windows",
                    "netsh int tcp set global autotuninglevel=normal; look at the receiver's processors",
                ],
            ],
            Self::Think => &[[
                "any system",
                "look at the client: its application, its disk (iostat -x 1), its processor (top)",
            ]],
        }
    }
}

/// What limits a connection when nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Bytes move most of the time: the path, or the processors that fill it.
    Wire,
    /// The server works most of the time.
    Server,
    /// The connection was idle.
    Client,
}
