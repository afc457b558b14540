use std::io::{Read, Write};

use super::*;

const START: u32 = 1_700_000_000;

fn principal(components: &[&str]) -> CcachePrincipal {
    CcachePrincipal {
        name_type: 1,
        realm: "EXAMPLE.ORG".into(),
        components: components.iter().map(|&part| part.to_owned()).collect(),
    }
}

fn tickets(credentials: Vec<CcacheCredential>) -> Tickets {
    Tickets {
        cache: CCache {
            version: 4,
            default_principal: principal(&["me"]),
            credentials,
        },
        unusable_key: None,
        name: "/tmp/krb5cc_0".into(),
        config: Config::default(),
    }
}

fn granting() -> CcacheCredential {
    CcacheCredential {
        client: principal(&["me"]),
        server: principal(&["krbtgt", "EXAMPLE.ORG"]),
        key_etype: 18,
        key_data: vec![0; 32],
        authtime: START,
        starttime: START,
        endtime: START + 36_000,
        renew_till: 0,
        ticket: Vec::new(),
    }
}

/// Returns an element of DER.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let contents = parts.concat();
    let length = match contents.len() {
        short @ 0..128 => vec![short as u8],
        long @ 128..256 => vec![0x81, long as u8],
        long => vec![0x82, (long >> 8) as u8, long as u8],
    };
    [&[tag], &*length, &contents].concat()
}

/// Returns a Ticket with `more` bytes of what is encrypted.
fn ticket(more: usize) -> Vec<u8> {
    let cipher = element(0xa2, &[&element(4, &[&vec![0; more]])]);
    let encrypted = element(0x30, &[&[0xa0, 3, 2, 1, 18], &cipher]);
    let before = &cache::TICKET[4..30];
    let fields = element(0x30, &[before, &element(0xa3, &[&encrypted])]);
    element(0x61, &[&fields])
}

fn at(seconds: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.into())
}

#[test]
fn a_ticket_counts_only_while_it_is_valid() {
    let tickets = tickets(vec![granting()]);
    assert_eq!(tickets.principal(), "me@EXAMPLE.ORG");
    for (now, says) in [
        (START, None),
        // Clocks may differ a little.
        (START - 300, None),
        (START - 3600, Some("becomes valid only in 60 minutes")),
        (START + 35_999, None),
        (START + 36_000, Some("expired 0 s ago")),
        (START + 36_000 + 7200, Some("expired 2 hours ago")),
        (START + 36_000 + 864_000, Some("expired 10 days ago")),
    ] {
        let error = tickets.check(at(now)).err().map(|error| error.to_string());
        let text = error.as_deref().unwrap_or_default();
        assert_eq!(error.is_some(), says.is_some(), "{now}: {text}");
        assert!(text.contains(says.unwrap_or_default()), "{now}: {text}");
    }
}

#[test]
fn a_cache_without_a_ticket_is_no_login() {
    let error = tickets(Vec::new()).check(at(START)).unwrap_err();
    assert!(
        error.to_string().ends_with("run `kinit me@EXAMPLE.ORG`"),
        "{error}"
    );
}

/// The crate smb2 sends the name as one part, which the KDC and the server compare with that of the ticket.
#[test]
fn a_principal_has_one_part() {
    let mut tickets = tickets(vec![granting()]);
    tickets.cache.default_principal = principal(&["me", "admin"]);
    let error = tickets.check(at(START)).unwrap_err().to_string();
    assert!(error.contains("that of me/admin@EXAMPLE.ORG"), "{error}");
    assert!(error.ends_with("run `kinit USER@EXAMPLE.ORG`"), "{error}");
}

/// Some issuers leave the start out, and the ticket then is valid from the login on.
#[test]
fn a_ticket_without_a_start_begins_with_the_login() {
    let mut ticket = granting();
    ticket.starttime = 0;
    let tickets = tickets(vec![ticket]);
    assert!(tickets.check(at(START)).is_ok());
    let early = tickets.check(at(START - 3600)).unwrap_err().to_string();
    assert!(
        early.contains("becomes valid only in 60 minutes"),
        "{early}"
    );
}

/// An expired ticket for the server is fetched again.
#[test]
fn a_ticket_for_the_server_counts_only_while_it_is_valid() {
    let mut service = granting();
    service.server = principal(&["cifs", "nas.example.org"]);
    service.endtime = START + 60;
    let tickets = tickets(vec![granting(), service]);
    for (now, is_there) in [(START + 59, true), (START + 60, false)] {
        let cache = tickets.valid(at(now));
        let ticket = cache.find_service_ticket("cifs", "nas.example.org", "EXAMPLE.ORG");
        assert_eq!(ticket.is_some(), is_there);
        assert!(cache.find_tgt("EXAMPLE.ORG").is_some());
    }
}

#[test]
fn a_key_that_cannot_be_used_is_named() {
    let mut tickets = tickets(Vec::new());
    tickets.unusable_key = Some((20, 32));
    let error = tickets.check(at(START)).unwrap_err().to_string();
    assert!(
        error.contains("a key of 32 bytes and encryption type 20"),
        "{error}"
    );
    assert!(error.ends_with("run `kinit me@EXAMPLE.ORG`"), "{error}");
}

