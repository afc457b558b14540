//! SMB2 as an upper layer, as far as it needs no session: NEGOTIATE and ECHO towards a server,
//! NEGOTIATE and a refused logon towards a client ([MS-SMB2] 2.2.3, 2.2.4, 2.2.28).

use smbdirect_smb::smb2::{
    Command, DIALECT_3_0, DIALECT_3_0_2, DIALECT_3_1_1, ECHO_BODY, ERROR_BODY, Flags, Header,
    NegotiateContext, NegotiateRequest, NegotiateResponse, SIGNING_ENABLED, negotiated_dialect,
};

use super::{Answering, Asking, UpperLayer};

/// SMB2 without a session. It works with any SMB3 server or client.
///
/// The first request of a connection is NEGOTIATE, which reserved negotiate contexts make as long
/// as a case needs; receivers have to ignore them ([MS-SMB2] 2.2.3.1). All later ones are ECHO.
#[derive(Clone, Copy, Debug, Default)]
pub struct Smb2;

impl UpperLayer for Smb2 {
    fn name(&self) -> &'static str {
        "smb2"
    }

    fn ask(&self) -> Box<dyn Asking> {
        Box::new(Client { next_message_id: 0 })
    }

    fn answer(&self) -> Box<dyn Answering> {
        Box::new(Server)
    }
}

/// The dialects of this end.
const DIALECTS: [u16; 3] = [DIALECT_3_0, DIALECT_3_0_2, DIALECT_3_1_1];
const GUID: [u8; 16] = *b"smbdirectconform";
const STATUS_LOGON_FAILURE: u32 = 0xc000_006d;
/// Longest message in bytes without a session. ksmbd takes requests of 16384 bytes, and cifs answers
/// of 16384 bytes and a header.
const MAX_MESSAGE: usize = 16_000;

fn header(command: Command, message_id: u64, flags: Flags, status: u32) -> Vec<u8> {
    let header = Header {
        credit_charge: 1,
        status,
        command,
        credits: 1,
        flags,
        next_command: 0,
        message_id,
        tree_or_async_id: 0,
        session_id: 0,
        signature: [0; 16],
    };
    let mut bytes = Vec::new();
    header.encode(&mut bytes);
    bytes
}

/// Returns the contexts of 3.1.1 for SHA-512 and for AES-128-GCM.
fn contexts() -> Vec<NegotiateContext> {
    let mut integrity = vec![1, 0, 32, 0, 1, 0];
    integrity.extend([0x5a; 32]);
    let of = |context_type, data| NegotiateContext { context_type, data };
    vec![of(1, integrity), of(2, vec![1, 0, 2, 0])]
}

/// SMB2_CONTEXTTYPE_RESERVED, which receivers ignore.
const RESERVED_CONTEXT: u16 = 0x0100;
/// Longest reserved context in bytes of data; the field has 16 bits.
const MAX_CONTEXT: usize = 0xfff8;

/// This end as a client.
struct Client {
    next_message_id: u64,
}

impl Client {
    /// Returns a NEGOTIATE request of `length` bytes, or the nearest possible length above it.
    fn negotiate(length: usize) -> Vec<u8> {
        let mut request = NegotiateRequest {
            security_mode: SIGNING_ENABLED,
            capabilities: 0,
            client_guid: GUID,
            dialects: DIALECTS.into(),
            contexts: contexts(),
        };
        loop {
            let mut bytes = header(Command::NEGOTIATE, 0, Flags::default(), 0);
            request.encode(&mut bytes);
            if bytes.len() >= length {
                return bytes;
            }
            let used = bytes.len().next_multiple_of(8) + NegotiateContext::HEADER_LENGTH;
            request.contexts.push(NegotiateContext {
                context_type: RESERVED_CONTEXT,
                data: vec![0; length.saturating_sub(used).min(MAX_CONTEXT)],
            });
        }
    }
}

impl Asking for Client {
    fn request(&mut self, length: usize) -> Vec<u8> {
        let id = self.next_message_id;
        self.next_message_id += 1;
        if id == 0 {
            return Self::negotiate(length);
        }
        let mut echo = header(Command::ECHO, id, Flags::default(), 0);
        echo.extend(ECHO_BODY);
        echo
    }

    fn longest(&self) -> usize {
        MAX_MESSAGE
    }

