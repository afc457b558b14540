//! Rows as text, one object per line. `cargo xtask goals` writes such files.

use serde::Deserialize;
use smbdirect_transport::Kind;

use crate::{
    plan::{Choice, Memory, Program, Row, Work},
    work::{MAX_MESSAGE_BYTES, Means, Operation, Placement, Smb},
};

/// A row of the file: an object with the keys of the event `row` of --json. Further keys are ignored, so that
/// the output of an earlier run is such a file.
#[derive(Debug, Deserialize)]
struct Wanted {
    /// Set in the output of a run.
    event: Option<String>,
    /// Names a program or the work in memory.
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: String,
    means: Option<String>,
    transport: Option<Kind>,
    #[serde(default)]
    size: u32,
    segment: Option<u32>,
    crc: Option<bool>,
    outstanding: Option<u32>,
    #[serde(default)]
    both: bool,
    #[serde(default)]
    busy_poll: bool,
    connections: Option<u32>,
    placement: Option<Placement>,
}

/// Returns the rows of a text with one object per line. `choice` has the defaults of a row.
///
/// # Errors
/// A line is not a row that can be measured here, or there is none.
pub fn parse_rows(text: &str, choice: &Choice) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let wanted: Wanted =
            serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        if wanted.event.as_deref().is_some_and(|event| event != "row") {
            continue;
        }
        let row = wanted.row(choice);
        rows.push(row.map_err(|why| format!("line {number}: {why}"))?);
    }
    if rows.is_empty() {
        return Err("there is no row".into());
    }
    Ok(rows)
}

impl Wanted {
    fn row(&self, choice: &Choice) -> Result<Row, String> {
        if self.size == 0 || self.size > MAX_MESSAGE_BYTES {
            return Err(format!("the size {} is not within 1 to 8M", self.size));
        }
        match self.kind.as_str() {
            "memory" => {
                self.named([Memory::Copy, Memory::Crc].map(|it| Row::Memory(it, self.size)))
            }
            "program" => self.named(Program::ALL.map(|it| Row::Program(it, self.size))),
            _ => Ok(Row::Work(self.work(choice)?)),
        }
    }

    /// Returns the row whose name is in the file.
    fn named(&self, rows: impl IntoIterator<Item = Row>) -> Result<Row, String> {
        let mut rows = rows.into_iter();
        let found = rows.find(|row| row.name() == self.name);
        found.ok_or_else(|| format!("there is no {} {:?}", self.kind, self.name))
    }

    fn work(&self, choice: &Choice) -> Result<Work, String> {
        let means = self.means.as_deref().unwrap_or_default();
        let is_smb_direct = means.starts_with("smbdirect");
        let kind = match (self.kind.as_str(), means) {
            ("send", "smbdirect-batched" | "tcp-batched") => Operation::Batch,
            ("send", "smbdirect" | "tcp" | "frames" | "channel") => Operation::Send,
            ("write", "smbdirect") => Operation::Write,
            ("write", "smbdirect-apart") => Operation::WriteApart,
            ("read", "smbdirect") => Operation::Read,
            ("echo", "smbdirect" | "tcp" | "frames" | "channel") => Operation::Echo,
            (kind, means) => return Err(format!("{means:?} does not do {kind:?}")),
        };
        let outstanding = match kind {
            Operation::Write | Operation::WriteApart | Operation::Read => {
                self.outstanding.unwrap_or(16)
            }
            _ => 0,
        };
        if outstanding > 128 {
            return Err(format!(
                "{outstanding} outstanding operations are more than 128"
            ));
        }
        Ok(Work {
            means: match means {
                _ if is_smb_direct => Means::SmbDirect(self.smb(choice)?),
                "frames" => Means::Frames,
                "channel" => Means::Channel,
                _ => Means::Tcp,
            },
            kind,
            size: self.size,
            outstanding,
            both: self.both,
            busy: self.busy_poll,
            connections: self.connections.unwrap_or(1).clamp(1, 256),
            placement: self.placement.unwrap_or(choice.placement),
        })
    }

    fn smb(&self, choice: &Choice) -> Result<Smb, String> {
        let segment = self.segment.unwrap_or_else(|| choice.largest_segment());
        if segment < 128 {
            return Err(format!(
                "a segment of {segment} is too small; the minimum is 128"
            ));
        }
        let over = self.transport.unwrap_or(choice.smb.over);
        Ok(Smb {
            over,
            crc: self.crc.unwrap_or(true) && over == Kind::Iwarp,
            segment,
            ..choice.smb
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{measure::Measured, plan::Subject, row_event::RowEvent, work::Sample};

    fn choice() -> Choice {
        Choice {
            smb: Smb {
                over: Kind::Iwarp,
                crc: true,
                segment: 0,
                send_credit_target: 255,
                receive_credit_max: 255,
                max_read_write_size: 8 << 20,
            },
            crcs: vec![true],
            segments: vec![8136, 1364],
            sizes: vec![64, 1 << 20],
            subjects: vec![
                Subject::Send,
                Subject::Write,
                Subject::Read,
                Subject::Latency,
                Subject::Memory,
            ],
            outstanding: vec![1, 16],
            directions: vec![false],
            busy: false,
            connections: vec![1],
            with_loads: false,
            placement: Placement::TwoCores,
            alone: false,
            rows: None,
        }
    }

    fn parse(lines: &[String]) -> Result<Vec<Row>, String> {
        parse_rows(&lines.join("\n"), &choice())
    }

    #[test]
    fn the_rows_of_a_run_are_read_back() {
        let rows = choice().rows();
        assert!(rows.len() > 20);
        let measured = Measured {
            rows: rows
                .iter()
                .map(|&row| (row, vec![Sample::reported(1.0, 64, 1)]))
                .collect(),
            ..Measured::default()
        };
        let summary = measured.summarise();
        let mut lines = vec![json!({ "event": "idle_connections" }).to_string()];
        lines.extend(
            summary
                .results
                .iter()
                .map(|result| serde_json::to_string(&RowEvent::new(&summary, result)).unwrap()),
        );
        assert_eq!(parse(&lines).unwrap(), rows);
    }

    #[test]
    fn programs_are_found_by_name() {
        for other in [Program::Iperf3, Program::UcxMemory] {
            let row = Row::Program(other, 64);
            let line = json!({ "kind": "program", "name": row.name(), "size": 64 });
            assert_eq!(parse(&[line.to_string()]).unwrap(), [row]);
        }
    }

    #[test]
    fn invalid_rows_are_named_by_their_line() {
        let row = json!({ "kind": "send", "means": "smbdirect", "size": 64 });
        for (key, value, expected) in [
            ("size", json!(0), "the size 0 is not within 1 to 8M"),
            ("size", json!(9 << 20), "is not within 1 to 8M"),
            ("segment", json!(100), "the minimum is 128"),
            ("means", json!("smoke"), "\"smoke\" does not do \"send\""),
            ("kind", json!("read-apart"), "does not do"),
            ("kind", json!("program"), "there is no program \"\""),
            ("placement", json!("nowhere"), "unknown variant"),
        ] {
            let mut wrong = row.clone();
            wrong[key] = value;
            let error = parse(&[row.to_string(), wrong.to_string()]).unwrap_err();
            assert!(error.contains("line 2: "), "{error}");
            assert!(error.contains(expected), "{error}");
        }
        let error = parse(&[]).unwrap_err();
        assert!(error.contains("there is no row"), "{error}");
    }
}
