//! Prints events as lines for people.

mod fields;

use smbdirect_decode::{DataTransfer, Event, EventKind, OTHER_UDP, Side, Summary};

use self::fields::fields;
use crate::report::{self, Report, Style, count, plural};

/// Prints the lines of an event.
pub(super) fn event(report: &Report, event: &Event) {
    let style = report.style;
    if let EventKind::Stream {
        ends,
        initiator,
        from_start,
    } = event.kind
    {
        let [first, second] = ends.initiator_first(initiator);
        let (one, other) = if initiator.is_some() {
            ("initiator", "responder")
        } else {
            ("one end", "the other; unknown which of them connected")
        };
        let joined = if from_start {
            ""
        } else {
            ", joined after its beginning"
        };
        report.line("");
        report.line(style.bold(&format!(
            "stream {}: {first} ({one}) and {second} ({other}){joined}",
            event.stream
        )));
        for head in HEADS {
            report.line(style.dim(head));
        }
        return;
    }
    let mut line = format!(
        "{:>7} {:>10.6} {:>6} {} ",
        event.position.frame,
        event.position.seconds,
        event.stream,
        arrow(event)
    );
    match &event.kind {
        EventKind::DataTransfer(transfer) => {
            let credits = event.credits.initiator_first(event.initiator);
            data_transfer(&mut line, transfer, credits);
        }
        _ => line += &words(event, style),
    }
    report.line(line.trim_end());
    for broken in &event.broken {
        let by = who(event.sender());
        let rule = style.bad(&format!("{:>30} {}", "broken:", broken.rule));
        report.line(format_args!("{rule} by {by}: {}", broken.how));
    }
}

/// The columns of Data Transfers under the names of the specification, and the columns before them.
const HEADS: [&str; 2] = [
    "                                             Credits Credits         Remaining   Data   Data credits  held",
    "  frame       time stream    message       Requested Granted  Flags DataLength Offset Length    by I  by R",
];

fn row(cells: [&str; 8]) -> String {
    const WIDTHS: [usize; 8] = [10, 8, 7, 11, 7, 7, 8, 6];
    let cell = |(cell, width): (&str, usize)| format!("{cell:>width$}");
    cells.into_iter().zip(WIDTHS).map(cell).collect()
}

fn arrow(event: &Event) -> &'static str {
    match (event.is_from_initiator(), event.from) {
        (Some(true), _) => "I>",
        (Some(false), _) => "<R",
        (None, Side::A) => "A>",
        (None, Side::B) => "<B",
    }
}

/// Names a sender by its name in JSON.
fn who(sender: &str) -> &'static str {
    match sender {
        "initiator" => "the initiator",
        "responder" => "the responder",
        "a" => "one end",
        _ => "the other end",
    }
}

fn data_transfer(line: &mut String, transfer: &DataTransfer, credits: [Option<u32>; 2]) {
    let [initiator, responder] = credits.map(|credits| or(credits, "?"));
    let cells = [
        transfer.credits_requested.to_string(),
        transfer.credits_granted.to_string(),
        format!("0x{:04x}", transfer.flags),
        transfer.remaining_data_length.to_string(),
        transfer.data_offset.to_string(),
        transfer.data_length.to_string(),
        initiator,
        responder,
    ];
    *line += &format!(
        "Data Transfer{}  ",
        row(cells.each_ref().map(String::as_str))
    );
    let mut words = Vec::new();
    if transfer.flags & 1 != 0 {
        words.push("RESPONSE_REQUESTED".to_owned());
    }
    if let Some(token) = transfer.invalidated {
        words.push(format!("invalidates 0x{token:08x}"));
    }
    words.extend(transfer.payload.words());
    if let Some(by_rdma) = transfer.payload.by_rdma() {
        let bytes = plural(by_rdma.length.into(), "byte");
        words.push(format!("{bytes} by {}", by_rdma.channel_name()));
    }
    *line += &words.join(", ");
}

fn or(number: Option<u32>, unknown: &str) -> String {
    number.map_or_else(|| unknown.into(), |number| number.to_string())
}

/// Describes an event other than a Data Transfer.
fn words(event: &Event, style: Style) -> String {
    let words = match &event.kind {
        EventKind::Headless { length, .. } => format!(
            "{}; its fields were not captured, or the message is too short to have them",
            plural(*length, "byte")
        ),
        EventKind::BadFpdu { .. } | EventKind::BadPacket { .. } => {
            format!("{}, cannot be decoded", fields(event))
        }
        EventKind::Gap { bytes } => {
            let bytes = plural(*bytes, "byte");
            return style.bad(&format!(
                "-- {bytes} of this direction are not in the capture"
            ));
        }
        EventKind::MissingPackets { packets } => {
            let verb = if *packets == 1 { "is" } else { "are" };
            let packets = plural(*packets, "packet");
            return style.bad(&format!(
                "-- {packets} of this direction {verb} not in the capture"
            ));
        }
        EventKind::SentAgain { psn, packets } => {
            let packets = plural(*packets, "packet");
            let psn = psn.value();
            return style.bad(&format!("-- {packets} sent again, from PSN 0x{psn:06x}"));
        }
        EventKind::Packet(_) => return style.dim(&format!("-- {}", fields(event))),
        EventKind::InStep { passed_over: bytes } => {
            let bytes = plural(*bytes, "byte");
            return style.dim(&format!("-- {bytes} skipped, up to where an FPDU begins"));
        }
        EventKind::Note { note } => return style.dim(&format!("-- {note}")),
        EventKind::Closed { reset: true } => return style.dim("-- TCP is reset"),
        EventKind::Closed { reset: false } => return style.dim("-- TCP is closed"),
        _ => fields(event),
    };
    format!("{:<18} {words}", event.kind.name().unwrap_or_default())
}

