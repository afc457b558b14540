//! The fields of an event in words: those of its JSON object, under the same names.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use smbdirect_decode::Event;

/// Fields of every event, which its line has in columns.
const OF_EVERY_EVENT: [&str; 9] = [
    "event",
    "stream",
    "frame",
    "seconds",
    "from",
    "message",
    "initiator_credits",
    "responder_credits",
    "broken",
];
/// Fields that are shown as hexadecimal numbers, and their digits.
const HEXADECIMAL: [(&str, usize); 17] = [
    ("min_version", 4),
    ("max_version", 4),
    ("negotiated_version", 4),
    ("status", 8),
    ("stag", 8),
    ("source_stag", 8),
    ("sink_stag", 8),
    ("r_key", 8),
    ("invalidated", 8),
    ("queue_pair", 6),
    ("psn", 6),
    ("p_key", 4),
    ("service_id", 16),
    ("tagged_offset", 1),
    ("source_tagged_offset", 1),
    ("sink_tagged_offset", 1),
    ("virtual_address", 1),
];
/// Words of names that are abbreviations.
const ABBREVIATIONS: [&str; 10] = [
    "crc", "dma", "icrc", "ird", "msn", "mtu", "ord", "psn", "rnr", "rtr",
];

/// Returns the fields of an event; those that are false, empty or unknown are left out.
pub(super) fn fields(event: &Event) -> String {
    let json = serde_json::to_string(event).unwrap_or_default();
    let fields: Fields = serde_json::from_str(&json).unwrap_or_default();
    fields.0.join(", ")
}

/// The fields of a JSON object in words, in their order.
#[derive(Default)]
struct Fields(Vec<String>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if !OF_EVERY_EVENT.contains(&name.as_str()) {
                self.0.extend(words(&name, &value));
            }
        }
        Ok(self)
    }
}

/// Returns a field in words, if it says something.
fn words(name: &str, value: &Value) -> Option<String> {
    let digits = HEXADECIMAL
        .iter()
        .find(|(hexadecimal, _)| *hexadecimal == name);
    let words = in_words(name);
    match (value, digits) {
        (Value::Bool(true), _) => Some(words),
        (Value::String(text), _) if !text.is_empty() => Some(format!("{words} {text}")),
        (Value::Number(number), Some((_, digits))) => {
            let number = number.as_u64()?;
            Some(format!("{words} 0x{number:0digits$x}"))
        }
        (Value::Number(number), None) => Some(format!("{words} {number}")),
        _ => None,
    }
}

/// Returns a name as the specifications write names: MaxReceiveSize for `max_receive_size`.
fn in_words(name: &str) -> String {
    let word = |word: &str| match word.split_at_checked(1) {
        _ if ABBREVIATIONS.contains(&word) => word.to_uppercase(),
        Some((first, rest)) => first.to_uppercase() + rest,
        None => String::new(),
    };
    name.split('_').map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_names_and_forms_of_the_specifications() {
        let json = r#"{"event":"message","psn":35,"max_receive_size":8192,"crc":true,"markers":false,
            "private_data":"","reason":"unknown","port":null}"#;
        let fields: Fields = serde_json::from_str(json).unwrap();
        let expected = [
            "PSN 0x000023",
            "MaxReceiveSize 8192",
            "CRC",
            "Reason unknown",
        ];
        assert_eq!(fields.0, expected);
    }
}
