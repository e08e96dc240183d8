//! Files whose path the user names and which this process opens, perhaps as root in a directory that other users can write
//! to.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::geteuid;

/// Opens a regular file of this user for writing, and truncates it. A file that is created has the mode `mode`, less the
/// umask. A symbolic link or a file with several hard links is refused, because another user might have made it to
/// overwrite another file.
///
/// # Errors
/// The file cannot be opened, is not regular, belongs to another user or has several names. A pipe is refused too, because
/// its reader could block the writer.
pub fn open_to_write(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode).custom_flags(FLAGS);
    let file = open_own(path, &options)?;
    file.set_len(0)?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Opens a file like [`open_to_write`], also for reading.
///
/// # Errors
/// Same as [`open_to_write`].
pub fn open_to_rewrite(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode).custom_flags(FLAGS);
    let file = open_own(path, &options)?;
    file.set_len(0)?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Opens a file like [`open_to_write`], but keeps its contents, and appends to them. The second value is false if the last
/// byte of the file is not a line end.
///
/// # Errors
/// Same as [`open_to_write`].
pub fn open_to_append(path: &Path, mode: u32) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(mode).custom_flags(FLAGS);
    let file = open_own(path, &options)?;
    let mut last = [b'\n'];
    if let Some(end) = file.metadata()?.len().checked_sub(1) {
        file.read_exact_at(&mut last, end)?;
    }
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok((file, last == *b"\n"))
}

/// Creates a file, or opens a regular file that belongs to this user and has no other hard link.
fn open_own(path: &Path, options: &OpenOptions) -> io::Result<File> {
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // A file that this process creates is accepted without a check of its owner: a file server may map root to another
        // user.
        created => return created,
    }
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if found.uid() != geteuid().as_raw() {
        let owner = found.uid();
        return Err(io::Error::other(format!("it belongs to another user ({owner})")));
    }
    if found.nlink() > 1 {
        return Err(io::Error::other("it has several names (hard links)"));
    }
    Ok(file)
}

/// Opens a file for reading, unless its last path component is a symbolic link. The call does not wait for the writer of a
/// FIFO.
///
/// # Errors
/// The file cannot be opened.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FLAGS).open(path)
}

/// Flags of open(2): the last path component is not followed if it is a symbolic link, a FIFO does not block, and a
/// terminal does not become the controlling one.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn a_file_of_this_user_is_emptied_and_a_new_one_has_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        open_to_write(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "earlier").unwrap();
        open_to_write(&path, 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn appending_keeps_what_a_file_contains() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        for (before, is_complete) in [("", true), ("a\n", true), ("a", false)] {
            fs::write(&path, before).unwrap();
            let (mut file, complete) = open_to_append(&path, 0o600).unwrap();
            assert_eq!(complete, is_complete, "{before:?}");
            file.write_all(b"b").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{before}b"));
        }
        fs::remove_file(&path).unwrap();
        open_to_append(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        let error = open_to_append(&link, 0o600).unwrap_err();
        assert_eq!(error.to_string(), "it is a symbolic link");
    }

    #[test]
    fn links_and_files_of_other_users_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        let path = directory.path().join("x");
        fs::write(&target, "precious").unwrap();

        symlink(&target, &path).unwrap();
        let error = open_to_write(&path, 0o600).unwrap_err();
        assert_eq!(error.to_string(), "it is a symbolic link");
        fs::remove_file(&path).unwrap();
        symlink(directory.path().join("new"), &path).unwrap();
        open_to_write(&path, 0o600).unwrap_err();
        assert!(!directory.path().join("new").exists());
        fs::remove_file(&path).unwrap();

        fs::hard_link(&target, &path).unwrap();
        let error = open_to_write(&path, 0o600).unwrap_err();
        assert_eq!(error.to_string(), "it has several names (hard links)");
        fs::remove_file(&path).unwrap();

        // Only root can create a file that belongs to another user.
        fs::write(&path, "precious").unwrap();
        if geteuid().is_root() {
            chown(&path, Some(1), Some(1)).unwrap();
            let error = open_to_write(&path, 0o600).unwrap_err();
            assert_eq!(error.to_string(), "it belongs to another user (1)");
            assert_eq!(fs::read(&path).unwrap(), b"precious");
        }
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
}
