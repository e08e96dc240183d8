//! Files that the user names and this process writes, perhaps as root in a directory of others.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::geteuid;

/// Opens a regular file of this user for writing, and empties it. A new one has `mode`, less the umask. The name is no
/// symbolic link, and the file has no other name, as either might have been made by another user and lead to any file.
///
/// # Errors
/// It cannot be opened, or is another file than that. A pipe is one, as its reader could stop the writer.
pub fn open_to_write(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(mode).custom_flags(FLAGS);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // Where the server of a file system gives root's files to another user, a new file is still this process's.
        created => {
            let file = created?;
            fcntl_setfl(&file, OFlags::empty())?;
            return Ok(file);
        }
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
    file.set_len(0)?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Opens a file to read, unless its name is a symbolic link. Does not wait for the writer of a pipe.
///
/// # Errors
/// It cannot be opened.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(FLAGS).open(path)
}

/// No symbolic link is followed, no pipe waited for, no terminal taken.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

#[cfg(test)]
mod tests {
    use std::fs;
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

        // Only root can make a file of another user's.
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
