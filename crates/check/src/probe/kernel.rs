//! The kernel's build options and modules.

use std::io::Read;

use flate2::read::GzDecoder;

use super::root::Root;
use crate::facts::{Kernel, Module, Setting};

/// Maximum number of bytes of an unpacked configuration.
const MAX_CONFIG_BYTES: u64 = 4 << 20;

/// Reads the options and modules of the kernel with this release.
pub(super) fn read(root: &Root, release: &str) -> Kernel {
    let config = config(root, release);
    let text = config.as_ref().map(|(_, text)| text.as_str());
    let files = modules(root, release);
    let module = |name: &str, option: &str| module(root, text, files.as_deref(), name, option);
    let mut kernel = Kernel {
        cifs_smb_direct: setting(text, "CONFIG_CIFS_SMB_DIRECT"),
        server_smb_direct: setting(text, "CONFIG_SMB_SERVER_SMBDIRECT"),
        infiniband: setting(text, "CONFIG_INFINIBAND"),
        address_translation: setting(text, "CONFIG_INFINIBAND_ADDR_TRANS"),
        cifs: module("cifs", "CONFIG_CIFS"),
        ksmbd: module("ksmbd", "CONFIG_SMB_SERVER"),
        ib_core: module("ib_core", "CONFIG_INFINIBAND"),
        rdma_cm: module("rdma_cm", "CONFIG_INFINIBAND_ADDR_TRANS"),
        rdma_ucm: module("rdma_ucm", "CONFIG_INFINIBAND_USER_ACCESS"),
        siw: module("siw", "CONFIG_RDMA_SIW"),
        rxe: module("rdma_rxe", "CONFIG_RDMA_RXE"),
        config: config.as_ref().map(|(name, _)| name.clone()),
    };
    // Modules that are built in appear in /sys/module only if they have parameters, so other traces
    // count as well.
    for (module, trace) in [
        (&mut kernel.cifs, "proc/fs/cifs"),
        (&mut kernel.ksmbd, "sys/class/ksmbd-control"),
        (&mut kernel.ib_core, "sys/class/infiniband"),
        (&mut kernel.rdma_ucm, "sys/class/misc/rdma_cm"),
        // rdma_ucm needs rdma_cm.
        (&mut kernel.rdma_cm, "sys/class/misc/rdma_cm"),
    ] {
        if root.exists(trace) {
            *module = Module::Present;
        }
    }
    kernel
}

/// Returns the name and the text of the kernel's configuration.
fn config(root: &Root, release: &str) -> Option<(String, String)> {
    if let Some(packed) = root.bytes("proc/config.gz") {
        let mut text = Vec::new();
        let unpacked = GzDecoder::new(&*packed).take(MAX_CONFIG_BYTES);
        if { unpacked }.read_to_end(&mut text).is_ok() {
            let text = String::from_utf8_lossy(&text).into_owned();
            return Some(("/proc/config.gz".into(), text));
        }
    }
    let names = [
        format!("boot/config-{release}"),
        format!("lib/modules/{release}/config"),
        format!("usr/lib/modules/{release}/config"),
        format!("lib/modules/{release}/build/.config"),
    ];
    names
        .iter()
        .find_map(|name| Some((format!("/{name}"), root.text(name)?)))
}

fn setting(config: Option<&str>, option: &str) -> Setting {
    let Some(config) = config else {
        return Setting::Unknown;
    };
    let value = config
        .lines()
        .find_map(|line| line.strip_prefix(option)?.strip_prefix('='));
    match value {
        Some("y" | "m") => Setting::On,
        // An option that is off is a comment, or missing if its own requirements are off.
        _ => Setting::Off,
    }
}

/// Returns the names of all modules of the kernel, one a line, or `None` if they are unknown.
fn modules(root: &Root, release: &str) -> Option<String> {
    let texts: Vec<String> = ["modules.dep", "modules.builtin"]
        .iter()
        .filter_map(|list| root.text(&format!("lib/modules/{release}/{list}")))
        .collect();
    (!texts.is_empty()).then(|| texts.concat())
}

fn module(
    root: &Root,
    config: Option<&str>,
    files: Option<&str>,
    name: &str,
    option: &str,
) -> Module {
    if root.exists(&format!("sys/module/{name}")) {
        return Module::Present;
    }
    let assigned = |value: &str| {
        let line = format!("{option}={value}");
        config.is_some_and(|config| config.lines().any(|each| each == line))
    };
    if assigned("y") {
        return Module::Present;
    }
    // A line is `PATH/name.ko[.xz]:`, followed by what it needs, or `PATH/name.ko`.
    let file = format!("/{name}.ko");
    let has_file = files.map(|files| {
        files.lines().any(|line| {
            let path = line.split(':').next().unwrap_or(line);
            path.contains(&file)
        })
    });
    match has_file {
        Some(true) => Module::Loadable,
        Some(false) => Module::Missing,
        None if config.is_some() && !assigned("m") => Module::Missing,
        None => Module::Unknown,
    }
}
