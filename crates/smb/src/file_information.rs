//! Structures of [MS-FSCC] 2.4 that SMB2 messages carry: entries of directories, and changes of files.

/// Number of FileRenameInformation.
pub const RENAME: u8 = 10;
/// Number of FileDispositionInformation, one byte: whether the file is deleted when it is closed.
pub const DISPOSITION: u8 = 13;
/// Number of FileEndOfFileInformation, eight bytes: the length of the file.
pub const END_OF_FILE: u8 = 20;

/// Returns a FileRenameInformation (2.4.42.2) with the new name, which is relative to the share. With `replace` an
/// existing file of that name is replaced.
pub fn encode_rename(name: &str, replace: bool) -> Vec<u8> {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut bytes = vec![u8::from(replace)];
    bytes.extend([0; 7]); // Reserved
    bytes.extend([0; 8]); // RootDirectory
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name);
    bytes
}

/// An entry of FileBothDirectoryInformation (2.4.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// LastWriteTime, in units of 100 ns since 1601.
    pub last_write_time: u64,
    /// EndOfFile: bytes of the file.
    pub end_of_file: u64,
    /// FileAttributes.
    pub attributes: u32,
    /// EaSize, or the tag of a reparse point.
    pub ea_size: u32,
    /// FileName: UTF-16 units, which need not be well-formed.
    pub name: Vec<u16>,
}

impl DirectoryEntry {
    /// Bytes before the name.
    const FIXED: usize = 94;

    /// Decodes all entries of an answer. They must not overlap, so that they take no more memory than a small multiple
    /// of the answer.
    ///
    /// # Errors
    /// The reason why the bytes are not a list of entries.
    pub fn decode_all(mut bytes: &[u8]) -> Result<Vec<Self>, &'static str> {
        let mut entries = Vec::new();
        loop {
            let (entry, length) = Self::decode(bytes).ok_or("an entry is too short")?;
            entries.push(entry);
            let next = u32_at(bytes, 0).map_or(0, |next| next as usize);
            if next == 0 {
                return Ok(entries);
            }
            if next < length {
                return Err("two entries overlap");
            }
            bytes = bytes.get(next..).ok_or("an entry is too short")?;
        }
    }

    /// Decodes the first entry, and returns its bytes.
    fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let fixed: &[u8; Self::FIXED] = bytes.first_chunk()?;
        let length = Self::FIXED.checked_add(u32_at(fixed, 60)? as usize)?;
        let (units, rest) = bytes.get(Self::FIXED..length)?.as_chunks::<2>();
        if !rest.is_empty() {
            return None;
        }
        let entry = Self {
            last_write_time: u64_at(fixed, 24)?,
            end_of_file: u64_at(fixed, 40)?,
            attributes: u32_at(fixed, 56)?,
            ea_size: u32_at(fixed, 64)?,
            name: units.iter().map(|unit| u16::from_le_bytes(*unit)).collect(),
        };
        Some((entry, length))
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{directory_entry, with};

    const LONE: [u16; 3] = [0x61, 0xd800, 0x62];

    #[test]
    fn entries_have_names_of_any_units() {
        let list = [
            directory_entry(&LONE, 5, false),
            directory_entry(&[0x7a], 6, true),
        ];
        let entry = |name: &[u16], end_of_file| DirectoryEntry {
            last_write_time: 7,
            end_of_file,
            attributes: 0x20,
            ea_size: 0,
            name: name.to_vec(),
        };
        let expected = vec![entry(&LONE, 5), entry(&[0x7a], 6)];
        assert_eq!(DirectoryEntry::decode_all(&list.concat()), Ok(expected));
    }

    #[test]
    fn hostile_entries_are_refused() {
        let list = [
            directory_entry(&LONE, 5, false),
            directory_entry(&[0x7a], 6, true),
        ];
        let whole = list.concat();
        let entries = DirectoryEntry::decode_all;
        for length in 0..whole.len() {
            assert!(entries(&whole[..length]).is_err(), "{length}");
        }
        for next in [1, 8, 94, 99, u32::MAX] {
            let bytes = with(whole.clone(), 0, &next.to_le_bytes());
            assert!(entries(&bytes).is_err(), "{next}");
        }
        for length in [3, 1000, u32::MAX] {
            let bytes = with(whole.clone(), 60, &length.to_le_bytes());
            assert!(entries(&bytes).is_err(), "{length}");
        }
    }

    #[test]
    fn a_new_name_follows_its_length() {
        let bytes = encode_rename("a/b", true);
        assert_eq!(
            bytes[..16],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(bytes[16..], *b"\x06\0\0\0a\0/\0b\0");
        assert_eq!(encode_rename("", false), [0; 20]);
    }
}