#[test]
fn refusals_have_causes_and_cures() {
    for (code, says) in [
        (7, "does not know the server cifs/nas.example.org"),
        (37, "set it, for example by `timedatectl"),
        (14, "no encryption in common"),
        (60, "KRB-ERROR code 60 (generic)"),
    ] {
        let message = format!("Kerberos TGS exchange failed: KRB-ERROR code {code} (generic)");
        let error = refusal(&message, "EXAMPLE.ORG".into(), "nas.example.org");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_kdc_has_a_port() {
    for (host, whole) in [
        ("kdc", "kdc:88"),
        ("kdc:750", "kdc:750"),
        ("10.0.0.1", "10.0.0.1:88"),
        ("fd00::1", "[fd00::1]:88"),
        ("[fd00::1]:750", "[fd00::1]:750"),
    ] {
        assert_eq!(with_port(host), whole);
    }
}

/// The message names what is wrong: no KDC, names without an address, or KDCs that do not answer.
#[tokio::test]
async fn a_kdc_that_is_not_found_is_named() {
    for (kdcs, says) in [
        ("", "no KDC of EXAMPLE.INVALID is known"),
        (
            "kdc = a.invalid",
            "no KDC of EXAMPLE.INVALID has an address: `a.invalid` (",
        ),
        (
            "kdc = a.invalid\nkdc = 127.0.0.1:1",
            "answers on 127.0.0.1:1, `a.invalid` (",
        ),
    ] {
        let mut tickets = tickets(vec![granting()]);
        let text = format!("[realms]\nEXAMPLE.INVALID = {{\n{kdcs}\n}}\n");
        tickets.config.parse(&text, 0);
        let error = tickets
            .kdc("EXAMPLE.INVALID")
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// A KDC that answers by TCP, behind a firewall that drops UDP.
#[tokio::test]
async fn a_kdc_is_asked_by_tcp() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let silent = std::net::UdpSocket::bind(address).unwrap();
    let kdc = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut request = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut request).unwrap();
        // APPLICATION 12, TGS-REQ.
        assert_eq!(request[0], 0x6c);
        let answer = unknown_server();
        stream
            .write_all(&(answer.len() as u32).to_be_bytes())
            .unwrap();
        stream.write_all(&answer).unwrap();
    });
    let mut granting = granting();
    granting.ticket = cache::TICKET.to_vec();
    let mut tickets = tickets(vec![granting]);
    let text = format!("[realms]\nEXAMPLE.ORG = {{\nkdc = {address}\n}}\n");
    tickets.config.parse(&text, 0);
    let found = tickets.kdc("EXAMPLE.ORG").await.unwrap();
    // Three datagrams of the crate smb2 would take longer.
    let limit = Duration::from_secs(8);
    let asked = tickets.fetch(&tickets.cache, "nas.example.org", found, limit);
    let error = asked.await.unwrap_err().to_string();
    assert!(
        error.contains("does not know the server cifs/nas.example.org"),
        "{error}"
    );
    kdc.join().unwrap();
    silent.set_nonblocking(true).unwrap();
    let received = silent.recv(&mut [0; 100]).unwrap_err();
    assert_eq!(received.kind(), std::io::ErrorKind::WouldBlock);
}

/// Returns a KRB-ERROR with code 7, KDC_ERR_S_PRINCIPAL_UNKNOWN (RFC 4120 5.9.1).
fn unknown_server() -> Vec<u8> {
    let code = [0xa6, 3, 2, 1, 7];
    let realm = element(0xa9, &[&element(0x1b, &[b"EXAMPLE.ORG"])]);
    let names = element(
        0x30,
        &[&element(0x1b, &[b"cifs"]), &element(0x1b, &[b"nas"])],
    );
    let name = element(0x30, &[&[0xa0, 3, 2, 1, 2], &element(0xa1, &[&names])]);
    let fields = element(0x30, &[&code, &realm, &element(0xaa, &[&name])]);
    element(0x7e, &[&fields])
}

/// A KDC that accepts a connection and is silent, or ends it.
#[tokio::test]
async fn a_kdc_that_does_not_answer_is_not_the_server() {
    let mut granting = granting();
    granting.ticket = cache::TICKET.to_vec();
    let tickets = tickets(vec![granting]);
    let limit = Duration::from_millis(50);
    for (ends, why) in [
        (false, "no answer within"),
        (true, "unexpected end of file"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let peer = listener.accept().unwrap();
        if ends {
            peer.0.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let found = (address, stream);
        let asked = tickets.fetch(&tickets.cache, "nas.example.org", found, limit);
        let error = asked.await.unwrap_err().to_string();
        let says = format!("the KDC of EXAMPLE.ORG on {address} does not answer a request ({why}");
        assert!(error.starts_with(&says), "{error}");
        assert!(error.contains("TCP port 88"), "{error}");
    }
}

/// The crate makes the same message from a ticket in the cache as from one that the KDC gives.
#[tokio::test]
async fn the_ticket_of_an_exchange_is_that_for_the_server() {
    for (key_etype, bytes) in [(17, 16), (18, 32), (23, 16)] {
        // Lengths of one, two and three bytes.
        for more in [0, 100, 1000] {
            let service = CcacheCredential {
                server: principal(&["cifs", "nas.example.org"]),
                key_etype,
                key_data: vec![7; bytes],
                ticket: ticket(more),
                ..granting()
            };
            let tickets = tickets(vec![granting(), service.clone()]);
            let credentials = tickets.credentials(String::new());
            let mut exchange = KerberosAuthenticator::new(credentials);
            let asked = exchange.authenticate_from_ccache(&tickets.cache, "nas.example.org");
            asked.await.unwrap();
            let found = service::ticket(&exchange, &granting(), "nas.example.org").unwrap();
            assert_eq!(found.ticket, service.ticket);
            assert_eq!(found.key_data, service.key_data);
            assert_eq!(found.key_etype, key_etype);
            assert_eq!(found.server.components, service.server.components);
            assert_eq!(found.server.realm, "EXAMPLE.ORG");
            assert_eq!(found.endtime, granting().endtime);
        }
    }
}
