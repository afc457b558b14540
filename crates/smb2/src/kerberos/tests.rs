use std::{
    env, fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener},
    thread,
};

use super::*;

const START: u32 = 1_700_000_000;
const SERVER: &str = "nas.example.org";

fn principal(components: &[&str]) -> CcachePrincipal {
    CcachePrincipal {
        name_type: 1,
        realm: "EXAMPLE.ORG".into(),
        components: components.iter().map(|&part| part.to_owned()).collect(),
    }
}

/// Returns tickets, with the KDCs of these lines for the realm.
fn tickets(credentials: Vec<CcacheCredential>, kdcs: &str) -> Tickets {
    let cache = CCache {
        version: 4,
        default_principal: principal(&["me"]),
        credentials,
    };
    let name = format!(
        "smbdirect-kdcs-{}-{:?}",
        std::process::id(),
        thread::current().id()
    );
    let file = env::temp_dir().join(name);
    fs::write(&file, format!("[realms]\nEXAMPLE.ORG = {{\n{kdcs}\n}}\n")).unwrap();
    let config = Config::of([file.clone()].into_iter());
    fs::remove_file(file).unwrap();
    Tickets::new(cache, "/tmp/krb5cc_0".into(), config).unwrap()
}

/// Returns a ticket that admits to others, valid for ten hours from `start` on.
pub(super) fn granting(start: u32) -> CcacheCredential {
    CcacheCredential {
        client: principal(&["me"]),
        server: principal(&["krbtgt", "EXAMPLE.ORG"]),
        key_etype: 18,
        key_data: vec![0; 32],
        authtime: start,
        starttime: start,
        endtime: start + 36_000,
        renew_till: 0,
        ticket: cache::TICKET.to_vec(),
    }
}

fn service(start: u32) -> CcacheCredential {
    CcacheCredential {
        server: principal(&["cifs", SERVER]),
        ..granting(start)
    }
}

/// Returns an element of DER.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let contents = parts.concat();
    let length = match contents.len() {
        short @ 0..128 => vec![short as u8],
        long => vec![0x82, (long >> 8) as u8, long as u8],
    };
    [&[tag], &*length, &contents].concat()
}

fn at(seconds: u32) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds.into())
}

fn now() -> u32 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    time.as_secs() as u32
}

#[test]
fn a_ticket_counts_only_while_it_is_valid() {
    let tickets = tickets(vec![granting(START)], "");
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
        let found = tickets.find(at(now), |_| true).unwrap();
        let error = found.err().map(|error| error.to_string());
        let text = error.as_deref().unwrap_or_default();
        assert_eq!(error.is_some(), says.is_some(), "{now}: {text}");
        assert!(text.contains(says.unwrap_or_default()), "{now}: {text}");
    }
    // Some issuers leave the start out, and the ticket then is valid from the login on.
    let mut ticket = granting(START);
    ticket.starttime = 0;
    let early = tickets
        .check(&ticket, at(START - 3600))
        .unwrap_err()
        .to_string();
    assert!(
        early.contains("becomes valid only in 60 minutes"),
        "{early}"
    );
}

/// The crate smb2 sends the name as one part, which the KDC and the server compare with that of the ticket.
#[test]
fn a_principal_has_one_part() {
    let cache = CCache {
        version: 4,
        default_principal: principal(&["me", "admin"]),
        credentials: Vec::new(),
    };
    let error = Tickets::new(cache, String::new(), Config::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("that of me/admin@EXAMPLE.ORG"), "{error}");
    assert!(error.ends_with("run `kinit USER@EXAMPLE.ORG`"), "{error}");
}

/// A key whose length is not that of its type would end the process.
#[test]
fn a_key_fits_its_type() {
    let tickets = tickets(Vec::new(), "");
    for (etype, length, fits) in [
        (17, 16, true),
        (18, 32, true),
        (23, 16, true),
        (17, 32, false),
        (18, 16, false),
        (18, 0, false),
        (23, 0, false),
        (20, 32, false),
    ] {
        let mut ticket = granting(START);
        (ticket.key_etype, ticket.key_data) = (etype, vec![7; length]);
        let checked = tickets.check(&ticket, at(START));
        assert_eq!(checked.is_ok(), fits, "{etype} {length}");
        assert_eq!(exchange::kind(etype).is_some(), etype != 20);
        let Err(error) = checked else { continue };
        let says = format!("a key of {length} bytes and encryption type {etype}");
        assert!(error.to_string().contains(&says), "{error}");
    }
}

