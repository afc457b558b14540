//! Commands that change a setting of an SMB server and make it read the setting.

/// Returns the command that changes a setting of ksmbd and restarts it, which ends its connections.
pub(super) fn ksmbd(key: &str, value: &str) -> String {
    let edit = edit(key, value);
    format!("{edit} /etc/ksmbd/ksmbd.conf && sudo ksmbd.control -s && sleep 1 && sudo ksmbd.mountd")
}

/// Returns the command that changes a setting of Samba and makes it read its file again.
pub(super) fn samba(key: &str, value: &str) -> String {
    let edit = edit(key, value);
    format!("{edit} /etc/samba/smb.conf && sudo smbcontrol all reload-config")
}

/// Returns the beginning of a command that deletes each line with the setting and adds the setting to
/// the global section of the file named after it.
fn edit(key: &str, value: &str) -> String {
    format!(
        r"sudo sed -i -e '/^[[:space:]]*{key}[[:space:]]*=/d' -e '/^\[global\]/a {key} = {value}'"
    )
}
