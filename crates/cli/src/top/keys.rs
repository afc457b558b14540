//! Keys and changes of the terminal's size, read by a thread of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

/// The request of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// The next order of the rows.
    Order,
    /// Scroll down by this number of lines, or up if it is negative.
    Scroll(i32),
    /// The terminal has another size.
    Redraw,
    /// Stop, as a shell's job.
    Stop,
}

/// Longest time until the thread ends after its owner.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// Lines of a page.
const PAGE_LINES: i32 = 10;

/// Reads keys. Dropping it stops reading.
pub(super) struct Keys {
    keys: mpsc::Receiver<Key>,
    stopped: Arc<AtomicBool>,
}

impl Keys {
    pub(super) fn new() -> Self {
        let (sender, keys) = mpsc::channel(16);
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = stopped.clone();
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                match event::poll(POLL_TIMEOUT) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err(_) => return,
                }
                let Ok(event) = event::read() else { return };
                if let Some(key) = key(&event)
                    && sender.blocking_send(key).is_err()
                {
                    return;
                }
            }
        });
        Self { keys, stopped }
    }

    /// Returns the next key, or `None` if the terminal is gone. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Key> {
        self.keys.recv().await
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.stopped.store(true, Relaxed);
    }
}

fn key(event: &Event) -> Option<Key> {
    let key = match event {
        Event::Resize(..) => return Some(Key::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    let &KeyEvent {
        code, modifiers, ..
    } = key;
    let control = modifiers.contains(KeyModifiers::CONTROL);
    Some(match code {
        KeyCode::Char('c' | 'd') if control => Key::Quit,
        KeyCode::Char('l') if control => Key::Redraw,
        KeyCode::Char('z') if control => Key::Stop,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('o') => Key::Order,
        KeyCode::Down | KeyCode::Char('j') => Key::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Key::Scroll(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => Key::Scroll(PAGE_LINES),
        KeyCode::PageUp => Key::Scroll(-PAGE_LINES),
        KeyCode::Home => Key::Scroll(i32::MIN),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_their_meaning() {
        let pressed = |code, modifiers| key(&Event::Key(KeyEvent::new(code, modifiers)));
        let none = KeyModifiers::NONE;
        for (code, modifiers, meaning) in [
            (KeyCode::Char('q'), none, Some(Key::Quit)),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Key::Quit)),
            (KeyCode::Char('c'), none, None),
            (KeyCode::Char('z'), KeyModifiers::CONTROL, Some(Key::Stop)),
            (KeyCode::Char('o'), none, Some(Key::Order)),
            (KeyCode::Down, none, Some(Key::Scroll(1))),
            (KeyCode::F(1), none, None),
        ] {
            assert_eq!(pressed(code, modifiers), meaning, "{code:?}");
        }
        assert_eq!(key(&Event::Resize(80, 24)), Some(Key::Redraw));
    }
}
