use super::*;

/// What Linux 7.2.13 prints, abbreviated: a mount over TCP with `seal`, and one over RDMA.
const DEBUG: &str = "Display Internal CIFS Data Structures for Debugging
---------------------------------------------------
CIFS Version 2.61
Features:,SMB_DIRECT,STATS2,DEBUG2,XATTR,ACL
CIFSMaxBufSize: 16384

Servers: 
1) ConnectionId: 0x3 Hostname: 10.77.0.2 
ClientGUID: AD64A9BD-470E-414F-8BA6-C68D3399B4FE
Number of credits: 509,1,1 Dialect 0x311 posix nosharesock
Server capabilities: 0x30004c
TCP status: 1 Instance: 1
Encryption: Negotiated cipher (AES128-GCM)

\tSessions: 
\t1) Address: 10.77.0.2 Uses: 1 Capability: 0x30004c\tSession Status: 1 
\tSecurity type: RawNTLMSSP  SessionId: 0x3
\tShares: 
\t0) IPC: \\\\10.77.0.2\\IPC$ Mounts: 1 DevInfo: 0x0 Attributes: 0x0
\tPathComponentMax: 0 Status: 1 type: 0 Serial Number: 0x0 encrypted

\t1) \\\\10.77.0.2\\share Mounts: 1 DevInfo: 0x20 Attributes: 0x801004f
\tPathComponentMax: 255 Status: 1 type: DISK Serial Number: 0x9ee98f42 encrypted


\tServer interfaces: 2\tLast updated: 0 seconds ago
\t1)\tSpeed: 1Gbps
\t\tCapabilities: rdma 
\t\tIPv4: 10.77.0.2
\t\tWeight (cur,total): (0,1)
\t\t[CONNECTED]

\t2)\tSpeed: 1Gbps
\t\tCapabilities: rss 
\t\tIPv6: fe80:0000:0000:0000:0000:00ff:fe77:0002


\tMIDs: 
--

2) ConnectionId: 0x1 Hostname: 10.77.0.2 
SMBDirect protocol version: 0x100 transport status: CONNECTED (14)
Conn receive_credit_max: 255 send_credit_target: 255 max_send_size: 1364
Conn max_fragmented_recv_size: 173910 max_fragmented_send_size: 173910 max_receive_size:1364
Conn keep_alive_interval: 120 max_readwrite_size: 1048576 rdma_readwrite_threshold: 4096
Number of credits: 509,1,1 Dialect 0x311 signed
Server capabilities: 0x300044
RDMA 
TCP status: 1 Instance: 1
\tSessions: 
\t1) Address: 10.77.0.2 Uses: 1 Capability: 0x300044\tSession Status: 1 
\tSecurity type: RawNTLMSSP  SessionId: 0x1 signed
\t1) \\\\10.77.0.2\\share Mounts: 1 DevInfo: 0x20 Attributes: 0x801004f
\tPathComponentMax: 255 Status: 1 type: DISK Serial Number: 0x9ee98f42
\tMIDs: 
--
";

#[test]
fn connections_of_the_client() {
    let connections = connections(DEBUG);
    let [tcp, rdma] = &connections[..] else {
        panic!("{connections:#?}");
    };
    assert!(!tcp.is_rdma && tcp.is_encrypted && !tcp.is_signed);
    assert_eq!(tcp.address, Some(IpAddr::from([10, 77, 0, 2])));
    assert_eq!((tcp.dialect, tcp.capabilities), (0x0311, 0x0030_004c));
    let interfaces = tcp.interfaces.as_deref().expect("it has asked");
    assert_eq!(interfaces.len(), 2);
    assert!(interfaces[0].is_rdma && !interfaces[1].is_rdma);
    assert_eq!(interfaces[0].speed, Some(1_000_000_000));
    assert_eq!(interfaces[0].address, IpAddr::from([10, 77, 0, 2]));
    assert!(rdma.is_rdma && rdma.is_signed && !rdma.is_encrypted);
    assert_eq!(rdma.transport_status.as_deref(), Some("CONNECTED"));
    assert_eq!(rdma.max_fragmented_send_size, Some(173_910));
    assert_eq!(rdma.max_read_write_size, Some(1 << 20));
    assert_eq!(rdma.shares, [r"\\10.77.0.2\share"]);
    assert_eq!(rdma.interfaces, None);
    assert_eq!(smb_direct(DEBUG), Some(true));
    assert_eq!(smb_direct("Features: DFS,STATS\n"), Some(false));
    assert_eq!(smb_direct(""), None);
}

#[test]
fn mounts_and_their_connections() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir_all(root.join("proc/fs/cifs")).unwrap();
    std::fs::write(root.join("proc/fs/cifs/DebugData"), DEBUG).unwrap();
    std::fs::write(root.join("proc/fs/cifs/rdma_readwrite_threshold"), "4096\n").unwrap();
    let lines = "proc /proc proc rw 0 0\n\
        //10.77.0.2/share /mnt/a\\040b cifs rw,vers=3.1.1,addr=10.77.0.2,rdma 0 0\n\
        //10.77.0.2/share /mnt/2 cifs rw,vers=3.1.1,addr=10.77.0.2,seal 0 0\n";
    std::fs::write(root.join("proc/mounts"), lines).unwrap();
    let client = read(&Root::new(root));
    assert_eq!(client.threshold_bytes, Some(4096));
    let [first, second] = &client.mounts[..] else {
        panic!("{client:#?}");
    };
    assert_eq!(first.directory, "/mnt/a b");
    assert!(first.is_rdma && first.connection.as_ref().is_some_and(|each| each.is_rdma));
    assert!(!second.is_rdma && second.connection.as_ref().is_some_and(|each| !each.is_rdma));
    assert_eq!(second.value("vers"), Some("3.1.1"));
}

#[test]
fn strange_text_is_survived() {
    for text in [
        "1) ConnectionId:",
        "\\\\",
        "1) ConnectionId: \n\\\\\nDialect 0x\nAddress:",
    ] {
        let _ = connections(text);
    }
    assert_eq!(unescape("a\\0"), "a\\0");
    assert_eq!(unescape("\\134"), "\\");
    assert_eq!(speed_bits("1Gbps"), Some(1_000_000_000));
    assert_eq!(speed_bits("99999999999999999999Gbps"), None);
}

#[test]
fn the_numbers_of_older_kernels() {
    let debug = "1) ConnectionId: 0x1 Hostname: s
SMBDirect (in hex) protocol version: 100 transport status: 2
Conn max_fragmented_recv_size: 100000 max_fragmented_send_size: 2a756 max_receive_size:554
Conn keep_alive_interval: 78 max_readwrite_size: 100000 rdma_readwrite_threshold: 1000
Number of credits: 1 Dialect 0x300
";
    let connections = connections(debug);
    let connection = &connections[0];
    assert!(connection.is_rdma);
    assert_eq!(connection.transport_status, None);
    assert_eq!(connection.max_fragmented_send_size, Some(173_910));
    assert_eq!(connection.max_read_write_size, Some(1 << 20));
    assert_eq!(connection.dialect, 0x0300);
}
