//! The rules that a capture is checked against, in the words of `specs`.

/// Returns the text of a rule; empty for an unknown rule.
pub fn rule_text(rule: &str) -> &'static str {
    let found = RULES.iter().find(|(id, _)| *id == rule);
    found.map_or("", |(_, text)| text)
}

/// Id and text, in the order of the documents.
const RULES: &[(&str, &str)] = &[
    (
        "SMBD-2.2-04",
        "Reserved fields carry no data of the implementation.",
    ),
    (
        "SMBD-2.2.1-01",
        "A request names a range of versions, lowest first, that its sender supports in full; ours is 0x0100 to 0x0100.",
    ),
    (
        "SMBD-2.2.2-01",
        "The version that a response chooses is within the range that the request offered.",
    ),
    (
        "SMBD-2.2.3-01",
        "Flags is 0 or SMB_DIRECT_RESPONSE_REQUESTED, 0x0001; no other bit is ever set.",
    ),
    (
        "SMBD-2.2.3-02",
        "A Data Transfer without payload is sent with DataOffset 0.",
    ),
    (
        "SMBD-3.1.5.1-01",
        "Upper-layer messages are sent only in the role ESTABLISHED.",
    ),
    (
        "SMBD-3.1.5.1-04",
        "Without a send credit nothing is sent, and the waiting messages keep their order.",
    ),
    (
        "SMBD-3.1.5.1-06",
        "The last send credit is not spent on a message that grants nothing.",
    ),
    (
        "SMBD-3.1.5.2-01",
        "A request offers versions 0x0100 to 0x0100 and has Reserved 0.",
    ),
    (
        "SMBD-3.1.5.3-01",
        "A response has versions 0x0100 to 0x0100, Reserved 0, and the Status of the negotiation.",
    ),
    (
        "SMBD-3.1.5.3-02",
        "A response that refuses has 0 in all fields except Status and the version range, also in NegotiatedVersion.",
    ),
    (
        "SMBD-3.1.5.4-03",
        "An empty message is a header of 20 bytes with 0 in Reserved, RemainingDataLength, DataOffset and DataLength.",
    ),
    (
        "SMBD-3.1.5.4-05",
        "The payload of a segment begins at a multiple of 8 and ends within MaxSendSize.",
    ),
    (
        "SMBD-3.1.5.4-08",
        "The bytes between header and payload are 0.",
    ),
    (
        "SMBD-3.1.5.4-09",
        "The token to invalidate is sent with exactly one segment of its message.",
    ),
    (
        "SMBD-3.1.5.6-01",
        "A request shorter than 20 bytes ends the connection without a response; bytes after the 20 are ignored.",
    ),
    (
        "SMBD-3.1.5.6-04",
        "A request for no credits ends the connection without a response.",
    ),
    (
        "SMBD-3.1.5.6-05",
        "A request with a MaxReceiveSize below 128 ends the connection without a response.",
    ),
    (
        "SMBD-3.1.5.6-06",
        "A request with a MaxFragmentedSize below 131072 ends the connection without a response.",
    ),
    (
        "SMBD-3.1.5.7-01",
        "A response shorter than 32 bytes ends the connection.",
    ),
    (
        "SMBD-3.1.5.7-02",
        "A response whose NegotiatedVersion is not 0x0100 ends the connection.",
    ),
    (
        "SMBD-3.1.5.7-03",
        "A response with a MaxReceiveSize below 128 ends the connection.",
    ),
    (
        "SMBD-3.1.5.7-04",
        "A response with a MaxFragmentedSize below 131072 ends the connection.",
    ),
    (
        "SMBD-3.1.5.7-05",
        "A response that grants no credits ends the connection.",
    ),
    (
        "SMBD-3.1.5.7-06",
        "A response that asks for no credits ends the connection.",
    ),
    (
        "SMBD-3.1.5.7-07",
        "A response whose PreferredSendSize is above our MaxReceiveSize ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-01",
        "A Data Transfer shorter than 20 bytes ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-02",
        "A Data Transfer that asks for no credits ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-03",
        "A DataOffset that is not a multiple of 8 ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-04",
        "A payload that ends beyond the message ends the connection, even if its length is 0.",
    ),
    (
        "SMBD-3.1.5.8-05",
        "A sum of DataLength and RemainingDataLength above MaxFragmentedRecvSize ends the connection, in an empty message too.",
    ),
    (
        "SMBD-3.1.5.8-11",
        "SendCredits never wraps: a grant that does not fit in 16 bits ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-16",
        "A segment that claims to be the last while bytes are missing ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-18",
        "A segment that announces more bytes than are missing ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-19",
        "A last segment whose length differs from the number of missing bytes ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-20",
        "DataLength and RemainingDataLength of a segment add up to exactly the number of bytes that were missing before it.",
    ),
    (
        "SMBD-3.1.5.9-03",
        "An end without receives, or with a message that waits for the last send credit, posts at least one receive.",
    ),
    (
        "SMBD-3.1.5.9-08",
        "A response grants at least one credit and no more than were asked for.",
    ),
    (
        "MPA-03",
        "A startup frame with more than 512 bytes of private data ends the connection.",
    ),
    (
        "MPA-06",
        "The initiator sends no FPDU before it has accepted the Reply.",
    ),
    (
        "MPA-07",
        "The responder sends nothing after its Reply until it has received one valid FPDU.",
    ),
    (
        "MPA-09",
        "An unknown key, or the key of the other role, ends the connection.",
    ),
    (
        "MPA-10",
        "A responder accepts revisions 1 and 2, and closes on higher ones.",
    ),
    (
        "MPA-11",
        "A Reply has the revision of its Request, and in revision 2 the enhanced block if the Request had one, even when it refuses.",
    ),
    (
        "MPA-13",
        "A Request with the S flag and fewer than 4 bytes of private data is refused, and no byte after them is read.",
    ),
    (
        "MPA-19",
        "With C in our Request CRCs are on, whatever the Reply says, and a CRC of zeros is then an error.",
    ),
    (
        "MPA-20",
        "The 4 bytes of the CRC are always sent; while CRCs are off they are zeros and ignored on receipt.",
    ),
    (
        "MPA-21",
        "The CRC is CRC32C over length, ULPDU and padding, least significant byte first.",
    ),
    (
        "MPA-23",
        "An FPDU is padded with zeros to a multiple of 4; received padding may have any value, and counts for the CRC.",
    ),
    (
        "MPA-25",
        "An FPDU that is too short for its headers, or a Read Request whose length is not 46, is refused before any memory is touched.",
    ),
    (
        "MPA-29",
        "A refusing Reply is reported as a refusal, with its private data; no FPDU is sent, and TCP is closed.",
    ),
    (
        "MPA-33",
        "Reserved flags are sent as 0 and ignored on receipt.",
    ),
    (
        "MPA-34",
        "The end of the TCP stream within an FPDU is an error; at an FPDU boundary it is a graceful end.",
    ),
    (
        "EST-03",
        "If the Reply has A, the first FPDU of the initiator is the chosen ready-to-receive frame, a Write if both were chosen.",
    ),
    (
        "EST-04",
        "A Request with A is answered with A and one of C and D: with the Write where it is offered, else with C for the Send.",
    ),
    (
        "EST-05",
        "A Request without A is answered with no flag in the block, and the first FPDU is an ordinary one.",
    ),
    (
        "DDP-01",
        "DDP version 1 is sent; any other received version is answered with 1/1/4 or 1/2/6.",
    ),
    (
        "DDP-02",
        "Reserved bits are sent as 0 and ignored on receipt.",
    ),
    (
        "DDP-03",
        "Tagged and untagged segments have the opcodes that belong to them; others are answered with 0/2/6.",
    ),
    (
        "DDP-04",
        "Message sequence numbers count the messages of their queue from 1 and wrap; a wrong one is answered with 1/2/3.",
    ),
    (
        "DDP-05",
        "A message offset is the number of bytes of its message in earlier segments; a wrong one is answered with 1/2/4.",
    ),
    (
        "DDP-06",
        "Sends use queue 0, Read Requests queue 1, the Terminate queue 2; any other queue is answered with 1/2/1.",
    ),
    (
        "DDP-09",
        "The last segment of a message, and no other, has the L flag; a stream that ends in the middle of a message is broken.",
    ),
    (
        "DDP-10",
        "Segments of two messages are never interleaved in one direction.",
    ),
    (
        "DDP-11",
        "The segments of our messages follow each other without gaps, at ascending offsets.",
    ),
    (
        "DDP-14",
        "An offset that wraps within its segment is answered with 1/1/3 before a byte is placed.",
    ),
    (
        "RDMAP-01",
        "RDMAP version 1 is sent; any other received version is answered with 0/2/5.",
    ),
    (
        "RDMAP-02",
        "Opcodes of 8 and above are answered with 0/2/6.",
    ),
    (
        "RDMAP-03",
        "A Read Request is a single segment at offset 0 with the L flag and 46 bytes of ULPDU.",
    ),
    (
        "RDMAP-05",
        "No more Reads than ORD are outstanding; the others wait in order.",
    ),
    (
        "RDMAP-06",
        "Read Responses are sent in the order of their Requests, with exactly the requested bytes and the sink that the Request named.",
    ),
    (
        "RDMAP-08",
        "A Response is checked against the oldest Read outstanding: its sink, its offset, its length.",
    ),
    (
        "RDMAP-09",
        "A Response without an outstanding Read ends the connection.",
    ),
    (
        "RDMAP-18",
        "At most one Terminate is sent, as message 1 of queue 2, between FPDUs, and nothing follows it.",
    ),
    (
        "RDMAP-19",
        "A Terminate has layer and error type in its first byte and the error code in its second; the third says what the Terminate copies.",
    ),
    (
        "ROCE-9.2.1-02",
        "A packet whose transport header version is not 0 is not processed.",
    ),
    (
        "ROCE-9.2.1-03",
        "A packet that is shorter than its headers, its pad and its ICRC is not processed.",
    ),
    (
        "ROCE-9.2.1-04",
        "The payload is padded to a multiple of four bytes, and the pad count holds the number of pad bytes.",
    ),
    (
        "ROCE-9.7.4-01",
        "A Middle or Last packet continues a message of its kind, and no other request begins inside a message; otherwise the NAK is Invalid Request.",
    ),
    (
        "ROCE-9.7.4-04",
        "The response to a Read is cut as a message is, and has exactly the requested bytes; another response breaks the connection.",
    ),
    (
        "ROCE-9.7.4-06",
        "A Write whose packets have more or fewer bytes than its RETH announced is answered with the NAK Invalid Request.",
    ),
    (
        "ROCE-9.7.5-01",
        "The syndrome of an AETH is an acknowledgement, a receiver-not-ready NAK or a NAK with one of its defined codes; a packet with another kind of syndrome is not processed, and a NAK with a reserved code ends the connection.",
    ),
    (
        "ROCE-A17.3.3-04",
        "The ICRC covers the packet from its BTH to its pad, with ones for the byte of the BTH that holds FECN and BECN.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_have_the_text_of_the_tables_of_requirements() {
        let tables = [
            include_str!("../../../specs/ms-smbd.toml"),
            include_str!("../../../specs/iwarp.toml"),
            include_str!("../../../specs/roce.toml"),
        ];
        let rows = tables
            .iter()
            .flat_map(|table| table.split("[[requirement]]"));
        let field = |row: &'static str, name: &str| {
            let (_, rest) = row.split_once(&format!("\n{name} = \""))?;
            rest.split_once('"').map(|(value, _)| value)
        };
        let requirements: Vec<_> = rows
            .filter_map(|row| Some((field(row, "id")?, field(row, "text")?)))
            .collect();
        for rule in RULES {
            assert!(requirements.contains(rule), "{rule:?} is in no table");
        }
        assert!(RULES.len() > 50, "{}", RULES.len());
    }
}
