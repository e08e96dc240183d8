//! Tries to make the host's processes visible, which the guest's `/proc` covers.

use std::fs;

use rustix::mount::{UnmountFlags, mount_bind_recursive, unmount};

/// Removes all mounts of `/proc`, and of a copy at `/mnt/proc`, that can be removed. Returns the path of the process whose
/// arguments contain `argument`, if it becomes visible, and `covered` otherwise.
pub(super) fn uncover(argument: &str) -> String {
    let copied = mount_bind_recursive("/", "/mnt").is_ok();
    for directory in ["/proc", "/mnt/proc"] {
        if directory == "/mnt/proc" && !copied {
            continue;
        }
        loop {
            let process = fs::read_dir(directory)
                .into_iter()
                .flatten()
                .flatten()
                .find(|entry| {
                    fs::read(entry.path().join("cmdline")).is_ok_and(|line| is_sleep(&line, argument))
                });
            if let Some(process) = process {
                return process.path().display().to_string();
            }
            if unmount(directory, UnmountFlags::DETACH).is_err() {
                break;
            }
        }
    }
    "covered".to_owned()
}

/// Returns true for the arguments of `sleep` with `argument`.
fn is_sleep(line: &[u8], argument: &str) -> bool {
    line == [&b"sleep\0"[..], argument.as_bytes(), b"\0"].concat()
}