/// Maximum number of streams that the summary lists individually.
const MAX_STREAMS: usize = 10;

/// Prints the summary.
pub(super) fn summary(report: &Report, summary: &Summary) {
    let style = report.style;
    report.line("");
    report.line(format_args!(
        "{} in {}, {}",
        plural(summary.messages.values().sum(), "message"),
        plural(summary.streams, "stream"),
        plural(summary.counts.packets, "packet"),
    ));
    let mut messages: Vec<_> = summary.messages.iter().collect();
    messages.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
    for (name, times) in messages {
        let bytes = match *name {
            "Data Transfer" => summary.payload_bytes,
            "RDMA Write" => summary.written_bytes,
            "RDMA Read Response" => summary.read_bytes,
            _ => 0,
        };
        let bytes = match bytes {
            0 => String::new(),
            bytes => format!(", {}", report::bytes(bytes)),
        };
        report.line(format_args!("{:>9} {name}{bytes}", count(*times)));
    }
    for (stream, lowest) in summary.lowest_credits.iter().take(MAX_STREAMS) {
        let [initiator, responder] =
            [lowest.initiator, lowest.responder].map(|credits| or(credits, "-"));
        report.line(format_args!(
            "stream {stream}: the fewest send credits, initiator {initiator}, responder {responder}"
        ));
    }
    roce_streams(report, summary);
    beside(report, summary);
    if summary.broken.is_empty() {
        if !summary.messages.is_empty() {
            report.line(style.good("no rule was broken"));
        }
        return;
    }
    let rules = plural(summary.broken.len() as u64, "rule");
    let was = if summary.broken.len() == 1 {
        "was"
    } else {
        "were"
    };
    report.line(style.bad(&format!("{rules} {was} broken")));
    for (rule, broken) in &summary.broken {
        let times = plural(broken.times, "time");
        report.line(format_args!(
            "  {rule:<16} {times}, first by {} of stream {} in frame {}: {}",
            who(broken.by),
            broken.stream,
            broken.frame,
            broken.text
        ));
    }
}

/// Prints a row for the packets of each RoCE connection.
fn roce_streams(report: &Report, summary: &Summary) {
    if summary.roce.is_empty() {
        return;
    }
    let row = |cells: [String; 9]| -> String {
        const WIDTHS: [usize; 9] = [6, 9, 9, 7, 7, 12, 16, 15, 6];
        let cell = |(cell, width): (String, usize)| format!("{cell:>width$}");
        cells.into_iter().zip(WIDTHS).map(cell).collect()
    };
    let heads = [
        "stream",
        "packets",
        "ACK",
        "NAK",
        "RNR",
        "sent again",
        "captured again",
        "not in capture",
        "bad",
    ];
    let head = row(heads.map(str::to_owned));
    report.line(report.style.dim(&head));
    for (stream, totals) in summary.roce.iter().take(MAX_STREAMS) {
        report.line(row([
            stream.to_string(),
            count(totals.packets),
            count(totals.acks),
            count(totals.naks),
            count(totals.rnr_naks),
            count(totals.sent_again),
            count(totals.captured_again),
            count(totals.missing),
            count(totals.bad),
        ]));
    }
}

/// Describes packets that are not of SMB Direct, and the parts of the capture that could not be read.
fn beside(report: &Report, summary: &Summary) {
    if summary.missing_bytes > 0 {
        let bytes = report::bytes(summary.missing_bytes);
        report.line(format_args!(
            "{bytes} of the streams are not in the capture; rules that depend on them are not checked"
        ));
    }
    if summary.missing_packets > 0 {
        let packets = plural(summary.missing_packets, "packet");
        report.line(format_args!(
            "{packets} of RoCE not in the capture; rules that depend on them are not checked"
        ));
    }
    let counts = &summary.counts;
    let roce = &counts.roce;
    if roce.other_connections > 0 {
        let connections = plural(roce.other_connections, "connection");
        report.line(format_args!(
            "{connections} of RoCE without SMB Direct, or whose beginning is not in the capture"
        ));
    }
    for (packets, kind) in [
        (counts.cut, "of TCP cut by the snap length of the capture"),
        (counts.fragments, "of fragmented IP, not reassembled"),
        (
            roce.cut,
            "of RoCE cut by the snap length of the capture, so that the ICRC is unknown",
        ),
        (roce.v1, "of RoCEv1, whose ICRC is not checked"),
        (roce.wrong_icrc, "of RoCE with a wrong ICRC"),
        (roce.undecoded, "of RoCE that cannot be decoded"),
        (roce.congestion, "of RoCE that notify of congestion (CNP)"),
        (
            roce.congestion_marked,
            "of RoCE that the network marked for congestion (CE)",
        ),
    ] {
        if packets > 0 {
            report.line(format_args!("{} {kind}", plural(packets, "packet")));
        }
    }
    for (unread, packets) in &counts.unread {
        // Other protocols over UDP are in most captures.
        if !unread.starts_with(OTHER_UDP) {
            let packets = plural(*packets, "packet");
            report.line(format_args!("{packets} of {unread}, not understood"));
        }
    }
}
