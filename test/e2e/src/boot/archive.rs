//! The archive format of an initramfs, "newc" (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// An archive to which files and directories are added.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// Mode of a directory in the archive: S_IFDIR with permissions 0755.
const DIRECTORY: u32 = 0o040_755;
/// Mode of a file in the archive: S_IFREG with permissions 0755.
const FILE: u32 = 0o100_755;

impl Archive {
    pub(super) fn directory(&mut self, name: &str) {
        entry(&mut self.bytes, self.entries, name, DIRECTORY, &[]);
        self.entries += 1;
    }

    pub(super) fn file(&mut self, name: &str, contents: &[u8]) {
        entry(&mut self.bytes, self.entries, name, FILE, contents);
        self.entries += 1;
    }

    /// Returns the bytes of the archive, with its trailer.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        entry(&mut bytes, 0, "TRAILER!!!", 0, &[]);
        bytes
    }
}

fn entry(bytes: &mut Vec<u8>, inode: u32, name: &str, mode: u32, contents: &[u8]) {
    let (size, name_size) = (contents.len() as u32, name.len() as u32 + 1);
    // Fields: inode, mode, user, group, links, time, size, device numbers, device numbers of a node, length of the
    // name, checksum.
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    bytes.extend_from_slice(b"070701");
    for field in fields {
        bytes.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    bytes.extend_from_slice(name.as_bytes());
    bytes.push(0);
    pad(bytes);
    bytes.extend_from_slice(contents);
    pad(bytes);
}

/// Appends zeros up to a multiple of 4 bytes, to which names and contents are padded.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_a_trailer() {
        let mut archive = Archive::default();
        archive.file("init", b"hello");
        let bytes = archive.bytes();
        assert_eq!(&bytes[..14], b"07070100000000");
        // A header of 110 bytes, the name with its terminating zero up to 116, and the contents up to 124.
        assert_eq!(&bytes[110..121], b"init\0\0hello");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[124 + 110..124 + 120], b"TRAILER!!!");
        assert_eq!(bytes.len() % 4, 0);
    }
}