    fn check(&self, request: &[u8], answer: &[u8]) -> Result<(), String> {
        let asked = Header::decode(request).expect("the request is SMB2");
        let header = Header::decode(answer)
            .map_err(|error| format!("a message of {} bytes: {error}", answer.len()))?;
        let (command, status) = (header.command, header.status);
        if command != asked.command || header.message_id != asked.message_id {
            let id = header.message_id;
            return Err(format!(
                "a response to {command} with MessageId {id}, not to {} with {}",
                asked.command, asked.message_id
            ));
        }
        if !header.is_response() {
            return Err(format!("{command} without SMB2_FLAGS_SERVER_TO_REDIR"));
        }
        if status != 0 {
            return Err(format!(
                "a response to {command} with status 0x{status:08x}"
            ));
        }
        if command == Command::NEGOTIATE && negotiated_dialect(&header, answer).is_none() {
            return Err("a NEGOTIATE response without a dialect".into());
        }
        Ok(())
    }

    fn is_echo(&self) -> bool {
        false
    }
}

/// This end as a server that refuses every logon.
struct Server;

impl Answering for Server {
    fn reply(&mut self, request: &[u8], length: usize) -> Result<Vec<u8>, String> {
        let asked = Header::decode(request).map_err(|error| error.to_string())?;
        if asked.command != Command::NEGOTIATE {
            return Err(format!("{} before NEGOTIATE", asked.command));
        }
        let offered = NegotiateRequest::decode(request).map_err(|error| error.to_string())?;
        let dialects = offered.dialects.into_iter();
        let dialect = dialects
            .filter(|dialect| DIALECTS.contains(dialect))
            .max()
            .ok_or("no dialect of SMB3")?;
        let response = NegotiateResponse {
            security_mode: SIGNING_ENABLED,
            dialect,
            server_guid: GUID,
            capabilities: 0,
            max_transact_size: 1 << 20,
            max_read_size: 1 << 20,
            max_write_size: 1 << 20,
            // The start of 2026.
            system_time: 134_115_264_000_000_000,
            server_start_time: 0,
            // This value means NTLMSSP without SPNEGO.
            security_buffer: Vec::new(),
            contexts: if dialect == DIALECT_3_1_1 {
                contexts()
            } else {
                Vec::new()
            },
        };
        let mut bytes = header(Command::NEGOTIATE, asked.message_id, Flags::RESPONSE, 0);
        response.encode(&mut bytes);
        bytes.resize(length.min(MAX_MESSAGE).max(bytes.len()), 0);
        Ok(bytes)
    }

    fn farewell(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        let asked = Header::decode(request).ok()?;
        if asked.command != Command::SESSION_SETUP {
            return None;
        }
        let status = STATUS_LOGON_FAILURE;
        let mut bytes = header(
            Command::SESSION_SETUP,
            asked.message_id,
            Flags::RESPONSE,
            status,
        );
        bytes.extend(ERROR_BODY);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_understand_each_other() {
        for length in [0, 104, 500, 1341, 16_000, 173_910] {
            let (mut client, mut server) = (Smb2.ask(), Smb2.answer());
            let request = client.request(length);
            let shortest = Smb2.ask().request(0).len();
            assert_eq!(request.len(), length.max(shortest));
            for length in [0, 1000] {
                let answer = server.reply(&request, length).unwrap();
                assert!(answer.len() >= length);
                client.check(&request, &answer).unwrap();
                let header = Header::decode(&answer).unwrap();
                assert_eq!(negotiated_dialect(&header, &answer), Some(DIALECT_3_1_1));
            }
            let echo = client.request(5000);
            assert_eq!(echo.len(), 68);
            assert_eq!(Header::decode(&echo).unwrap().message_id, 1);
            assert!(server.reply(&echo, 0).is_err());
        }
    }

    #[test]
    fn wrong_answers_are_named() {
        let mut client = Smb2.ask();
        let request = client.request(0);
        let good = Smb2.answer().reply(&request, 0).unwrap();
        let with = |at: usize, bytes: &[u8]| {
            let mut answer = good.clone();
            answer[at..at + bytes.len()].copy_from_slice(bytes);
            client.check(&request, &answer).unwrap_err()
        };
        assert!(with(8, &[1, 0, 0, 0xc0]).contains("status 0xc0000001"));
        assert!(with(12, &[13]).contains("ECHO"));
        assert!(with(16, &[0]).contains("SERVER_TO_REDIR"));
        assert!(with(24, &[7]).contains("MessageId 7"));
        assert!(with(64, &[9]).contains("without a dialect"));
        assert!(client.check(&request, b"nothing").is_err());
    }

    #[test]
    fn a_logon_is_refused() {
        let mut server = Server;
        let request = header(Command::SESSION_SETUP, 3, Flags::default(), 0);
        let answer = server.farewell(&request).unwrap();
        let answer = Header::decode(&answer).unwrap();
        assert_eq!(
            (answer.message_id, answer.status),
            (3, STATUS_LOGON_FAILURE)
        );
        assert_eq!(
            server.farewell(&header(Command::ECHO, 4, Flags::default(), 0)),
            None
        );
    }
}
