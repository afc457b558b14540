//! Log lines in the journal of systemd, with their fields, in its native protocol
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).

use std::fmt::{Debug, Write as _};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, SpanRef},
};

use crate::{
    report,
    streams::{self, Stream},
};

/// Begins the names of the fields of log lines, which must not be those of the journal.
const PREFIX: &str = "SMBDIRECT_";

/// The name of the field with the text of a line.
const MESSAGE: &str = "message";

/// The layer that writes log lines to the journal.
#[derive(Debug)]
pub(crate) struct Journal;

impl Journal {
    /// Returns the layer, if there is a journal.
    pub(crate) fn open() -> Option<Self> {
        streams::open_journal().then_some(Self)
    }
}

/// The fields of a span or a line, encoded.
#[derive(Debug, Default)]
struct Fields(Vec<u8>);

impl Fields {
    /// Adds a field. Names have upper-case letters, digits and underscores only.
    fn put(&mut self, prefix: &str, name: &str, value: &str) {
        let name = name.trim_start_matches('_').bytes().map(|byte| match byte {
            b'.' => b'_',
            byte => byte.to_ascii_uppercase(),
        });
        let is_valid = |byte: &u8| *byte == b'_' || byte.is_ascii_alphanumeric();
        self.0.extend(prefix.bytes());
        self.0.extend(name.filter(is_valid));
        self.0.push(b'\n');
        self.0.extend((value.len() as u64).to_le_bytes());
        self.0.extend(value.bytes());
        self.0.push(b'\n');
    }

    fn put_place(&mut self, prefix: &str, metadata: &Metadata<'_>) {
        self.put(prefix, "TARGET", metadata.target());
        if let Some(file) = metadata.file() {
            self.put(prefix, "CODE_FILE", file);
        }
        if let Some(line) = metadata.line() {
            self.put(prefix, "CODE_LINE", &line.to_string());
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        // The text of a line follows its fields.
        if field.name() != MESSAGE {
            self.put(PREFIX, field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

/// The text of a line, as stderr has it, because `journalctl` shows nothing else: its spans, its message, and its fields.
#[derive(Debug, Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.message += value;
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = if field.name() == MESSAGE {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

impl Text {
    /// Returns the text of a line with this text of its spans. The message of a line about a connection has what matters of
    /// both already.
    fn of(event: &Event<'_>, spans: &str) -> String {
        let mut text = Self::default();
        event.record(&mut text);
        if event.metadata().target() == report::CONNECTIONS {
            return text.message;
        }
        format!("{spans}{}{}", text.message, text.fields)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Journal {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).expect("the span is new");
        let mut fields = Fields::default();
        fields.put("", "SPAN_NAME", span.name());
        fields.put_place("SPAN_", span.metadata());
        attributes.record(&mut fields);
        let mut text = Text::default();
        attributes.record(&mut text);
        let mut extensions = span.extensions_mut();
        extensions.insert(fields);
        extensions.insert(text);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).expect("the span exists");
        let mut extensions = span.extensions_mut();
        if let Some(fields) = extensions.get_mut::<Fields>() {
            values.record(fields);
        }
        if let Some(text) = extensions.get_mut::<Text>() {
            values.record(text);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        let spans = context.lookup_current().into_iter();
        let mut text = String::new();
        for span in spans.flat_map(|span: SpanRef<'_, S>| span.scope().from_root()) {
            let extensions = span.extensions();
            if let Some(of_span) = extensions.get::<Fields>() {
                fields.0.extend(&of_span.0);
            }
            if let Some(of_span) = extensions.get::<Text>() {
                let _ = write!(text, "{}{{{}}}: ", span.name(), of_span.fields.trim_start());
            }
        }
        fields.put("", "PRIORITY", priority(event.metadata().level()));
        fields.put_place("", event.metadata());
        fields.put("", "SYSLOG_IDENTIFIER", "smbdirect");
        event.record(&mut fields);
        fields.put("", MESSAGE, &Text::of(event, &text));
        // Without a queue, a line that the journal does not take is lost.
        let _ = streams::write(Stream::Journal, &fields.0);
    }
}

/// Returns the priority of syslog: warnings keep their meaning, and `info` is "notice".
fn priority(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "5",
        Level::DEBUG => "6",
        Level::TRACE => "7",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_lengths_are_those_of_the_protocol() {
        let mut fields = Fields::default();
        fields.put(PREFIX, "_bytes.to-server", "1\n2");
        fields.put("", "MESSAGE", "");
        let first = b"SMBDIRECT_BYTES_TOSERVER\n\x03\0\0\0\0\0\0\x001\n2\n";
        let second = b"MESSAGE\n\0\0\0\0\0\0\0\0\n";
        assert_eq!(fields.0, [&first[..], second].concat());
    }

    #[test]
    fn a_text_has_the_fields_unless_its_message_has_them() {
        use std::sync::{Arc, Mutex};

        use tracing_subscriber::prelude::*;

        struct Texts(Arc<Mutex<Vec<String>>>);

        impl<S: Subscriber> Layer<S> for Texts {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                self.0
                    .lock()
                    .unwrap()
                    .push(Text::of(event, "session{id=1}: "));
            }
        }

        let texts = Arc::default();
        let subscriber = tracing_subscriber::registry().with(Texts(Arc::clone(&texts)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(reason = %"no room", times = 2, name = "a\nb", "{} ends", 7);
            tracing::info!(target: report::CONNECTIONS, server = "a", "a takes clients again");
        });
        assert_eq!(
            *texts.lock().unwrap(),
            [
                r#"session{id=1}: 7 ends reason=no room times=2 name="a\nb""#,
                "a takes clients again"
            ]
        );
    }
}
