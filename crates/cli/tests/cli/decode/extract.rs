//! `decode --extract` with captures whose names and sizes are hostile, and with folders that cannot take the files.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use smbdirect_test::{
    decoded::events,
    messages::{CREATE, FILE_ID, SUCCESS, answer, header, other, put, read, read_answer},
    talk::{I, R, Talk, Transfer},
};

use super::decode;
use crate::support::Done;

const TREE_CONNECT: u16 = 3;

fn message(talk: &mut Talk, way: usize, payload: &[u8]) {
    let transfer = Transfer {
        rest: [&[0; 4], payload].concat(),
        ..Transfer::of(payload.len() as u32, 0)
    };
    talk.transfer(way, &transfer);
}

/// Returns a request with a name at the end of its body.
fn named(command: u16, id: u64, body: usize, fields: usize, name: &str) -> Vec<u8> {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut request = header(command, id);
    request.resize(64 + body, 0);
    let (offset, length) = ((64 + body) as u16, name.len() as u16);
    put(&mut request, 64 + fields, &offset.to_le_bytes());
    put(&mut request, 64 + fields + 2, &length.to_le_bytes());
    [request, name].concat()
}

/// Writes a capture in which a client reads `data` at an offset of each of these files.
fn capture(folder: &Path, names: &[&str], (size, offset): (u64, u64), data: &[u8]) -> PathBuf {
    let mut talk = Talk::established();
    message(
        &mut talk,
        I,
        &named(TREE_CONNECT, 1, 8, 4, "\\\\server\\share"),
    );
    let connected = other(answer(TREE_CONNECT, 1, SUCCESS), &[0; 16]);
    message(&mut talk, R, &connected);
    let mut id = 2;
    for name in names {
        message(&mut talk, I, &named(CREATE, id, 56, 44, name));
        let mut created = answer(CREATE, id, SUCCESS);
        created.resize(64 + 88, 0);
        put(&mut created, 112, &size.to_le_bytes());
        put(&mut created, 128, &FILE_ID);
        message(&mut talk, R, &created);
        message(
            &mut talk,
            I,
            &read(id + 1, offset, data.len() as u32, 0, &[]),
        );
        message(&mut talk, R, &read_answer(id + 1, data, 0));
        id += 2;
    }
    let path = folder.join("made.pcap");
    fs::write(&path, talk.capture()).unwrap();
    path
}

fn extract(capture: &Path, into: &Path) -> Done {
    decode(capture, &["--extract", into.to_str().unwrap(), "--json"])
}

fn files(done: &Done) -> Vec<Value> {
    let extracted = events(done, "extracted").pop().unwrap();
    extracted["files"].as_array().unwrap().clone()
}

/// Returns the paths of all files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            paths.extend(below(&entry.path()));
        } else {
            paths.push(entry.path());
        }
    }
    paths
}

#[test]
fn hostile_names_are_files_within_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let into = root.path().join("deep/er/files");
    let long = "x".repeat(300);
    let names = [
        "..\\..\\x",
        "../../../../../../tmp/x",
        "/etc/passwd",
        "C:\\windows\\system32\\x",
        "CON",
        "nul.txt",
        "nul\0byte",
        &long,
        "name",
        "NAME",
        "line\nbreak",
        "",
    ];
    let capture = capture(root.path(), &names, (4, 0), b"data");
    let done = extract(&capture, &into);
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(0), ""));
    let listed = files(&done);
    assert_eq!(listed.len(), names.len());
    let mut paths: Vec<_> = listed
        .iter()
        .map(|file| into.join(file["path"].as_str().unwrap()))
        .collect();
    let mut found = below(&into);
    paths.sort();
    found.sort();
    assert_eq!(found, paths, "all are there, and nothing else");
    let all = below(root.path());
    assert_eq!(all.len(), names.len() + 1, "with the capture: {all:?}");
    let mut lower: Vec<_> = paths
        .iter()
        .map(|path| path.to_string_lossy().to_lowercase())
        .collect();
    lower.dedup();
    assert_eq!(lower.len(), names.len(), "names that differ by case");
    for path in &paths {
        assert_eq!(fs::read(path).unwrap(), b"data", "{path:?}");
    }
}

#[test]
fn sizes_and_offsets_beyond_a_file_system_take_no_room() {
    let root = tempfile::tempdir().unwrap();
    for (size, offset) in [(1 << 63, 0), (u64::MAX, 0), (4, 1 << 63), (4, u64::MAX - 1)] {
        let into = root.path().join(format!("{size}-{offset}"));
        let capture = capture(root.path(), &["file"], (size, offset), b"data");
        let done = extract(&capture, &into);
        let extracted = events(&done, "extracted").pop().unwrap();
        if offset == 0 {
            assert_eq!(done.status.code(), Some(0), "{done:?}");
            let file = &extracted["files"][0];
            assert_eq!(
                (file["size"].as_u64(), &file["complete"]),
                (Some(size), &Value::Bool(false))
            );
            assert_eq!(fs::read(into.join("share/file")).unwrap(), b"data");
        } else {
            assert_eq!(done.status.code(), Some(1), "{done:?}");
            assert_eq!(extracted["left_out_bytes"], 4, "{extracted}");
            assert!(below(&into).is_empty());
        }
    }
}

#[test]
fn a_folder_with_anything_in_it_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let capture = capture(root.path(), &["file"], (4, 0), b"data");
    let into = root.path().join("files");
    let outside = root.path().join("outside");
    fs::create_dir(&into).unwrap();
    fs::create_dir(&outside).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&outside, into.join("share")).unwrap();
    #[cfg(not(unix))]
    fs::write(into.join("share"), b"").unwrap();
    let refused = |into: &Path, reason: &str| {
        extract(&capture, into).failed(1, reason).one_line();
    };
    refused(&into, "the folder is not empty; name a new one");
    assert!(below(&outside).is_empty());
    // A file in place of the folder, or of one above it.
    refused(&capture, "cannot extract to");
    refused(&capture.join("files"), "cannot extract to");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_file() {
    struct Mount(PathBuf);
    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(&self.0).status();
        }
    }

    let root = tempfile::tempdir().unwrap();
    let disk = root.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounting = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&disk)
        .output();
    if !mounting.is_ok_and(|done| done.status.success()) {
        assert!(std::env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none());
        println!("skipped: no file system can be mounted");
        return;
    }
    let mount = Mount(disk);
    let names: Vec<String> = (0..30).map(|number| format!("file{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let data = vec![7; 60_000];
    let capture = capture(root.path(), &names, (60_000, 0), &data);
    extract(&capture, &mount.0.join("files"))
        .failed(1, "cannot write share/file")
        .one_line();
}
