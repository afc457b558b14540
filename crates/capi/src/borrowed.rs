//! Memory of the caller that the library reads until an operation is over.

use std::{ptr::NonNull, sync::Arc};

use bytes::Bytes;
use tokio::sync::oneshot;

/// A notification that no part of the caller's memory is used any more.
pub(crate) struct Released(Option<oneshot::Receiver<()>>);

impl Released {
    /// Waits until no part is used.
    pub(crate) async fn wait(self) {
        if let Some(receiver) = self.0 {
            // The sender is dropped without a value with the last part.
            let _ = receiver.await;
        }
    }
}

/// One part of a caller's memory.
struct Part {
    start: NonNull<u8>,
    length: usize,
    /// Dropped with the last part.
    _last: Arc<oneshot::Sender<()>>,
}

// SAFETY: the memory is only read, and the caller keeps it unchanged until the operation is over.
unsafe impl Send for Part {}
// SAFETY: as for `Send`.
unsafe impl Sync for Part {}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `lend` promises that the memory is valid and unchanged until the last part is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

/// Returns the parts of a caller's memory as bytes, and the notice of their release. Copies them only with
/// `copies`.
///
/// # Safety
/// The memory has to stay valid and unchanged until [`Released::wait`] returns.
pub(crate) unsafe fn lend(parts: &[&[u8]], copies: bool) -> (Vec<Bytes>, Released) {
    if copies {
        let parts = parts.iter().map(|part| Bytes::copy_from_slice(part));
        return (parts.collect(), Released(None));
    }
    let (sender, receiver) = oneshot::channel();
    let last = Arc::new(sender);
    let parts = parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| {
            Bytes::from_owner(Part {
                start: NonNull::from(*part).cast(),
                length: part.len(),
                _last: last.clone(),
            })
        })
        .collect();
    (parts, Released(Some(receiver)))
}
