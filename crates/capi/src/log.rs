//! The log, which goes to a callback of the program.

use std::{
    ffi::{CString, c_char, c_void},
    fmt::Write as _,
};

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
};
use tracing_subscriber::{Layer, Registry, layer::SubscriberExt};

/// Receives a line of the log: `level` is 1 (error) to 5 (trace), and `message` ends with a 0 byte and is
/// valid during the call. It is called on threads of the library and in calls of the program, must not
/// call the library, and must be safe to call from several threads.
pub type smbdirect_log_callback =
    Option<unsafe extern "C" fn(level: i32, message: *const c_char, user_data: *mut c_void)>;

/// Returns what hands the lines up to a level to a callback, if there is one.
pub(crate) fn dispatch(
    callback: smbdirect_log_callback,
    level: i32,
    user_data: *mut c_void,
) -> Option<Dispatch> {
    let level = match level {
        ..=1 => Level::ERROR,
        2 => Level::WARN,
        3 => Level::INFO,
        4 => Level::DEBUG,
        5.. => Level::TRACE,
    };
    callback.map(|callback| {
        let layer = LogLayer {
            callback,
            user_data,
            level,
        };
        Dispatch::new(Registry::default().with(layer))
    })
}

/// A subscriber that hands lines to a callback.
struct LogLayer {
    callback: unsafe extern "C" fn(i32, *const c_char, *mut c_void),
    user_data: *mut c_void,
    level: Level,
}

// SAFETY: the header says that the callback is called from several threads, and the pointer is only
// handed back to it.
unsafe impl Send for LogLayer {}
// SAFETY: as for `Send`.
unsafe impl Sync for LogLayer {}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn enabled(
        &self,
        metadata: &Metadata<'_>,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.level))
    }

    fn on_event(&self, event: &Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => 1,
            Level::WARN => 2,
            Level::INFO => 3,
            Level::DEBUG => 4,
            Level::TRACE => 5,
        };
        let text = line.0.replace('\0', "\u{FFFD}");
        let Ok(text) = CString::new(text) else {
            return;
        };
        // SAFETY: the callback has this signature, and the text outlives the call.
        unsafe { (self.callback)(level, text.as_ptr(), self.user_data) };
    }
}

/// The message of an event with its fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let separator = if self.0.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{separator}{value:?}"),
            name => write!(self.0, "{separator}{name}={value:?}"),
        };
    }
}
