//! What happens when the library is loaded.

use crate::{broker, next, sockets};

/// Prepares everything, so that no later call has to find functions or settings: a signal handler may be the first
/// to call `close`.
extern "C" fn load() {
    next::next();
    broker::settings();
    sockets::prepare();
}

/// The dynamic linker calls the functions in this section.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
