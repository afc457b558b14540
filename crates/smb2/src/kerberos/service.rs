//! The ticket for a server that the crate smb2 has fetched.
//!
//! The crate asks the KDC and the server in one call, so that a KDC that does not answer looks like a server that does
//! not. Its part for the KDC alone ends with a message that has the ticket, from where this module takes it.

use smb2::auth::{
    KerberosAuthenticator,
    kerberos::ccache::{CcacheCredential, CcachePrincipal},
};

/// Tags in the token of a login: a SPNEGO token (RFC 4178 4.2.1) around a GSS-API token (RFC 4121 4.1) around an AP-REQ
/// (RFC 4120 5.5.1), up to the fields of the AP-REQ. The identifier of the GSS-API token, 01 00, reads as an element.
const PATH: [u8; 8] = [0x60, 0xa0, 0x30, 0xa2, 0x04, 0x60, 0x6e, 0x30];
/// The field `ticket` of the AP-REQ.
const TICKET: u8 = 0xa3;
/// Tags of the encryption type of the field `authenticator`.
const ENCRYPTION_TYPE: [u8; 4] = [0xa4, 0x30, 0xa0, 0x02];

/// Returns the ticket for `server` of an exchange that has succeeded, valid as long as the one that admitted to it.
pub(super) fn ticket(
    exchange: &KerberosAuthenticator,
    granting: &CcacheCredential,
    server: &str,
) -> Option<CcacheCredential> {
    let request = inside(exchange.token()?, &PATH)?;
    let ticket = inside(request, &[TICKET])?.to_vec();
    let [etype] = inside(request, &ENCRYPTION_TYPE)? else {
        return None;
    };
    Some(CcacheCredential {
        server: CcachePrincipal {
            components: vec!["cifs".into(), server.into()],
            ..granting.server.clone()
        },
        key_etype: u16::from(*etype),
        key_data: exchange.session_key()?.to_vec(),
        ticket,
        ..granting.clone()
    })
}

/// Returns the contents of the element that is reached by the first one with each tag.
fn inside<'a>(mut bytes: &'a [u8], tags: &[u8]) -> Option<&'a [u8]> {
    for wanted in tags {
        bytes = loop {
            let (tag, contents, rest) = element(bytes)?;
            if tag == *wanted {
                break contents;
            }
            bytes = rest;
        };
    }
    Some(bytes)
}

/// Splits the first element of DER into its tag, its contents and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = bytes.split_first_chunk()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        let digits = length.iter().map(|&digit| usize::from(digit));
        let length = digits.fold(0_usize, |sum, digit| sum.wrapping_shl(8) | digit);
        (length, rest)
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}
