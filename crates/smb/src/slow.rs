//! What makes SMB Direct slow: one table of causes for `decode --explain`, `check --measure`, `top` and the gateway.
//!
//! Each command has evidence of its own. What it names is a row of this table, so that one cause has one name, one
//! sentence and the same cures everywhere. `docs/slow.md` has the same rows.

/// Declares the causes, each with its slug, its sentence and its cures.
macro_rules! causes {
    ($($name:ident, $slug:literal, $sentence:literal, [$([$system:literal, $cure:literal]),+ $(,)?];)+) => {
        /// What makes a connection slow.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Cause {
            $(#[doc = $sentence] $name,)+
        }

        impl Cause {
            /// All causes.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the name of the cause for programs.
            pub const fn slug(self) -> &'static str {
                match self { $(Self::$name => $slug),+ }
            }

            /// Returns what is wrong, in one sentence without figures.
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence),+ }
            }

            /// Returns the cures, each with the system that it applies to, and a command or setting.
            pub const fn cures(self) -> &'static [[&'static str; 2]] {
                match self { $(Self::$name => &[$([$system, $cure]),+]),+ }
            }
        }
    };
}

causes! {
    RdmaNotUsed, "rdma_not_used",
        "RDMA is not used: all of SMB goes over TCP, port 445.",
        [
            ["any system", "smbdirect check SERVER names what is missing; a capture on the host misses an adapter's RDMA"],
            ["Linux client", "mount -t cifs -o rdma,vers=3.1.1,username=USER //SERVER/SHARE /mnt"],
            ["Windows", "Enable-NetAdapterRdma -Name ADAPTER; Get-SmbMultichannelConnection shows what is used"],
            ["Samba", "smbdirect gateway :5445 127.0.0.1"],
        ];
    SendCredits, "send_credits",
        "An end has too few SMB Direct send credits, so its peer posts too few receives.",
        [
            ["Linux client", "echo 255 > /proc/fs/cifs/smbd_receive_credit_max, then mount again"],
            ["Linux server", "ksmbd has a fixed number of 255; a newer kernel grants all of it immediately"],
            ["Windows", "the adapter's queue pairs are too small: update its driver and firmware"],
            ["Samba", "smbdirect gateway --receive-credit-max 255"],
        ];
    OwnCredits, "own_credits",
        "The peer has used all credits of this end, which takes messages too slowly or grants few.",
        [
            ["this project", "--receive-credit-max 255; more memory (--memory), another core"],
        ];
    Smb2Credits, "smb2_credits",
        "The client asks for more SMB2 credits than the server grants.",
        [
            ["Linux server", "ksmbd.conf: smb2 max credits = 8192"],
            ["Windows", "Set-SmbServerConfiguration -Smb2CreditsMin 512 -Smb2CreditsMax 8192"],
            ["Samba", "smb.conf: smb2 max credits = 8192"],
        ];
    Threshold, "threshold",
        "Data moves in messages although RDMA is possible: the client uses RDMA only above its threshold.",
        [
            ["Linux client", "echo 4096 > /proc/fs/cifs/rdma_readwrite_threshold, then mount again"],
            ["Windows", "the threshold is fixed; use larger reads and writes"],
        ];
    Signing, "signing",
        "Data moves in messages, because the session is signed.",
        [
            ["Linux client", "mount without -o sign, sec=krb5i and sec=ntlmsspi"],
            ["Windows", "Set-SmbClientConfiguration -RequireSecuritySignature $false, if the network is trusted"],
            ["Samba", "smb.conf: server signing = default, if the network is trusted"],
        ];
    Encryption, "encryption",
        "Data moves in messages, because the session is encrypted.",
        [
            ["Linux client", "mount without -o seal, if the network is trusted"],
            ["Windows", "Set-SmbShare -Name SHARE -EncryptData $false, if the network is trusted"],
            ["Samba", "smb.conf: server smb encrypt = default, if the network is trusted"],
        ];
    OneOutstanding, "one_outstanding",
        "The client has one request outstanding at a time, and waits for it before it sends the next.",
        [
            ["Linux client", "mount with rsize=4194304,wsize=4194304,rasize=16777216; copy several files at a time"],
            ["Windows", "robocopy SOURCE TARGET /E /MT:16, or an application with overlapped I/O"],
            ["this project", "smbdirect get and put keep several requests outstanding"],
        ];
    SmallRequests, "small_requests",
        "The requests are small, so each costs more than its data.",
        [
            ["Linux client", "use larger blocks (dd bs=1M), or the page cache instead of O_DIRECT"],
            ["Windows", "use larger reads and writes; robocopy instead of an editor or a database dump"],
        ];
    Metadata, "metadata",
        "Most requests open, list, look at and close files.",
        [
            ["Linux client", "mount with actimeo=60; copy an archive instead of many small files"],
            ["Windows", "robocopy SOURCE TARGET /E /MT:32; copy an archive instead of many small files"],
            ["Samba", "smb.conf: case sensitive = yes, store dos attributes = no"],
        ];
    Delay, "delay",
        "The path has a long round trip.",
        [
            ["any system", "more requests outstanding, and larger ones; a shorter path"],
            ["Linux client", "mount with rsize=4194304,wsize=4194304,rasize=16777216; copy several files at a time"],
            ["Windows", "robocopy SOURCE TARGET /E /MT:16"],
            ["sender", "no SO_SNDBUF in the program; on Linux sysctl -w net.ipv4.tcp_wmem='4096 65536 67108864'"],
        ];
    Loss, "loss",
        "The path loses packets.",
        [
            ["Linux", "ethtool -S ETH | grep -i -e drop -e discard -e crc; replace the cable or transceiver"],
            ["Windows", "Get-NetAdapterStatistics; Enable-NetQosFlowControl -Priority 3 for RoCE, and the same in the switch"],
            ["switch", "for RoCE priority flow control or ECN; for iWARP larger buffers"],
            ["long path", "modprobe tcp_bbr; sysctl -w net.ipv4.tcp_congestion_control=bbr at the sender: bbr does not halve the window at a loss"],
        ];
    MtuBlackHole, "mtu_black_hole",
        "Large packets never arrive: a link of the path has a smaller MTU and does not say so.",
        [
            ["Linux", "ping -M do -s 8972 SERVER finds it; ip link set ETH mtu 1500"],
            ["Windows", "ping -f -l 8972 SERVER finds it; Set-NetAdapterAdvancedProperty -Name ADAPTER -RegistryKeyword *JumboPacket -RegistryValue 1514"],
            ["switch", "the same MTU on each port of the path"],
        ];
    SlowServer, "slow_server",
        "The server takes longer for a request than one with a fast disk.",
        [
            ["Linux", "iostat -x 1 and top on the server: the disk or a core is at 100 %"],
            ["Windows", "Get-Counter '\\PhysicalDisk(*)\\Avg. Disk sec/Read' on the server"],
            ["Samba", "a faster disk or a cache; smb.conf: no strict sync, no vfs module that copies"],
        ];
    NoAnswer, "no_answer",
        "A request has no answer.",
        [
            ["any system", "look at the server: its log, and whether its disk or the server behind it hangs"],
            ["Linux client", "dmesg | grep -i cifs; cat /proc/fs/cifs/DebugData lists the request"],
            ["Windows", "Get-WinEvent Microsoft-Windows-SMBClient/Connectivity | select -First 20"],
        ];
    AnnouncedWait, "announced_wait",
        "The server has said that a request waits (STATUS_PENDING): for a lock or an oplock of another client, or for a pipe.",
        [
            ["Linux server", "ksmbd: another client has the file open; close it there"],
            ["Windows", "Get-SmbOpenFile | sort Path shows who has the file open"],
            ["Samba", "smbstatus -L shows locks and oplocks, and who has them"],
        ];
    Login, "login",
        "Connecting and logging in takes long.",
        [
            ["any system", "look at the path to the domain controller and DNS: kinit USER and nslookup SERVER show how long they take"],
            ["Samba", "smbcontrol smbd debug auth:5, then its log; wbinfo -t"],
        ];
    Reconnects, "reconnects",
        "Connections end and begin again, and each needs time to connect and to log in.",
        [
            ["Linux client", "dmesg | grep -i -e cifs -e smbd says why it connects again"],
            ["Windows", "Get-WinEvent Microsoft-Windows-SMBClient/Connectivity says why"],
            ["any system", "look at the log of the server at these times; a firewall or an idle time-out may end connections"],
        ];
    SlowConnection, "slow_connection",
        "One connection is slow beside a faster one.",
        [
            ["any system", "smbdirect decode --explain of a capture of this connection alone"],
        ];
    BusyClient, "busy_client",
        "The client pauses within messages: its processor is busy.",
        [
            ["Linux", "top -H on the client: a core is at 100 %; move the load or the interrupts away from it"],
            ["Windows", "Get-Counter '\\Processor(*)\\% Processor Time' on the client"],
        ];
    BusyServer, "busy_server",
        "The server pauses within messages: its processor is busy.",
        [
            ["Linux", "top -H on the server: a core is at 100 %; move the load or the interrupts away from it"],
            ["Windows", "Get-Counter '\\Processor(*)\\% Processor Time' on the server"],
        ];
    DelayedAcknowledgement, "delayed_acknowledgement",
        "A sender waits for an acknowledgement that its peer delays.",
        [
            ["Linux", "at the receiver: ip route add PEER dev ETH quickack 1"],
            ["Windows", "Set-NetTCPSetting -SettingName InternetCustom -DelayedAckFrequency 1"],
        ];
    Window, "window",
        "The receive buffer of an end is too small for the path: its window passes once in each round trip.",
        [
            ["Linux", "at the receiver: sysctl -w net.ipv4.tcp_rmem='4096 131072 67108864'; no SO_RCVBUF in the program"],
            ["Windows", "at the receiver: netsh int tcp set global autotuninglevel=normal"],
        ];
    SlowReceiver, "slow_receiver",
        "The receiver takes bytes from its socket too slowly, and closes its window.",
        [
            ["Linux", "top -H at the receiver: a core is at 100 %, or its program waits"],
            ["Windows", "look at the receiver's processors: Get-Counter '\\Processor(*)\\% Processor Time'"],
        ];
    Think, "think",
        "The client asks for nothing: its application, or its own disk, is slower than the share.",
        [
            ["any system", "look at the client: its application, its disk (iostat -x 1), its processor (top)"],
        ];
    Server, "server",
        "The server has requests, and takes the time.",
        [
            ["Linux", "iostat -x 1 and top on the server"],
            ["Windows", "Get-Counter '\\PhysicalDisk(*)\\Avg. Disk sec/Read' on the server"],
        ];
    Disk, "disk",
        "The disk of the server is slower than its cache.",
        [
            ["Linux", "iostat -x 1 on the server"],
            ["Windows", "Get-Counter '\\PhysicalDisk(*)\\Avg. Disk sec/Read' on the server"],
        ];
    Path, "path",
        "The path is full.",
        [
            ["any system", "a faster link; ethtool ETH shows its speed"],
        ];
    ServerOrPath, "server_or_path",
        "The server or the path is the limit.",
        [
            ["this project", "name a smbdirect listen --sink of the server, as in //HOST:PORT/SHARE, which measures the path alone"],
        ];
    Network, "network",
        "Data waits for the network to the client, or for the window of the client.",
        [
            ["Linux", "ss -ti dst CLIENT shows the window, the rate and what was sent again"],
        ];
    ThisMachine, "this_machine",
        "A processor of this machine is busy.",
        [
            ["any system", "larger reads and writes; another core for other programs"],
        ];
    Memory, "memory",
        "Messages wait for memory of the gateway.",
        [
            ["this project", "raise --memory"],
        ];
    SendQueue, "send_queue",
        "Work waits for the send queue: the network takes less than this end sends.",
        [
            ["Linux", "ss -ti dst PEER shows the rate and what was sent again"],
        ];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has a row for each cause, in the order of the table, with its name, its sentence and its first cure.
    #[test]
    fn the_page_has_the_same_causes() {
        let page = include_str!("../../../docs/slow.md");
        let table = page.split_once("| name | cause |").unwrap().1;
        let mut rows = table.lines().skip(2);
        for cause in Cause::ALL {
            let row = rows.next().unwrap();
            let begin = format!("| `{}` | {} | ", cause.slug(), cause.sentence());
            let [system, cure] = cause.cures()[0];
            let end = format!(" | {system}: `{}` |", cure.replace('|', "\\|"));
            assert!(row.starts_with(&begin) && row.ends_with(&end), "{row}");
        }
        assert_eq!(rows.next(), Some(""));
    }

    #[test]
    fn names_and_sentences_differ() {
        let mut names: Vec<_> = Cause::ALL.iter().map(|cause| cause.slug()).collect();
        names.extend(Cause::ALL.iter().map(|cause| cause.sentence()));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 2 * Cause::ALL.len());
    }
}
