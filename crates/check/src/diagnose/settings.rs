//! Commands that change a setting of an SMB server and make it read the setting.

/// Returns the command for ksmbd, which has to start again. Its connections end.
pub(super) fn ksmbd(key: &str, value: &str) -> String {
    let edit = edit(key, value);
    format!("{edit} /etc/ksmbd/ksmbd.conf && sudo ksmbd.control -s && sleep 1 && sudo ksmbd.mountd")
}

/// Returns the command for Samba.
pub(super) fn samba(key: &str, value: &str) -> String {
    let edit = edit(key, value);
    format!("{edit} /etc/samba/smb.conf && sudo smbcontrol all reload-config")
}

/// Replaces the setting wherever it is, or adds it to the global section.
fn edit(key: &str, value: &str) -> String {
    format!(
        r"sudo sed -i -e '/^[[:space:]]*{key}[[:space:]]*=/d' -e '/^\[global\]/a {key} = {value}'"
    )
}
