//! A machine whose files are below another root, for the tests of what `smbdirect check` reads.

use std::{fs, path::Path};

/// Writes a file of the machine whose files are below `root`.
///
/// # Panics
/// Panics if it cannot.
pub fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("it is in a directory")).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns the root of a machine that has everything.
///
/// # Panics
/// Panics if there is no temporary directory.
pub fn machine() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write(root, "proc/sys/kernel/osrelease", "7.2.13\n");
    let config = "CONFIG_CIFS=m\nCONFIG_CIFS_SMB_DIRECT=y\nCONFIG_SMB_SERVER=m\n\
        CONFIG_SMB_SERVER_SMBDIRECT=y\nCONFIG_INFINIBAND=m\nCONFIG_INFINIBAND_ADDR_TRANS=y\n";
    write(root, "boot/config-7.2.13", config);
    let modules =
        "kernel/fs/smb/client/cifs.ko.xz: kernel/lib/x.ko\nkernel/fs/smb/server/ksmbd.ko:\n";
    write(root, "lib/modules/7.2.13/modules.dep", modules);
    write(root, "sys/module/ib_core/initstate", "live\n");
    write(root, "sys/module/rdma_cm/initstate", "live\n");
    write(root, "sys/class/net/eth0/mtu", "9000\n");
    write(root, "sys/class/net/eth0/operstate", "up\n");
    let adapter = "sys/class/infiniband/mlx5_0";
    write(root, &format!("{adapter}/node_type"), "1: CA\n");
    write(root, &format!("{adapter}/ports/1/link_layer"), "Ethernet\n");
    write(root, &format!("{adapter}/ports/1/state"), "4: ACTIVE\n");
    directory
}
