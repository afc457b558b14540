//! Gathers the facts of this machine.

use super::{adapters, interfaces, kernel, mounts, root::Root, servers};
use crate::facts::Machine;

/// Reads everything about this machine. It takes milliseconds, and blocks.
pub(super) fn gather(root: &Root) -> Machine {
    let release = root.line("proc/sys/kernel/osrelease").unwrap_or_default();
    let interfaces = interfaces::read(root);
    let mut adapters = adapters::read(root, &interfaces);
    let verbs_missing = if root.is_real() && !adapters.is_empty() {
        adapters::ask_verbs(&mut adapters)
    } else {
        None
    };
    Machine {
        is_known: root.exists("proc/sys/kernel/osrelease"),
        kernel: kernel::read(root, &release),
        client: mounts::read(root),
        server: servers::read(root),
        release,
        interfaces,
        adapters,
        verbs_missing,
    }
}