/// Without a KDC: a ticket that another program has fetched is enough, also one of another realm.
#[tokio::test]
async fn a_ticket_for_the_server_is_enough() {
    let early = service(now() - 20_000);
    let mut late = service(now() - 10);
    late.server.realm = "OTHER.ORG".into();
    late.server.components = vec!["CIFS".into(), "NAS.example.org".into()];
    late.ticket = vec![1];
    for credentials in [
        vec![late.clone()],
        vec![early.clone(), late.clone()],
        vec![late, early],
    ] {
        let tickets = tickets(credentials, "").for_server(SERVER).await.unwrap();
        let found = tickets
            .cache
            .find_service_ticket("cifs", SERVER, "EXAMPLE.ORG");
        assert_eq!(
            found.unwrap().ticket,
            [1],
            "the one that can be used longest"
        );
        // It is found again, also by other forms of the name.
        assert!(tickets.for_server("NAS.Example.org.").await.is_ok());
        assert!(tickets.for_server(SERVER).await.is_ok());
    }
}

#[tokio::test]
async fn tickets_that_cannot_be_used_are_explained() {
    let mut of_another = service(now());
    of_another.client = principal(&["other"]);
    let mut for_another_realm = granting(now());
    for_another_realm.server.components[1] = "OTHER.ORG".into();
    let none = "/tmp/krb5cc_0 has no ticket of EXAMPLE.ORG, and none for cifs/nas.example.org; run `kinit me@";
    for (credentials, says) in [
        (vec![], none),
        (vec![of_another, for_another_realm], none),
        (vec![service(START)], "expired"),
        (vec![granting(START)], "expired"),
        (
            vec![service(START), granting(now() + 7200)],
            "becomes valid only in",
        ),
        // This one is asked for again.
        (
            vec![service(START), granting(now())],
            "no KDC of EXAMPLE.ORG has an address",
        ),
    ] {
        let tickets = tickets(credentials, "kdc = a.invalid");
        let error = tickets.for_server(SERVER).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let error = tickets(vec![], "")
        .for_server("::1")
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("in place of ::1"), "{error}");
}

#[test]
fn refusals_have_causes_and_cures() {
    for (code, says) in [
        (7, "does not know the server cifs/nas.example.org"),
        (37, "set it, for example by `timedatectl"),
        (14, "no encryption in common"),
        (60, "error 60 of Kerberos generic"),
    ] {
        let error = explain(code, "generic", "EXAMPLE.ORG", SERVER);
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// The message names what is wrong: no KDC, names without an address, or KDCs that do not answer.
#[tokio::test]
async fn a_kdc_that_is_not_found_is_named() {
    for (kdcs, says) in [
        (
            "kdc = a.invalid\nkdc = fd00::1",
            "no KDC of EXAMPLE.ORG has an address: `a.invalid` has no address (",
        ),
        ("kdc = fd00::1", "`fd00::1` is not HOST[:PORT]"),
        (
            "kdc = a.invalid\nkdc = 127.0.0.1:1",
            "answers on 127.0.0.1:1 (Connection refused",
        ),
    ] {
        let tickets = tickets(vec![granting(now())], kdcs);
        let error = tickets.for_server(SERVER).await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // Without an entry, it is the address of the realm's name.
    let mut tickets = tickets(vec![granting(now())], "");
    let (user, ticket) = (
        &mut tickets.cache.default_principal,
        &mut tickets.cache.credentials[0],
    );
    for name in [user, &mut ticket.client, &mut ticket.server] {
        name.realm = "EXAMPLE.INVALID".into();
    }
    ticket.server.components[1] = "EXAMPLE.INVALID".into();
    let error = tickets.for_server(SERVER).await.unwrap_err().to_string();
    assert!(
        error.contains("no KDC of EXAMPLE.INVALID is known"),
        "{error}"
    );
}

/// A KDC that answers by TCP.
#[tokio::test]
async fn a_kdc_is_asked_by_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let kdc = thread::spawn(move || {
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
    let tickets = tickets(vec![granting(now())], &format!("kdc = {address}"));
    let error = tickets.for_server(SERVER).await.unwrap_err().to_string();
    assert!(
        error.contains("does not know the server cifs/nas.example.org"),
        "{error}"
    );
    kdc.join().unwrap();
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

/// A KDC that accepts a connection and is silent, or ends it; then another one is asked.
#[tokio::test]
async fn a_kdc_that_does_not_answer_is_not_the_last_one() {
    let granting = granting(now());
    let request = exchange::Request::new(&granting, SERVER);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let silent = ask(&request, address, Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(&silent, NoTicket::Answer(why) if why.contains("no answer within")),
        "{silent:?}"
    );
    let ends = thread::spawn(move || {
        // The connection of before.
        drop(listener.accept().unwrap());
        listener
            .accept()
            .unwrap()
            .0
            .shutdown(Shutdown::Both)
            .unwrap();
    });
    let kdcs = format!("kdc = {address}\nkdc = 127.0.0.1:1");
    let error = tickets(vec![granting.clone()], &kdcs)
        .for_server(SERVER)
        .await
        .unwrap_err();
    let (error, first) = (error.to_string(), format!("answers on {address} ("));
    assert!(
        error.contains(&first) && error.contains("), 127.0.0.1:1 (Connection refused"),
        "{error}"
    );
    ends.join().unwrap();
}
