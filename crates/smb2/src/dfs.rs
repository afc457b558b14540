//! Where a link of DFS leads ([MS-DFSC]): a server of a DFS namespace refuses a path below a link with
//! STATUS_PATH_NOT_COVERED, and says by FSCTL_DFS_GET_REFERRALS where the link leads.
//!
//! [MS-DFSC]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-dfsc/

use smb2::{
    Tree,
    msg::{
        dfs::{ReqGetDfsReferral, RespGetDfsReferral},
        ioctl::{IoctlRequest, IoctlResponse},
    },
    pack::{Pack, ReadCursor, Unpack, WriteCursor},
    types::{Command, FileId},
};

use crate::{error::Error, tree::Requests};

const FSCTL_DFS_GET_REFERRALS: u32 = 0x0006_0194;
/// SMB2_0_IOCTL_IS_FSCTL ([MS-SMB2] 2.2.31).
const IS_FSCTL: u32 = 0x0000_0001;
/// Longest answer: one credit.
const MAX_ANSWER_BYTES: u32 = 65_536;
const MAX_REFERRAL_LEVEL: u16 = 4;

/// Returns the place, `//SERVER/SHARE/PATH`, to which `name` leads, which is `SERVER\SHARE\PATH`; `None` if the server
/// does not say it.
pub(crate) async fn target(requests: &Requests, name: &str) -> Option<String> {
    let transport = requests.transport();
    let mut smb = requests.smb2();
    let request = ReqGetDfsReferral {
        max_referral_level: MAX_REFERRAL_LEVEL,
        request_file_name: format!(r"\{name}"),
    };
    let mut input = WriteCursor::new();
    request.pack(&mut input);
    let request = IoctlRequest {
        ctl_code: FSCTL_DFS_GET_REFERRALS,
        file_id: FileId::SENTINEL,
        max_input_response: 0,
        max_output_response: MAX_ANSWER_BYTES,
        flags: IS_FSCTL,
        input_data: input.into_inner(),
    };
    let asked = async {
        let tree = transport.request(Tree::connect(&mut smb, "IPC$")).await?;
        let sending = smb.execute(Command::Ioctl, &request, Some(tree.tree_id));
        transport.request(sending).await
    };
    let answer: Result<_, Error> = asked.await;
    let answer = IoctlResponse::unpack(&mut ReadCursor::new(&answer.ok()?.body)).ok()?;
    let answer = RespGetDfsReferral::unpack(&mut ReadCursor::new(&answer.output_data)).ok()?;
    let target = answer.entries.first()?.target_address()?;
    place(target, answer.path_consumed, name)
}

/// Joins the target of a link and the rest of the name after the link. `consumed` counts bytes of the name with the
/// `\` before it.
fn place(target: &str, consumed: u16, name: &str) -> Option<String> {
    let name: Vec<u16> = name.encode_utf16().collect();
    let consumed = (usize::from(consumed) / 2).saturating_sub(1);
    let rest = String::from_utf16_lossy(name.get(consumed..)?);
    let rest = smb2::decode_path(rest.trim_start_matches('\\'));
    let target = target.trim_matches('\\').replace('\\', "/");
    Some(if rest.is_empty() {
        format!("//{target}")
    } else {
        format!("//{target}/{rest}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_a_name_follows_the_target() {
        let name = r"server\dfs\link\a\b";
        for (target, consumed, expected) in [
            (r"\other\share", 32, Some("//other/share/a/b")),
            (r"\\other\share\x\", 32, Some("//other/share/x/a/b")),
            (r"\other\share", 40, Some("//other/share")),
            (
                r"\other\share",
                0,
                Some("//other/share/server/dfs/link/a/b"),
            ),
            (r"\other\share", 42, None),
        ] {
            assert_eq!(
                place(target, consumed, name).as_deref(),
                expected,
                "{target} {consumed}"
            );
        }
    }
}
