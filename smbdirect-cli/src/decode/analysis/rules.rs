//! The rules that a capture is checked against, in the words of `specs`.

/// Returns the text of a rule; empty if it is none of these.
pub(crate) fn text(rule: &str) -> &'static str {
    let found = RULES.iter().find(|(id, _)| *id == rule);
    found.map_or("", |(_, text)| text)
}

/// Id and text, in the order of the documents.
const RULES: &[(&str, &str)] = &[
    ("SMBD-2.2-04", "Reserved fields carry nothing of our own."),
    (
        "SMBD-2.2.1-01",
        "A request names a version range that its sender supports in full, lowest first; for us 0x0100 to 0x0100.",
    ),
    (
        "SMBD-2.2.2-01",
        "The version that a response chooses lies within the range that the request offered.",
    ),
    (
        "SMBD-2.2.3-01",
        "Flags is 0 or SMB_DIRECT_RESPONSE_REQUESTED, 0x0001; no other bit is ever set.",
    ),
    (
        "SMBD-2.2.3-02",
        "A Data Transfer without payload leaves with DataOffset 0.",
    ),
    (
        "SMBD-3.1.5.1-01",
        "Upper-layer messages are sent in the role ESTABLISHED only.",
    ),
    (
        "SMBD-3.1.5.1-04",
        "Without a send credit nothing leaves, and what waits stays in order.",
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
        "A response has versions 0x0100 to 0x0100, Reserved 0, and the Status it was made for.",
    ),
    (
        "SMBD-3.1.5.3-02",
        "A response that refuses has 0 in all fields but Status and the version range, in NegotiatedVersion too.",
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
        "Between header and payload there are zeros.",
    ),
    (
        "SMBD-3.1.5.4-09",
        "The token to invalidate goes with exactly one segment of its message.",
    ),
    (
        "SMBD-3.1.5.6-01",
        "A request shorter than 20 bytes ends the connection unanswered; a longer one is read as far as its fields go.",
    ),
    (
        "SMBD-3.1.5.6-04",
        "A request for no credits ends the connection unanswered.",
    ),
    (
        "SMBD-3.1.5.6-05",
        "A request with a MaxReceiveSize below 128 ends the connection unanswered.",
    ),
    (
        "SMBD-3.1.5.6-06",
        "A request with a MaxFragmentedSize below 131072 ends the connection unanswered.",
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
        "A DataOffset that is no multiple of 8 ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-04",
        "A payload that ends beyond the message ends the connection, and a length of 0 is no excuse.",
    ),
    (
        "SMBD-3.1.5.8-05",
        "DataLength and RemainingDataLength together above MaxFragmentedRecvSize end the connection, in an empty message too.",
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
        "A segment that claims more than what is missing ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-19",
        "A last segment whose length is not what is missing ends the connection.",
    ),
    (
        "SMBD-3.1.5.8-20",
        "Payload and rest of a segment are together exactly what was missing before it.",
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
        "The responder sends nothing behind its Reply until one valid FPDU has come.",
    ),
    (
        "MPA-09",
        "An unknown key, or that of the other role, ends the connection.",
    ),
    (
        "MPA-10",
        "A responder takes revisions 1 and 2, and closes on higher ones.",
    ),
    (
        "MPA-11",
        "A Reply has the revision of its Request, and in revision 2 the enhanced block if the Request had one, even when it refuses.",
    ),
    (
        "MPA-13",
        "A Request with the S flag and fewer than 4 bytes of private data is refused, and no byte beyond them is read.",
    ),
    (
        "MPA-19",
        "With C in our Request CRCs are on, whatever the Reply says, and a CRC of zeros is then an error.",
    ),
    (
        "MPA-20",
        "The 4 bytes of the CRC are always sent: zeros while CRCs are off, and then not looked at.",
    ),
    (
        "MPA-21",
        "The CRC is CRC32C over length, ULPDU and padding, least significant byte first.",
    ),
    (
        "MPA-23",
        "An FPDU is padded with zeros to a multiple of 4; on arrival padding may be anything, and counts for the CRC.",
    ),
    (
        "MPA-25",
        "An FPDU too short for its headers, or a Read Request of another length than 46, is refused before any memory is touched.",
    ),
    (
        "MPA-29",
        "A refusing Reply is reported as such, with its private data; no FPDU is sent, and TCP is closed.",
    ),
    (
        "MPA-33",
        "Reserved flags leave as 0 and are ignored on arrival.",
    ),
    (
        "MPA-34",
        "The end of the TCP stream within an FPDU is an error; at a boundary it is an ending in good order.",
    ),
    (
        "EST-03",
        "With A in the Reply the first FPDU of the initiator is the ready-to-receive frame that was chosen, a Write if both were.",
    ),
    (
        "EST-04",
        "A Request with A is answered with A and one of C and D, preferring the Write; where it offers only a Send, with C.",
    ),
    (
        "EST-05",
        "A Request without A is answered with no flag in the block, and the first FPDU is an ordinary one.",
    ),
    (
        "DDP-01",
        "DDP version 1 is sent; any other is answered with 1/1/4 or 1/2/6.",
    ),
    (
        "DDP-02",
        "Reserved bits leave as 0 and are ignored on arrival.",
    ),
    (
        "DDP-03",
        "Tagged and untagged segments have the opcodes that go with them; others are answered with 0/2/6.",
    ),
    (
        "DDP-04",
        "Message sequence numbers count the messages of their queue from 1 and wrap; another one is answered with 1/2/3.",
    ),
    (
        "DDP-05",
        "A message offset is the bytes of its message that came before; another one is answered with 1/2/4.",
    ),
    (
        "DDP-06",
        "Sends go to queue 0, Read Requests to 1, the Terminate to 2; anything else is answered with 1/2/1.",
    ),
    (
        "DDP-09",
        "The last segment of a message, and no other, has the L flag; a stream that ends before it is broken.",
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
        "RDMAP version 1 is sent; any other is answered with 0/2/5.",
    ),
    ("RDMAP-02", "Opcodes from 8 on are answered with 0/2/6."),
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
        "Read Responses come in the order of their Requests, with exactly the bytes asked for and the sink that was named.",
    ),
    (
        "RDMAP-08",
        "A Response is checked against the oldest Read outstanding: its sink, its offset, its length.",
    ),
    (
        "RDMAP-09",
        "A Response that no Read asked for ends the connection.",
    ),
    (
        "RDMAP-18",
        "At most one Terminate is sent, as message 1 of queue 2, between FPDUs, and nothing follows it.",
    ),
    (
        "RDMAP-19",
        "A Terminate has layer and error type in its first byte, the code in its second, and says in the third what it copies.",
    ),
];
