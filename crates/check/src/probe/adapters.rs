//! The RDMA adapters of this machine, from /sys/class/infiniband and libibverbs.

#[cfg(target_os = "linux")]
use smbdirect_transport::text;

use super::root::Root;
use crate::facts::{Adapter, Fabric, Interface};

/// Reads the adapters from /sys/class/infiniband.
pub(super) fn read(root: &Root, interfaces: &[Interface]) -> Vec<Adapter> {
    let names = root.names("sys/class/infiniband").into_iter();
    names.map(|name| adapter(root, interfaces, name)).collect()
}

fn adapter(root: &Root, interfaces: &[Interface], name: String) -> Adapter {
    let file = |file: &str| root.line(&format!("sys/class/infiniband/{name}/{file}"));
    // `4: RNIC`: its name is the same for all versions of the kernel.
    let kind = file("node_type").unwrap_or_default();
    let link_layer = file("ports/1/link_layer").unwrap_or_default();
    let fabric = match &*after_colon(&kind) {
        "RNIC" => Fabric::Iwarp,
        "CA" | "" if link_layer == "Ethernet" => Fabric::Roce,
        "CA" | "" => Fabric::InfiniBand,
        _ => Fabric::Other,
    };
    Adapter {
        fabric,
        state: after_colon(&file("ports/1/state").unwrap_or_default()),
        interface: interface(root, interfaces, &name),
        max_send_elements: None,
        unusable: None,
        name,
    }
}

/// Returns `ACTIVE` for `4: ACTIVE`.
fn after_colon(text: &str) -> String {
    let value = text.split_once(':').map_or(text, |(_, value)| value);
    value.trim().to_owned()
}

/// Returns the network interface of an adapter, from its table of GIDs, or else the interface with the same
/// hardware address.
fn interface(root: &Root, interfaces: &[Interface], name: &str) -> Option<String> {
    let port = format!("sys/class/infiniband/{name}/ports/1");
    let devices = format!("{port}/gid_attrs/ndevs");
    let named = root.names(&devices).into_iter().find_map(|number| {
        let name = root.line(&format!("{devices}/{number}"))?;
        (!name.is_empty()).then_some(name)
    });
    named.or_else(|| {
        // iWARP: the GID begins with the hardware address.
        let gid = root.line(&format!("{port}/gids/0"))?.replace(':', "");
        let hardware = gid.get(..12)?;
        let same = interfaces.iter().find(|each| each.hardware == hardware)?;
        Some(same.name.clone())
    })
}

/// Adds the facts that libibverbs reports. Returns why it cannot be used.
#[cfg(target_os = "linux")]
pub(super) fn ask_verbs(adapters: &mut [Adapter]) -> Option<String> {
    let devices = match smbdirect_verbs::Verbs::devices() {
        Ok(devices) => devices,
        Err(why) => return Some(text::plain(&why)),
    };
    for adapter in adapters {
        if let Some(device) = devices.iter().find(|each| each.name == adapter.name) {
            adapter.max_send_elements = Some(device.max_send_elements).filter(|&most| most > 0);
            adapter.unusable.clone_from(&device.unusable);
        }
    }
    None
}

/// Adds nothing: libibverbs is for Linux.
#[cfg(not(target_os = "linux"))]
pub(super) fn ask_verbs(_: &mut [Adapter]) -> Option<String> {
    None
}
